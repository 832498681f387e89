"""What a request without numbers has computed, or was given, is found nowhere again.

A fault in passing, which makes one token's keys and values NaN, shows in the logits when blocks
with it have long gone to the tiers, or are others', too.
"""

from pathlib import Path

import pytest
from torch import Tensor

from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.block import BlockTable
from gpu_pool.kv.host_run import Prefix
from gpu_pool.kv.kv_memory import KvMemory
from gpu_pool.kv.tiers.tier_store import TierStore
from gpu_pool.layers.vocabulary import Embedding
from tests.gpu_pool.engine.engine_rig import Outcome, assert_no_leak, create_request
from tests.gpu_pool.kv.tiers.store_nodes import wait_until
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.test_under_the_scheduler import FAMILIES, create_rig
from tests.gpu_pool.models.tier_rig import TierRig, create_settings, open_rig

PREFIX = create_prompt(600, 99)
"""More than one step computes."""
FAULTY = PREFIX[40]
GARBLED = ["internal_error"]


class Fault:
    """While it is there, a token's embedding is NaN."""

    is_there = False


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    fault, embed = Fault(), Embedding.__call__

    def garble(self: Embedding, token_ids_T: Tensor) -> Tensor:
        states_TD = embed(self, token_ids_T)
        if fault.is_there:
            states_TD = states_TD.clone()
            states_TD[token_ids_T == FAULTY] = float("nan")
        return states_TD

    monkeypatch.setattr(Embedding, "__call__", garble)
    return fault


def ask(rig: TierRig, number: int) -> Outcome:
    """What comes of the prompt where the device has nothing of it."""
    rig.forget()
    return rig.answer(create_request(number, PREFIX))


def fail(rig: TierRig) -> Outcome:
    """What comes of it while there is a fault, once all but its last piece has been kept."""
    outcome = rig.add(create_request(1, PREFIX))
    rig.step()
    wait_until(lambda: rig.figure("file").num_kept > 8)
    rig.settle()
    return outcome


@pytest.mark.parametrize(
    "family", ["llama", *(pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES)]
)
def test_blocks_that_have_left_before_are_forgotten_by_every_tier(
    family: str, tmp_path: Path, fault: Fault
) -> None:
    model_type, changes = FAMILIES.get(family, (family, {}))
    folder = write_checkpoint(tmp_path / "model", model_type, **changes)
    with open_rig(folder, create_settings(tmp_path / "kv", has_host=True)) as rig:
        fault.is_there = True
        assert fail(rig).error_codes == GARBLED
        fault.is_there = False
        wait_until(lambda: rig.figure("host").num_bytes + rig.figure("file").num_bytes == 0)
        assert not list((tmp_path / "kv").rglob("*.kv"))
        outcome = ask(rig, 2)
        assert (outcome.error_codes, outcome.num_cached_tokens) == ([], [0])
        again = ask(rig, 3)
        assert again.token_ids == outcome.token_ids
        assert again.num_cached_tokens[0] >= 96, "what was computed anew is kept"


def test_without_that_it_would_fail_again_and_again(
    llama: Path, tmp_path: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(TierStore, "disown", lambda *_: None)
    with open_rig(llama, create_settings(tmp_path)) as rig:
        fault.is_there = True
        fail(rig)
        fault.is_there = False
        assert [ask(rig, number).error_codes for number in (2, 3, 4)] == [GARBLED] * 3


def hide_nothing(self: KvMemory, table: BlockTable) -> Prefix:
    """Zeroes what nobody else uses, and does no more."""
    table.is_private = True
    return Prefix(table.account_id, table.root_key, ())


@pytest.mark.parametrize("is_hidden", [True, False])
def test_what_another_still_holds_is_found_by_nobody(
    llama: Path, fault: Fault, monkeypatch: pytest.MonkeyPatch, is_hidden: bool
) -> None:
    """One that shares the blocks outlives who fails, and leaves before it draws a token itself. In
    the control it leaves them to the next one.
    """
    if not is_hidden:
        monkeypatch.setattr(KvMemory, "disown", hide_nothing)
    rig = create_rig(llama, SchedulerSettings(max_batch_tokens=128), 400)
    fault.is_there = True
    first = rig.add(create_request(1, PREFIX[:300]))
    rig.step()
    rig.step()
    fault.is_there = False
    second = rig.add(create_request(2, PREFIX[:250] + create_prompt(200, 7)))
    while not first.reasons:
        rig.step()
    assert first.error_codes == GARBLED
    assert (second.num_cached_tokens, second.token_ids) == ([240], [])
    rig.abort(2)
    third = rig.add(create_request(3, PREFIX[:300]))
    rig.run()
    assert third.error_codes == ([] if is_hidden else GARBLED)
    assert_no_leak(rig)
