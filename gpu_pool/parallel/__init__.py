"""Several processes that hold one model together: who holds what, and how they exchange tensors.

Must not know networks, plans or weights. Read next: `place`, `tensor_group`, `process_groups`.
"""
