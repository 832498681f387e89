"""Every kind of KV, split, says what one core alone says (fp32): whatever hits, ends or is crowded.

1,000 requests through an engine that copies between processes, 192 through the real ones.
"""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec
import pytest

from contracts.kv_transfer import TAG_BYTES, KvExported, KvGaveUp, KvLanded, KvReserved, KvRun
from gpu_pool.engine.messages import AbortSequence, AddSequence, StopImport
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.plan import SequenceId
from gpu_pool.transfer.content_tag import Tagger
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.models.test_under_the_scheduler import FAMILIES
from tests.gpu_pool.transfer.core_pair import Split
from tests.gpu_pool.transfer.peer import need_engine
from tests.gpu_pool.transfer.split_rig import HalfRig, open_pair, run_pair

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

KINDS: Final[dict[str, tuple[str, dict[str, Any]]]] = {"full": ("llama", {}), **FAMILIES}
NUM_SEEDS: Final = 168
"""Of each kind, 1,008 in all."""
NUM_REAL: Final = 16
"""By each engine, of each kind, 192 in all."""
NUM_PROMPTS: Final = 24
NUM_AT_ONCE: Final = 8
NUM_BLOCKS: Final = 24
"""So few that some have to wait or leave for others."""
SETTINGS: Final = SchedulerSettings(max_batch_tokens=96, max_chunk_tokens=37)
MAX_TOKENS: Final = 36
LENGTHS: Final = (2, 3, MAX_TOKENS)
"""Of answers; only long ones grow beyond their prompt's blocks."""
SHIFT_BYTES: Final = 64
SALTS: Final = (b"a" * 32, b"b" * 32)


def create_prompts() -> list[list[int]]:
    """Half begin alike; the common part is longer than every window."""
    prefix = create_prompt(120, 99)
    return [(prefix if i % 2 else []) + create_prompt(17 + 5 * i, i) for i in range(NUM_PROMPTS)]


