"""KV that comes back from memory and from files is what the model computed: answers stay.

Whose it is not nobody gets, of private requests there is nothing, and what was damaged is a miss.
"""

import itertools
import threading
from pathlib import Path

import pytest
import structlog

from contracts.grant import RetentionClass
from gpu_pool.engine.messages import AddSequence
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.kv.tiers.block_file import round_up
from gpu_pool.kv.tiers.file_tier import FileTier
from gpu_pool.kv.tiers.namespace import BlockName, TierNamespace
from gpu_pool.node_clock import read_node_ms
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.test_under_the_scheduler import FAMILIES
from tests.gpu_pool.models.tier_rig import create_settings, open_rig
from tests.gpu_pool.tiny_llama import write_tiny_llama

pytestmark = pytest.mark.slow

NUM_PROMPTS = 4
PREFIX = create_prompt(150, 99)


def create_requests(first: int = 0) -> list[AddSequence]:
    """Some share a prefix, the others have a long one of their own."""
    return [
        create_request(
            first + i,
            (PREFIX if i % 2 else create_prompt(100, i)) + create_prompt(10 + 9 * i, i),
            max_tokens=8,
        )
        for i in range(NUM_PROMPTS)
    ]


def compute_answers(folder: Path) -> list[list[int]]:
    """What the model answers without any cache."""
    executor = create_executor(WorkerSettings(model_dir=folder, num_blocks=400, num_threads=1))
    rig = EngineRig(SchedulerSettings(prefix_caching=False), executor.info)
    rig.executor = executor  # type: ignore[assignment]
    outcomes = [rig.add(request) for request in create_requests()]
    rig.run()
    return [outcome.token_ids for outcome in outcomes]


