"""KV blocks that outlive the device: in the host's memory, and sealed in files and a store.

Owns what is kept, found and read again there; must not know sequences, plans or torch.
Read next: `namespace` (who can find what), `tier_store` (joins the tiers), ADR 0023.
"""
