"""What one step costs on a card, from its figures: the roofline, without the kernels' faults.

Pure. Attention reads the KV of every decoding sequence, and a prompt's attention grows with what
lies before it; weights are read once a step, in the shade of which some tokens are free.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A model on a card. Units: bytes, bytes and operations per second, seconds."""

    weights_bytes: float
    bytes_per_s: float
    """Of its memory, as far as kernels reach it."""
    operations_per_s: float
    """Likewise."""
    operations_per_token: float
    """Two for each weight that a token meets."""
    attention_operations: float
    """Of one token, for each token that it attends to."""
    kv_bytes: float
    """Of one token."""
    overhead_s: float
    """Of a step: planning, launches, sampling."""
    num_blocks: int
    block_size: int
    context_window: int

    def measure_step_s(self, pieces: Iterable[tuple[int, int]]) -> float:
        """The time of a step. `pieces` are (tokens computed, tokens before them) by sequence."""
        num_tokens = 0
        attended = 0.0
        read_bytes = self.weights_bytes
        for count, before in pieces:
            num_tokens += count
            attended += count * (before + count / 2)
            read_bytes += (before + count) * self.kv_bytes
        operations = num_tokens * self.operations_per_token + attended * self.attention_operations
        return self.overhead_s + max(
            read_bytes / self.bytes_per_s, operations / self.operations_per_s
        )


H100_8B: Final = Card(
    weights_bytes=16.1e9,
    bytes_per_s=0.8 * 3.35e12,
    operations_per_s=0.55 * 989e12,
    operations_per_token=2 * 8.03e9,
    attention_operations=4 * 4096 * 32,
    kv_bytes=131_072,
    overhead_s=0.001,
    num_blocks=28_000,
    block_size=16,
    context_window=32_768,
)
"""Llama 3.1 8B in bf16 on an H100 SXM: 3.35 TB/s and 989 TFLOP/s by its data sheet, of which 80 and
55 % are taken as reached; 58 GB of KV memory."""
