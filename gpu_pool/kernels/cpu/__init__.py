"""Kernels of the CPU path in C++, built on the machine that runs them and loaded by ctypes.

Owns products of bf16 weights and paged attention, at every level of x86-64 vector instructions;
torch stays the reference and takes over where there is no compiler. Must not know models or plans.
Read next: `library`, then `product.cpp` and `attention.cpp`.
"""
