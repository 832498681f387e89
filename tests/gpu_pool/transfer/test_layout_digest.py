"""Blocks move between equal layouts only; a divided model's is another, and its blocks stay."""

from dataclasses import replace

import msgspec
import pytest

from contracts.errors import TransferFailed
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.server.kv_ticket_fit import check_fit
from gpu_pool.transfer.exchange import create_exchange, digest_layout
from gpu_pool.transfer_settings import TransferSettings
from tests.gpu_pool.server.test_ticket_gate import READY, TICKET


@pytest.mark.parametrize("shape", [(2, 1), (1, 2), (2, 2)])
def test_a_layout_names_the_parallel_shape(shape: tuple[int, int]) -> None:
    whole = create_double_info()
    divided = replace(whole, num_tensor_ranks=shape[0], num_stages=shape[1])
    assert digest_layout(replace(whole)) == digest_layout(whole)  # the control
    assert digest_layout(divided) != digest_layout(whole)
    ticket = msgspec.structs.replace(TICKET, layout=digest_layout(divided))
    assert READY.kv_facts is not None
    facts = msgspec.structs.replace(READY.kv_facts, layout=digest_layout(whole))
    with pytest.raises(TransferFailed, match="lay out KV blocks differently"):
        check_fit(ticket, msgspec.structs.replace(READY, kv_facts=facts))


def test_blocks_of_a_divided_model_do_not_move() -> None:
    info = replace(create_double_info(), num_tensor_ranks=2)
    assert create_exchange(TransferSettings(), info, (), lambda: 0, lambda: None) is None
    ready = msgspec.structs.replace(READY, kv_facts=None)
    with pytest.raises(TransferFailed, match="do not move"):
        check_fit(TICKET, ready)
