"""The making of `@hearth/tiny-chat`, the demo model that ships with Hearth.

All text is written by hand in `text/` or sampled from its grammars: nothing is downloaded. Start at
`conversations.py` (what the model reads), then `model.py` (what it is) and `train.py` (how one
becomes the other).
"""