@pytest.mark.parametrize("family", ["llama", *FAMILIES])
def test_answers_from_the_tiers_are_those_without(family: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    if family == "llama":
        write_tiny_llama(folder)
    else:
        model_type, changes = FAMILIES[family]
        write_checkpoint(folder, model_type, **changes)
    expected = compute_answers(folder)
    files = tmp_path / "kv"
    with open_rig(folder, create_settings(files, has_host=True)) as rig:
        for first in (0, 10):
            rig.forget()
            outcomes = [rig.answer(request) for request in create_requests(first)]
            assert [outcome.token_ids for outcome in outcomes] == expected
        assert all(outcome.num_cached_tokens[0] >= 96 for outcome in outcomes)
        assert rig.figure("host").num_fetched > 0
        assert rig.figure("file").num_kept > 0
    with open_rig(folder, create_settings(files)) as rig:  # a new life, without the memory
        outcome = rig.answer(create_requests()[0])
        assert outcome.token_ids == expected[0]
        assert outcome.num_cached_tokens == [0], "the drive had not been measured yet"
        rig.await_rate("file")
        rig.forget()
        outcomes = [rig.add(request) for request in create_requests(10)]
        rig.settle()
        assert [outcome.token_ids for outcome in outcomes] == expected
        assert all(outcome.num_cached_tokens[0] >= 96 for outcome in outcomes)
        assert rig.figure("file").num_fetched > 0
        assert rig.figure("file").num_damaged == 0


def test_what_staging_memory_does_not_hold_at_once_leaves_and_lands_in_parts(
    llama: Path, tmp_path: Path
) -> None:
    """A prompt of 9 blocks through memory for 4: copies follow while the answer is generated."""
    request = create_request(1, PREFIX, max_tokens=60)
    with open_rig(llama, create_settings(tmp_path, staging_tokens=64)) as rig:
        expected = rig.answer(request).token_ids
        rig.forget()
        assert rig.figure("file").num_kept > 4
        outcome = rig.answer(create_request(2, PREFIX, max_tokens=60))
        assert outcome.token_ids == expected
        assert outcome.num_cached_tokens == [64]


def test_of_a_drive_that_hangs_in_the_middle_what_has_come_is_used(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer waits for none of the reads that hang; until they are over nobody else gets the
    memory that they write to.
    """
    goes_on = threading.Event()
    num_reads = itertools.count()
    fetch = FileTier.fetch

    def hang(tier: FileTier, space: TierNamespace, name: BlockName, block: memoryview) -> bool:
        assert next(num_reads) < 4 or goes_on.wait(60)
        return fetch(tier, space, name, block)

    with open_rig(llama, create_settings(tmp_path)) as rig:
        expected = rig.answer(create_request(1, PREFIX)).token_ids
        rig.forget()
        rig.tokens_per_s = 40.0  # a twentieth of computing is 0.18 s, for four reads
        monkeypatch.setattr(FileTier, "fetch", hang)
        outcome = rig.add(create_request(2, PREFIX))
        while not outcome.reasons:
            rig.now_ms = read_node_ms()
            rig.step()
        assert outcome.token_ids == expected
        assert outcome.num_cached_tokens == [64]
        passage = rig.scheduler.books.passage
        assert passage.count_held(0) == 5, "nobody gets those while they may be written to"
        goes_on.set()
        rig.settle()
        assert passage.count_held(0) == 0


def test_a_directory_that_cannot_be_had_costs_the_tier_and_not_the_model(
    llama: Path, tmp_path: Path
) -> None:
    """Somebody has put a file where the directory should be."""
    path = tmp_path / "kv"
    path.write_text("in the way")
    with structlog.testing.capture_logs() as lines, open_rig(llama, create_settings(path)) as rig:
        assert len(rig.answer(create_request(1, PREFIX)).token_ids) == 4
        assert rig.tiers.store.describe() == ()
    assert [line["event"] for line in lines] == ["KV is not kept in files"]


def test_another_salt_finds_nothing_and_a_rotated_one_neither(llama: Path, tmp_path: Path) -> None:
    settings = create_settings(tmp_path, has_host=True)
    with open_rig(llama, settings) as rig:
        rig.answer(create_request(1, PREFIX, salt=b"A" * 32))
        for number, salt in enumerate((b"B" * 32, b"A" * 31 + b"a", b"A" * 33), 10):
            rig.forget()
            assert rig.answer(create_request(number, PREFIX, salt=salt)).num_cached_tokens == [0]
        rig.forget()
        assert rig.answer(create_request(2, PREFIX, salt=b"A" * 32)).num_cached_tokens == [144]


def test_nothing_of_a_private_request_leaves_the_device_or_comes_from_elsewhere(
    llama: Path, tmp_path: Path
) -> None:
    with open_rig(llama, create_settings(tmp_path, has_host=True)) as rig:
        private = create_request(1, PREFIX, retention=RetentionClass.NONE)
        rig.answer(private)
        assert (rig.figure("host").num_bytes, rig.figure("file").num_bytes) == (0, 0)
        assert list(tmp_path.rglob("*.kv")) == []
        rig.answer(create_request(2, PREFIX))
        assert rig.figure("file").num_bytes > 0, "the control"
        rig.forget()
        again = create_request(3, PREFIX, retention=RetentionClass.NONE)
        assert rig.answer(again).num_cached_tokens == [0], "not even under the same salt"


@pytest.mark.parametrize("damage", ["flip", "cut", "swap"])
def test_damaged_files_change_no_answer(llama: Path, tmp_path: Path, damage: str) -> None:
    with open_rig(llama, create_settings(tmp_path)) as rig:
        expected = rig.answer(create_request(1, PREFIX)).token_ids
        rig.forget()
        files = sorted(tmp_path.rglob("*.kv"))
        contents = [bytearray(path.read_bytes()) for path in files]
        for number, path in enumerate(files):
            content = contents[number]
            if damage == "flip":
                content[100] ^= 1
            if damage == "swap":
                content = contents[number - 1]
            path.write_bytes(content[: 4096 if damage == "cut" else len(content)])
        outcome = rig.answer(create_request(2, PREFIX))
        assert outcome.token_ids == expected
        assert outcome.num_cached_tokens == [0]
        assert rig.figure("file").num_damaged > 0
        rig.forget()
        assert rig.answer(create_request(3, PREFIX)).token_ids == expected


def test_what_stands_before_a_damaged_block_is_of_use(llama: Path, tmp_path: Path) -> None:
    with open_rig(llama, create_settings(tmp_path)) as rig:
        request = create_request(1, PREFIX)
        expected = rig.answer(request).token_ids
        rig.forget()
        _, rows = rig.list_rows(request)
        path = next(tmp_path.rglob(f"{rows[4][0].name.text}.kv"))
        path.write_bytes(bytes(path.stat().st_size))
        outcome = rig.answer(create_request(2, PREFIX))
        assert (outcome.num_cached_tokens, outcome.token_ids) == ([64], expected)
        for number, num_cached in ((3, 64), (4, 144)):  # the next to compute it closes the gap
            rig.forget()
            assert rig.answer(create_request(number, PREFIX)).num_cached_tokens == [num_cached]


def count_canaries(files: list[bytes], blocks: list[bytes]) -> int:
    """Pieces of plain KV, 32 bytes each, that stand in any file."""
    pieces = {block[start : start + 32] for block in blocks for start in range(0, len(block), 512)}
    return sum(piece in content for piece in pieces for content in files)


def seal_nothing(
    self: TierNamespace, name: BlockName, block: memoryview, sealed: memoryview
) -> int:
    sealed[32 : 32 + len(block)] = block
    return round_up(len(block))


@pytest.mark.parametrize("is_sealed", [True, False])
def test_files_hold_nothing_of_a_prompt(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sealed: bool
) -> None:
    """Neither KV nor tokens; the control writes what it is given."""
    if not is_sealed:
        monkeypatch.setattr(TierNamespace, "seal", seal_nothing)
    with open_rig(llama, create_settings(tmp_path, has_host=True)) as rig:
        request = create_request(1, PREFIX, salt=b"the salt of account A, 32 bytes.")
        rig.answer(request)
        blocks = rig.read_kept(request)
    files = [path.read_bytes() for path in tmp_path.rglob("*.kv")]
    assert len(files) >= 8
    assert len(blocks) == 9
    assert (count_canaries(files, blocks) == 0) is is_sealed
    tokens = b"".join(token.to_bytes(4, "little") for token in PREFIX)
    names = "".join(str(path) for path in tmp_path.rglob("*"))
    for secret in (tokens[:32], request.cache_salt):
        assert not any(secret in content for content in files)
        assert secret.hex() not in names
    assert request.account_id not in names
