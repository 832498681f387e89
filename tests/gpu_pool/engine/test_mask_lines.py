"""Whose mask is next, and whose are taken for quick."""

from gpu_pool.engine.mask_lines import DEAR_S, DEAR_US, PROOF, MaskLines
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.engine.list_matcher import Lists


def test_one_dear_mask_and_an_account_has_to_prove_itself_again() -> None:
    rig = EngineRig(create_matcher=Lists)
    rig.add(create_request(1, [1], grammar="5"))
    (sequence,) = rig.scheduler.books
    lines = MaskLines()
    lines.enter(sequence)
    lines.push(sequence)

    def note(count: int, cost_us: int, now_s: float) -> None:
        for _ in range(count):
            lines.note(sequence.account_id, cost_us, now_s)

    note(PROOF - 1, 100, 0.0)
    assert lines.take_quick(0.0) is None
    note(1, DEAR_US, 0.0)
    note(PROOF, 100, 0.0)
    assert lines.take_quick(DEAR_S - 1) is None
    assert lines.take_quick(DEAR_S) is sequence


def test_a_higher_priority_goes_first() -> None:
    lines = MaskLines()
    rig = EngineRig(create_matcher=Lists)
    for n, priority in ((1, 0), (2, 0), (3, 5)):
        rig.add(create_request(n, [n], grammar="5", priority=priority))
    sequences = {one.sequence_id: one for one in rig.scheduler.books}
    for one in sequences.values():
        lines.enter(one)
        lines.push(one)
    order = [lines.take(1) for _ in range(4)]
    assert [one and one.sequence_id for one in order] == [3, 1, 2, None]
