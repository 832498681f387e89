"""One account's prompts that are never sent leave another's room to land, at real models.

Read next: `gpu_pool.kv.host_pool` (who may have how much), `split_rig`.
"""

from pathlib import Path

import pytest

from contracts.ids import AccountId
from contracts.kv_transfer import KvGaveUp, KvLanded, KvReserved
from gpu_pool.engine.messages import KvArrival
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.host_pool import HostPool
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.kv.test_landing import share_nothing
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.transfer.core_pair import FAR_MS, Split, _change
from tests.gpu_pool.transfer.split_rig import now_ms, open_pair, run_pair, settle

GREEDY, MODEST = AccountId("a" * 32), AccountId("b" * 32)


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_flood_of_landings_leaves_another_account_its_room(
    is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The greedy one's prompts wait for blocks that nobody computes. In the control, where who
    comes first has all, the modest one's prompt is computed where it is answered.
    """
    if not is_shared:
        monkeypatch.setattr(HostPool, "_bound_share", share_nothing)
    folder = write_checkpoint(tmp_path, "llama")
    with open_pair(folder, "memory", SchedulerSettings(max_batch_tokens=64), 400) as pair:
        decode = pair[0]
        flood: list[int] = []
        while not any(decode.answers[number].find(KvGaveUp) for number in flood):
            request = create_request(
                0, create_prompt(400, len(flood)), max_tokens=1, account_id=GREEDY
            )
            arrival = KvArrival(now_ms() + FAR_MS)
            flood.append(decode.open(lambda i, r=request, a=arrival: _change(r, i, arrival=a)))
            settle(pair, lambda: bool(decode.answers[flood[-1]].events))
        assert decode.answers[flood[-1]].find(KvGaveUp) == KvGaveUp("declined")
        assert any(decode.answers[number].find(KvReserved) for number in flood)
        request = create_request(0, create_prompt(100, 999), max_tokens=4, account_id=MODEST)
        split = Split(pair[0], pair[1], request)  # type: ignore[arg-type]
        split.open()
        run_pair(pair, [split], lambda: None)
        assert bool(split.answer.find(KvLanded)) is is_shared
        assert len(split.answer.token_ids) == 4
        for number in flood:
            decode.abort(number)  # type: ignore[arg-type]
