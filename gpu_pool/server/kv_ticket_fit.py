"""Whether a ticket fits the model's core as it is now, and how long it holds here.

Read next: `wire.ticket_gate` (what was checked before), `hand_over` and `arriving_blocks`.
"""

from contracts.errors import TransferFailed
from contracts.kv_transfer import KvHalf, KvTicket
from gpu_pool.engine.messages import CoreReady
from gpu_pool.node_clock import read_node_ms


def check_fit(ticket: KvTicket, ready: CoreReady) -> None:
    """Raises: `TransferFailed`, which names what differs: revision, layout or incarnation."""
    facts = ready.kv_facts
    if facts is None:
        raise TransferFailed("This model's KV blocks do not move.")
    if ticket.revision != ready.model_revision:
        raise TransferFailed("The ticket is for another revision of the model.")
    if ticket.layout != facts.layout:
        raise TransferFailed("The nodes lay out KV blocks differently.")
    own = ticket.prefill_incarnation if ticket.half is KvHalf.PREFILL else ticket.decode_incarnation
    if own != facts.incarnation:
        raise TransferFailed("The ticket is for an earlier life of the model's engine.")


def find_lease_end_ms(ticket: KvTicket) -> int:
    """Until when blocks are kept for the other node, by `node_clock`, from now on."""
    return read_node_ms() + ticket.patience_ms
