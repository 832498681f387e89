"""Prompts computed beside answers against prompts computed on nodes of their own.

Read next: `__main__` (the comparison), `simulation`, `card` (what a step costs).
"""
