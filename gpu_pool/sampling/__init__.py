"""From logits to the next token: penalties, filters and seeded noise.

A row's token depends on its own logits, parameters, seed and position, never on its neighbours.
Must not know sequences or models. Read next: `sampler`.
"""
