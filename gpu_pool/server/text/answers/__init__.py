"""What an answer's text means: thoughts, words for the reader, and calls of tools.

Owns the formats of model families and their parsers, all linear in the text and independent of how
it arrives. Must not know tokens or the wire. Read next: `answer_format`, `answer_parser`.
"""