def answer_alone(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """What the model says, one prompt after the other, without any cache."""
    executor = create_executor(WorkerSettings(model_dir=folder, num_blocks=400, num_threads=1))
    rig = EngineRig(SchedulerSettings(prefix_caching=False), executor.info)
    rig.executor = executor  # type: ignore[assignment]
    answers: list[list[int]] = []
    for number, prompt in enumerate(prompts):
        outcome = rig.add(create_request(number, prompt, max_tokens=MAX_TOKENS))
        rig.run()
        answers.append(outcome.token_ids)
    return answers


class Trial:
    """One split request, and what is done to it."""

    def __init__(self, pair: tuple[HalfRig, HalfRig], request: AddSequence, random: Random) -> None:
        self.split = Split(pair[0], pair[1], request)  # type: ignore[arg-type]
        self._random = random
        self.harm = random.choices(
            ["", "abort", "abort prompt", "lose", "spoil", "shift", "late"], [10, 2, 1, 1, 1, 1, 1]
        )[0]
        self.is_done = False
        if self.harm == "late":
            self.split.deadline_ms = random.randrange(1, 30)
        elif self.harm == "lose":
            self.split.deadline_ms = 100
            self.split.change = lambda exported: None
        elif self.harm == "spoil":
            self.split.change = spoil
        elif self.harm == "shift":
            self.split.change = shift

    def turn(self) -> None:
        """Aborts one half or the other at some moment."""
        if self.is_done or self._random.random() > 0.1:
            return
        split = self.split
        if self.harm == "abort" and split.decode_id:
            split.decode.send(AbortSequence(SequenceId(split.decode_id)))
            self.is_done = True
        elif self.harm == "abort prompt" and split.prefill_id:
            split.prefill.send(AbortSequence(SequenceId(split.prefill_id)))
            split.decode.send(StopImport(SequenceId(split.decode_id)))
            self.is_done = True


def spoil(exported: KvExported) -> KvExported:
    """Some tag is another's."""
    runs = [
        KvRun(run.group, run.first, run.addresses, (*run.tags[1:], bytes(TAG_BYTES)))
        for run in exported.runs
    ]
    return msgspec.structs.replace(exported, runs=tuple(runs))


def shift(exported: KvExported) -> KvExported:
    """Every block is read from beside where it lies: what comes is not what its tag proves. Blocks
    that were merely exchanged would harm little, since each key knows its own position.
    """
    runs = [
        KvRun(run.group, run.first, tuple(a + SHIFT_BYTES for a in run.addresses), run.tags)
        for run in exported.runs
    ]
    return msgspec.structs.replace(exported, runs=tuple(runs))


def run_trials(pair: tuple[HalfRig, HalfRig], folder: Path, num_trials: int) -> Counter[str]:
    """Asserts that every answer is that of one core; how many came how."""
    prompts = create_prompts()
    expected = answer_alone(folder, prompts)
    counts: Counter[str] = Counter()
    for first in range(0, num_trials, NUM_AT_ONCE):
        random = Random(first)
        trials: list[tuple[int, Trial]] = []
        for half in pair:
            if random.random() < 0.3:
                half.forget()
        for seed in range(first, min(first + NUM_AT_ONCE, num_trials)):
            number = random.randrange(NUM_PROMPTS)
            length, salt = random.choice(LENGTHS), random.choice(SALTS)
            request = create_request(0, prompts[number], max_tokens=length, salt=salt)
            trials.append((number, Trial(pair, request, Random(seed))))
            trials[-1][1].split.open()

        def turn(trials: list[tuple[int, Trial]] = trials) -> None:
            for _, trial in trials:
                trial.turn()

        run_pair(pair, [trial.split for _, trial in trials], turn)
        for number, trial in trials:
            answer = trial.split.answer
            assert answer.error is None, (trial.harm, answer)
            whole = expected[number][: trial.split.request.sampling.max_tokens]
            if trial.harm == "abort" and trial.is_done:
                assert answer.token_ids == whole[: len(answer.token_ids)]
            else:
                assert answer.token_ids == whole, (number, trial.harm, answer)
            counts["landed"] += answer.find(KvLanded) is not None
            gave_up = answer.find(KvGaveUp)
            counts["given up"] += gave_up is not None
            counts[gave_up.reason if gave_up is not None else ""] += 1
            counts[trial.harm] += trial.is_done
            reserved = answer.find(KvReserved)
            counts["hit where it answers"] += reserved is not None and reserved.first_block > 0
            if trial.split.prefill_id:
                cached = pair[1].answers[trial.split.prefill_id].num_cached_tokens
                counts["hit where it is computed"] += (cached or 0) > 0
    starts = Counter(new.sequence_id for plan in pair[0].plans for new in plan.new)
    counts["preempted"] = sum(count > 1 for count in starts.values())
    return counts


@pytest.mark.parametrize("kind", KINDS)
def test_split_answers_are_those_of_one_core(kind: str, tmp_path: Path) -> None:
    model_type, changes = KINDS[kind]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    with open_pair(folder, "memory", SETTINGS, NUM_BLOCKS) as pair:
        counts = run_trials(pair, folder, NUM_SEEDS)
    assert counts["landed"] > NUM_SEEDS / 3, counts
    assert counts["given up"] > NUM_SEEDS / 20, counts
    assert all(counts[harm] > 0 for harm in ("abort", "abort prompt")), counts
    assert all(counts[reason] > 0 for reason in ("tags", "late", "stopped")), counts
    assert counts["hit where it is computed"] > 0, counts
    assert counts["hit where it answers"] > 0, counts
    if kind != "windows only":  # a window alone needs few blocks
        assert counts["preempted"] > 0, counts


def test_without_tags_answers_would_be_of_other_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: a node that checks none says something else once anything was shifted, and goes
    on to say it, since it finds that in its cache.
    """
    monkeypatch.setattr(Tagger, "fits", lambda *_: True)
    model_type, changes = KINDS["full"]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    with (
        open_pair(folder, "memory", SETTINGS, NUM_BLOCKS) as pair,
        pytest.raises(AssertionError, match=r"assert \[.+\] == \["),
    ):
        run_trials(pair, folder, NUM_SEEDS)


@pytest.mark.parametrize("engine", ["nixl", "mooncake"])
@pytest.mark.parametrize("kind", KINDS)
def test_split_answers_are_those_of_one_core_through_real_engines(
    engine: str, kind: str, tmp_path: Path
) -> None:
    need_engine(engine)
    model_type, changes = KINDS[kind]
    folder = write_checkpoint(tmp_path, model_type, **changes)
    with open_pair(folder, engine, SETTINGS, NUM_BLOCKS) as pair:
        counts = run_trials(pair, folder, NUM_REAL)
    assert counts["landed"] > NUM_REAL / 4, counts
    assert counts["hit where it is computed"] > 0, counts
    assert all(counts[reason] > 0 for reason in ("tags", "late")), counts
