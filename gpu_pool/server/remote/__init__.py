"""Weights that are fetched when they are wanted, and given up for others.

Must not know requests or engine cores. Read next: `fetched_weights`, `download`.
"""
