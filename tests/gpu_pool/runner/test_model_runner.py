"""What a sequence gets does not depend on who else is there, nor on how its work is cut."""

from pathlib import Path

import pytest
import torch

from contracts.inference import SamplingParams
from gpu_pool.attention.kv_cache import KvCache
from gpu_pool.models.decoder import PreNormDecoder
from gpu_pool.plan import ForwardPlan, NewSequence, ScheduledSequence, SequenceId
from gpu_pool.runner.group_blocks import KvGroupMemory
from gpu_pool.runner.model_runner import CreateLane, ModelRunner
from gpu_pool.worker.settings import DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.plan_driver import GREEDY, PlanDriver
from tests.gpu_pool.tiny_llama import write_tiny_llama

NUM_STREAMS = 64
NUM_TOKENS = 8
BUNDLED = Path("gpu_pool/bundled/tiny_chat")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random checkpoint."""
    path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(path)
    return path


def create_driver(folder: Path, dtype: DtypeChoice = DtypeChoice.FLOAT32) -> PlanDriver:
    """A driver over a fresh executor."""
    settings = WorkerSettings(model_dir=folder, dtype=dtype, num_blocks=600, num_threads=1)
    return PlanDriver(create_executor(settings))


def create_prompts(vocab_size: int, longest: int = 140) -> list[list[int]]:
    """Random prompts of all lengths."""
    generator = torch.Generator().manual_seed(11)
    lengths = torch.randint(1, longest, (NUM_STREAMS,), generator=generator).tolist()
    return [torch.randint(0, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def generate_alone(
    driver: PlanDriver, prompts: list[list[int]], **sampling: float
) -> list[list[int]]:
    """Outputs of each prompt with nobody beside it."""
    outputs: list[list[int]] = []
    for prompt in prompts:
        sequence_id = driver.add(prompt, _sampling(len(outputs), **sampling))
        outputs += driver.generate([sequence_id], NUM_TOKENS)
        driver.release(sequence_id)
    return outputs


def _sampling(seed: int, **fields: float) -> SamplingParams:
    """Greedy unless told otherwise."""
    return SamplingParams(**({"temperature": 0.0} | fields), seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("random", DtypeChoice.FLOAT32),
        ("bundled", DtypeChoice.FLOAT32),
        ("bundled", DtypeChoice.AUTO),
    ],
)
def test_64_streams_at_once_give_what_each_gives_alone(
    model: str, dtype: DtypeChoice, folder: Path
) -> None:
    driver = create_driver(BUNDLED if model == "bundled" else folder, dtype)
    prompts = create_prompts(driver.executor.info.vocab_size)
    alone = generate_alone(driver, prompts)
    assert len({tuple(output) for output in alone}) > NUM_STREAMS // 2
    together = [driver.add(prompt) for prompt in prompts]
    assert driver.generate(together, NUM_TOKENS, max_chunk=41) == alone


def test_sampled_streams_give_what_each_gives_alone(folder: Path) -> None:
    driver = create_driver(folder)
    prompts = create_prompts(driver.executor.info.vocab_size)[:24]
    fields = {"temperature": 1.3, "top_p": 0.95, "frequency_penalty": 0.5}
    alone = generate_alone(driver, prompts, **fields)
    together = [driver.add(prompt, _sampling(i, **fields)) for i, prompt in enumerate(prompts)]
    assert driver.generate(together, NUM_TOKENS) == alone


def test_chunks_of_any_size_give_the_same_bits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[torch.Tensor] = []
    compute = PreNormDecoder.compute_logits

    def record(model: PreNormDecoder, hidden_RD: torch.Tensor) -> torch.Tensor:
        logits = compute(model, hidden_RD)
        recorded.append(logits.clone())
        return logits

    monkeypatch.setattr(PreNormDecoder, "compute_logits", record)
    driver = create_driver(folder)
    prompt = torch.randint(0, 300, (600,), generator=torch.Generator().manual_seed(5)).tolist()
    for max_chunk in (1 << 30, 256, 97, 7):
        sequence_id = driver.add(prompt)
        driver.generate([sequence_id], 2, max_chunk=max_chunk)
        driver.release(sequence_id)
    for logits in recorded[2:]:
        assert any(torch.equal(logits, first) for first in recorded[:2])


@pytest.mark.parametrize("fields", [{}, {"temperature": 1.0}, {"presence_penalty": 1.5}])
def test_a_preempted_sequence_goes_on_where_it_was(folder: Path, fields: dict[str, float]) -> None:
    driver = create_driver(folder)
    prompt = create_prompts(300)[0]
    undisturbed = driver.add(prompt, _sampling(3, **fields))
    (expected,) = driver.generate([undisturbed], 20)
    first = driver.add(prompt, _sampling(3, **fields))
    driver.generate([first], 9)
    driver.release(first)
    resumed = driver.add(
        driver.sequences[first].token_ids,
        _sampling(3, **fields),
        num_prompt_tokens=len(prompt),
    )
    assert driver.generate([resumed], 20) == [expected]


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[KvCache]:
    """The KV memory of every runner built in the test."""
    built: list[KvCache] = []
    build = ModelRunner.__init__

    def keep(
        self: ModelRunner, groups: list[KvGroupMemory], create_lane: CreateLane, **sizes: int
    ) -> None:
        built.extend(group.cache for group in groups)
        build(self, groups, create_lane, **sizes)

    monkeypatch.setattr(ModelRunner, "__init__", keep)
    return built


@pytest.mark.parametrize("is_guarded", [True, False])
def test_what_an_earlier_owner_left_in_a_block_is_never_read(
    folder: Path, is_guarded: bool, monkeypatch: pytest.MonkeyPatch, caches: list[KvCache]
) -> None:
    driver = create_driver(folder)
    prompt = create_prompts(300)[0][:21]
    (expected,) = driver.generate([driver.add(prompt)], 20)
    with torch.inference_mode():
        caches[0].blocks[torch.tensor(driver.free)] = float("nan")
    if not is_guarded:  # the control: without the clearing, garbage does reach the answer
        monkeypatch.setattr(KvCache, "clear", lambda self, block_ids: None)
    (output,) = driver.generate([driver.add(prompt)], 20)
    assert (output == expected) is is_guarded


def test_a_plan_that_only_releases_draws_nothing(folder: Path) -> None:
    driver = create_driver(folder)
    driver.generate([driver.add([1, 2, 3])], 1)
    driver.release(SequenceId(0))
    assert driver.step([]) == []
    with pytest.raises(KeyError):  # the row is gone
        driver.step([(SequenceId(0), 1)])


def test_results_come_in_the_order_of_the_plan(folder: Path) -> None:
    driver = create_driver(folder)
    ids = [driver.add(prompt) for prompt in ([5] * 100, [6] * 3, [7] * 70, [8])]
    assert driver.step([(i, len(driver.sequences[i].token_ids)) for i in ids]) == ids
    assert driver.step([(i, 1) for i in reversed(ids)]) == ids[::-1]


def test_a_sequence_may_be_released_and_begun_again_in_one_plan(folder: Path) -> None:
    driver = create_driver(folder)
    first = driver.add([1, 2, 3])
    (expected,) = driver.generate([first], 1)
    new = NewSequence(first, (1, 2, 3), 3, 0, GREEDY)
    blocks = (driver.free.pop(),)
    work = ScheduledSequence(first, 3, (blocks,), True)
    driver.executor.submit(ForwardPlan(99, (first,), (new,), (work,)))
    assert driver.executor.collect().sampled[0].token_ids == (expected[0],)


@pytest.mark.parametrize("token_id", [-1, 300])
def test_a_token_outside_the_vocabulary_is_an_error_of_ours(folder: Path, token_id: int) -> None:
    driver = create_driver(folder)
    with pytest.raises(AssertionError, match="token id"):
        driver.generate([driver.add([1, token_id])], 1)
