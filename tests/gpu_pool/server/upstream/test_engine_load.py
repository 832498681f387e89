"""What is told of an engine's speed, whatever requests it has."""

import pytest

from contracts.fleet import ModelLoad
from contracts.ids import ModelName
from gpu_pool.server.upstream.engine_load import EngineLoad
from gpu_pool.server.upstream.engine_metrics import ScrapedLoad


class Engine:
    """One that gives each answer a token every `token_s`, and is looked at every second."""

    def __init__(self, token_s: float = 0.05) -> None:
        """Nothing is there."""
        self.now_s = 0.0
        self.load = EngineLoad(256, lambda: self.now_s)
        self._token_s = token_s

    def run(self, num_requests: int, seconds: float, *, num_answers: int = 1) -> None:
        """So many requests at once, from their first tokens on."""
        for _ in range(num_requests):
            self.load.note_sent(10)
            for _ in range(num_answers):
                self.load.note_token()
            self.load.note_begun(10, 10, 0.1, num_answers)
        for step in range(1, round(seconds / self._token_s) + 1):
            self.now_s += self._token_s
            for _ in range(num_requests * num_answers):
                self.load.note_token()
            if step % round(1 / self._token_s) == 0:
                self.load.note_scraped(ScrapedLoad(num_requests, 0))
        for _ in range(num_requests):
            self.load.note_over(0, num_answers)

    def rest(self, seconds: int) -> None:
        """Nobody asks."""
        for _ in range(seconds):
            self.now_s += 1.0
            self.load.note_scraped(None)

    def describe(self) -> ModelLoad:
        """What is told."""
        return self.load.describe(ModelName("@a/b"), is_ready=True)


@pytest.mark.parametrize(("num_requests", "num_answers"), [(4, 1), (40, 1), (5, 8)])
def test_an_engine_is_no_faster_for_having_more_to_do(num_requests: int, num_answers: int) -> None:
    engine = Engine()
    engine.run(num_requests, 100.0, num_answers=num_answers)
    told = engine.describe()
    most_per_s = 20 * num_requests * num_answers  # the control: it depends on what there is
    assert told.decode_tokens_per_s == pytest.approx(most_per_s, rel=0.1)
    assert told.decode_step_s == pytest.approx(0.05, rel=0.05)


@pytest.mark.parametrize("rest_s", [0, 1, 3])
def test_between_short_answers_it_is_no_slower(rest_s: int) -> None:
    engine = Engine()
    for _ in range(100):
        engine.run(2, 0.5)
        engine.rest(rest_s)
    engine.rest(1)
    assert engine.describe().decode_step_s == pytest.approx(0.05, rel=0.05)


def test_requests_in_its_line_make_it_no_slower() -> None:
    engine = Engine()
    for _ in range(60):
        engine.load.note_sent(10)
    engine.run(40, 100.0)
    assert engine.describe().decode_step_s == pytest.approx(0.05, rel=0.05)


def test_prompts_of_which_an_engine_has_most_are_no_noise() -> None:
    """Some of them are computed at once, since they are cached there."""
    engine, told = Engine(), list[float]()
    for number in range(400):
        engine.load.note_sent(1)
        engine.load.note_begun(1, 10_000, 0.05 if number % 2 else 1.0, 1)
        engine.load.note_over(0, 1)
        told.append(engine.describe().prefill_tokens_per_s)
    assert max(told[200:]) < 1.1 * min(told[200:])


def test_of_an_engine_that_has_said_nothing_nothing_is_told() -> None:
    engine = Engine()
    engine.load.note_sent(10)
    engine.rest(3)
    assert engine.describe().decode_step_s == 0.0
