"""What a model takes on GPUs that need not be there: arithmetic from a `config.json` alone.

Owns weights as checkpoints store them, layouts and what they leave for KV; must not know a device.
Read next: `gpus`, `stored_size`, then `layouts`.
"""
