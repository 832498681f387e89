"""What a node is there for, and what a planner says of that.

Owns the roles and the wish for one; must not know who plans nor how requests are routed by it.
Read next: `contracts.placement`, whose plans carry the wish, and `contracts.fleet`, whose report
says what has become of it.
"""

from enum import StrEnum

import msgspec


class NodeRole(StrEnum):
    """Which half of a generation a node is there for."""

    MIXED = "mixed"
    """Both, as one: it computes the prompt and goes on with the answer."""
    PREFILL = "prefill"
    """Prompts, whose KV blocks other nodes fetch. It answers alone when no other can."""
    DECODE = "decode"
    """Answers, from KV blocks that a prefill node has computed; short prompts, too."""


class RoleWish(msgspec.Struct, frozen=True, kw_only=True):
    """The role that a planner thinks right for a node."""

    role: NodeRole
    is_suggestion: bool = False
    """True: the node tells of it in its reports and stays what it is; operators decide."""
