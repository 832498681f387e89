"""Between text and token ids: templates, tokenisation, detokenisation, stop strings.

Owns everything that knows a model's vocabulary; must not know sockets, processes or sequences.
Read next: `prompt_encoder` (inwards), `text_stream` (outwards).
"""
