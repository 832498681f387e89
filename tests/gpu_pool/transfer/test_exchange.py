"""Two real engine cores with a real transfer engine between them: split answers are the same.

The model has layers that see everything beside layers with a window.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
import torch

from contracts.kv_transfer import KvExported, KvGaveUp, KvLanded, KvReserved, KvRun
from gpu_pool.compute_choice import DeviceChoice
from gpu_pool.engine.messages import AbortSequence, ImportBlocks, Ping
from gpu_pool.plan import SequenceId
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.models.family_checkpoint import write_checkpoint
from tests.gpu_pool.models.gemma.test_model import GEMMA3
from tests.gpu_pool.transfer.core_pair import Core, Split, create_pair, run_splits

pytestmark = pytest.mark.slow

VOCAB = 99
SALT = b"s" * 32


@pytest.fixture(
    scope="module",
    params=[DeviceChoice.CPU, pytest.param(DeviceChoice.CUDA, marks=pytest.mark.gpu)],
)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Core, Core]]:
    """Two processes, on one card where the device is one."""
    if request.param is DeviceChoice.CUDA and not torch.cuda.is_available():
        pytest.skip("NOT RUN: there is no NVIDIA GPU")
    folder = tmp_path_factory.mktemp("pair")
    model = write_checkpoint(folder, "gemma3_text", **GEMMA3)
    cores = create_pair(model, folder, "nixl", device=request.param)
    yield cores
    for core in cores:
        core.close()


def create_split(pair: tuple[Core, Core], prompt: list[int], **fields: object) -> Split:
    request = create_request(0, prompt, max_tokens=6, salt=SALT, **fields)  # type: ignore[arg-type]
    return Split(pair[0], pair[1], request)


def answer_alone(core: Core, split: Split) -> list[int]:
    """What one core says that knows nothing of the prompt."""
    request = msgspec.structs.replace(split.request, cache_salt=os.urandom(32))
    number = core.open(lambda i: msgspec.structs.replace(request, sequence_id=i))
    core.wait(lambda: core.answers[number].is_over)
    return core.answers[number].token_ids


def draw_prompt(random: Random, low: int = 20, high: int = 260) -> list[int]:
    return [random.randrange(3, VOCAB) for _ in range(random.randrange(low, high))]


def test_split_answers_are_those_of_one_core(pair: tuple[Core, Core]) -> None:
    random = Random(7)
    shared = draw_prompt(random, 100, 101)
    prompts = [draw_prompt(random) for _ in range(4)]
    prompts += [shared + draw_prompt(random, 10, 60) for _ in range(4)]  # hits on either side
    splits = [create_split(pair, prompt) for prompt in prompts]
    for split in splits[:6]:
        split.open()
    run_splits(splits[:6])
    for split in splits[6:]:
        split.open()
        run_splits([split])
    for split in splits:
        assert split.answer.error is None
        assert split.answer.token_ids == answer_alone(pair[0], split)
        assert split.answer.find(KvLanded), split.answer
    assert splits[-1].answer.find(KvReserved).first_block >= 100 // 16
    for core in pair:
        core.wait(lambda core=core: core.load.num_running == 0)


def test_a_core_whose_only_request_waits_for_blocks_answers_a_ping(
    pair: tuple[Core, Core],
) -> None:
    split = create_split(pair, draw_prompt(Random(9), 200, 201))
    split.open()
    decode = pair[0]
    decode.wait(lambda: split.answer.find(KvReserved) is not None)
    for count in (1, 2):
        decode.send(Ping())
        decode.wait(lambda count=count: decode.num_pongs == count)
    assert split.answer.num_cached_tokens is None  # it has not begun
    run_splits([split])
    assert split.answer.find(KvLanded), split.answer


def test_an_aborted_request_holds_up_nothing(pair: tuple[Core, Core]) -> None:
    split = create_split(pair, draw_prompt(Random(8), 200, 201))
    split.open()
    run_splits([split], lambda: split.answer.find(KvReserved) is not None)
    pair[0].send(AbortSequence(SequenceId(split.decode_id)))
    run_splits([split])
    run_splits([split], lambda: split.answer.find(KvGaveUp) is not None)
    after = create_split(pair, draw_prompt(Random(9)))
    after.open()
    run_splits([after])
    assert after.answer.find(KvLanded)


def spoil_tag(exported: KvExported) -> KvExported:
    """The first block's tag is another's."""
    runs = [
        KvRun(run.group, run.first, run.addresses, (b"\0" * 16, *run.tags[1:]))
        for run in exported.runs
    ]
    return msgspec.structs.replace(exported, runs=tuple(runs))


def swap_blocks(exported: KvExported) -> KvExported:
    """Every tag is right, for the block beside it."""
    runs = [
        KvRun(run.group, run.first, run.addresses[::-1], run.tags[::-1]) for run in exported.runs
    ]
    return msgspec.structs.replace(exported, runs=tuple(runs))


def shift_addresses(exported: KvExported) -> KvExported:
    """Blocks outside of what was leased."""
    runs = [
        KvRun(run.group, run.first, tuple(a + 64 for a in run.addresses), run.tags)
        for run in exported.runs
    ]
    return msgspec.structs.replace(exported, runs=tuple(runs))


@pytest.mark.parametrize("change", [spoil_tag, swap_blocks, shift_addresses])
def test_blocks_that_do_not_prove_themselves_are_computed_again(
    pair: tuple[Core, Core], change: object
) -> None:
    split = create_split(pair, draw_prompt(Random(10), 150, 200))
    split.request = msgspec.structs.replace(split.request, cache_salt=os.urandom(32))
    split.change = change  # type: ignore[assignment]
    split.open()
    run_splits([split], lambda: split.answer.is_over and bool(split.answer.find(KvGaveUp)))
    assert split.answer.find(KvGaveUp).reason in ("tags", "failed")
    assert split.answer.num_cached_tokens == 0
    assert split.answer.token_ids == answer_alone(pair[0], split)


def test_a_part_of_the_blocks_is_not_enough(pair: tuple[Core, Core]) -> None:
    split = create_split(pair, draw_prompt(Random(11), 150, 200))
    split.request = msgspec.structs.replace(split.request, cache_salt=os.urandom(32))
    split.deadline_ms = 3000
    split.change = lambda exported: msgspec.structs.replace(
        exported, runs=tuple(run for run in exported.runs if run.group == 0)
    )
    split.open()
    run_splits([split], lambda: split.answer.is_over and bool(split.answer.find(KvGaveUp)))
    assert split.answer.num_cached_tokens == 0
    assert split.answer.token_ids == answer_alone(pair[0], split)


def test_a_prefill_core_that_is_killed_costs_a_computation(
    pair: tuple[Core, Core], tmp_path: Path
) -> None:
    """The last test of the pair: its prefill core does not come back."""
    split = create_split(pair, draw_prompt(Random(12), 150, 200))
    split.request = msgspec.structs.replace(split.request, cache_salt=os.urandom(32))
    held: list[KvExported] = []
    split.change = held.append  # type: ignore[assignment]
    split.open()
    run_splits([split], lambda: any(exported.is_last for exported in held))
    pair[1].process.kill()
    pair[1].process.wait()
    for exported in held:
        pair[0].send(ImportBlocks(SequenceId(split.decode_id), exported))
    pair[0].wait(lambda: split.answer.is_over and split.answer.find(KvGaveUp) is not None)
    assert split.answer.num_cached_tokens == 0
    assert split.answer.token_ids == answer_alone(pair[0], split)
