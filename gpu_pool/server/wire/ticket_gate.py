"""Checks the ticket of an `Open` against its grant and this node.

Owns what of a ticket can be judged without its model; `kv_ticket_fit` judges the rest. A ticket is
used up with its grant. Read next: `contracts.kv_transfer`, `grant_gate`, `connection`.
"""

import hmac
from collections.abc import Callable

import msgspec

from contracts.errors import DeadlineExceeded, Forbidden
from contracts.grant import Grant, RetentionClass
from contracts.ids import NodeId
from contracts.kv_transfer import KvHalf, KvTicket, digest_account, unseal_ticket


class TicketGate:
    """One connection's."""

    def __init__(self, connection_key: bytes, node_id: NodeId, unix_ms: Callable[[], int]) -> None:
        """`node_id` is this node's."""
        self._connection_key = connection_key
        self._node_id = node_id
        self._unix_ms = unix_ms

    def admit(self, sealed_ticket: bytes, grant: Grant) -> KvTicket | None:
        """The ticket, with what is left of its patience; None where there is none.

        One that has expired has none left at the node that answers, which gets no blocks and
        computes the prompt: nothing else of the request depends on it.
        Raises: `Forbidden` (seal, other request, account, model or node, retention `none`),
        `DeadlineExceeded` at the node for prompts.
        """
        if not sealed_ticket:
            return None
        ticket = unseal_ticket(sealed_ticket, self._connection_key)
        if grant.retention is RetentionClass.NONE:
            raise Forbidden("What is not to be retained does not leave its node.")
        if (ticket.request_id, ticket.model) != (grant.request_id, grant.model):
            raise Forbidden("The ticket is for another request.")
        if not hmac.compare_digest(ticket.account_digest, digest_account(grant.account_id)):
            raise Forbidden("The ticket is for another account.")
        is_prefill = ticket.half is KvHalf.PREFILL
        if self._node_id != (ticket.prefill_node if is_prefill else ticket.decode_node):
            raise Forbidden("The ticket is for another node.")
        left_ms = ticket.deadline_unix_ms - self._unix_ms()
        if is_prefill and left_ms <= 0:
            raise DeadlineExceeded("The ticket has expired.")
        patience_ms = max(0, min(ticket.patience_ms or left_ms, left_ms))
        return msgspec.structs.replace(ticket, patience_ms=patience_ms)
