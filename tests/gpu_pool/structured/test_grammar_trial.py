"""Trials: hostile grammars fail alone, in bounded time, whatever they do to their process."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.errors import InvalidRequest, PoolSaturated, UnsupportedFeature
from contracts.ids import AccountId
from gpu_pool.fair_places import FairPlaces
from gpu_pool.structured import grammar_trial
from gpu_pool.structured.grammar_text import AnswerGrammar, write_grammar
from gpu_pool.structured.grammar_trial import GrammarTrial
from gpu_pool.structured.schema_check import check_schema
from gpu_pool.structured.trial_process import TrialAnswer, TrialSettings
from tests.fixtures.random_checkpoint import VOCAB_SIZE
from tests.gpu_pool.structured.walks import TOKENIZER


def write(schema: object) -> str:
    """The grammar of `schema`, checked as a request's is."""
    checked = check_schema(json.dumps(schema), "response_format")
    return write_grammar(AnswerGrammar(None, checked, None))


ACCOUNT = AccountId("a" * 32)
GOOD = write({"type": "object", "properties": {"a": {"type": "integer"}}})


@pytest.fixture
def settings(tmp_path: Path) -> TrialSettings:
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(str(path))
    return TrialSettings(str(path), VOCAB_SIZE, (2,))


@pytest.fixture
async def trial(settings: TrialSettings) -> AsyncIterator[GrammarTrial]:
    trial = GrammarTrial(settings)
    yield trial
    await trial.close()


HOSTILE = {
    "a step of a million": {"type": "integer", "multipleOf": 999983, "minimum": -(10**11)},
    "two thousand properties": {
        "type": "object",
        "properties": {f"property {i}": {"type": "string"} for i in range(4000)},
    },
    "a product of choices": {
        "allOf": [
            {"anyOf": [{"properties": {f"{c}{i}": {"type": "integer"}}} for c in "ab"]}
            for i in range(16)
        ]
    },
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_schema_that_costs_too_much_is_refused_and_the_next_is_not(
    trial: GrammarTrial, name: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        await trial.check(write(HOSTILE[name]), "tools", ACCOUNT)
    assert refusal.value.param == "tools"
    await trial.check(GOOD, "tools", ACCOUNT)


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "((a{1,100}){1,100}){1,100}",
        "((a{1,1000}){1,1000}){1,1000}",
        "(x+x+)+y",
        "(.*a.*){15}b",
        ".*a.{20}",
        "(a?){40}a{40}",
        "(.*)*" * 50,
        "(a|b|c|d|e){1000,2000}",
    ],
)
async def test_hostile_patterns_end_in_bounded_time(trial: GrammarTrial, pattern: str) -> None:
    async with asyncio.timeout(60):  # with room for a machine that does other things
        with contextlib.suppress(InvalidRequest):  # most are cheap; what they accept is followed
            await trial.check(
                write({"type": "string", "pattern": pattern}), "response_format", ACCOUNT
            )
        await trial.check(GOOD, "response_format", ACCOUNT)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#"},
    ],
)
async def test_references_without_an_end_are_refused(trial: GrammarTrial, schema: object) -> None:
    with pytest.raises(InvalidRequest):
        await trial.check(write(schema), "response_format", ACCOUNT)
    await trial.check(GOOD, "response_format", ACCOUNT)


async def test_a_refusal_says_why(trial: GrammarTrial) -> None:
    with pytest.raises(InvalidRequest, match="Unknown format: colour"):
        await trial.check(write({"type": "string", "format": "colour"}), "response_format", ACCOUNT)


async def test_a_process_that_hangs_is_killed_at_its_deadline(
    settings: TrialSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = GrammarTrial(settings)
    await trial.check(GOOD, "tools", ACCOUNT)
    (process,) = trial._idle
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(grammar_trial, "DEADLINE_S", 0.2)
    with pytest.raises(InvalidRequest, match="too complex"):
        await trial.check(GOOD, "tools", ACCOUNT)
    assert process.returncode is not None
    await trial.close()


class Impatient(GrammarTrial):
    """With the defect that whoever leaves takes the process along."""

    async def _see_through(self, grammar: bytes) -> TrialAnswer | None:
        return await self._try(grammar)


@pytest.mark.parametrize("kind", [GrammarTrial, Impatient])
async def test_whoever_leaves_costs_nobody_a_process(
    settings: TrialSettings, kind: type[GrammarTrial]
) -> None:
    trial = kind(settings)
    await trial.check(GOOD, "tools", ACCOUNT)
    (process,) = trial._idle
    os.kill(process.pid, signal.SIGSTOP)  # it is at work for a while
    leaving = asyncio.create_task(trial.check(GOOD, "tools", ACCOUNT))
    for _ in range(9):
        await asyncio.sleep(0)
    assert not trial._idle
    os.kill(process.pid, signal.SIGCONT)
    leaving.cancel()  # before its answer can be read
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert (trial._idle == [process]) is (kind is GrammarTrial)
    await trial.close()


async def test_whoever_is_cancelled_twice_kills_it(settings: TrialSettings) -> None:
    trial = GrammarTrial(settings)
    await trial.check(GOOD, "tools", ACCOUNT)
    (process,) = trial._idle
    os.kill(process.pid, signal.SIGSTOP)
    leaving = asyncio.create_task(trial.check(GOOD, "tools", ACCOUNT))
    for _ in range(9):
        await asyncio.sleep(0)
    for _ in range(2):
        leaving.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert process.returncode is not None
    assert (trial._places._num_free, trial._places._num_wanting) == (2, {})


async def test_a_process_that_was_killed_is_replaced(trial: GrammarTrial) -> None:
    await trial.check(GOOD, "tools", ACCOUNT)
    (process,) = trial._idle
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    await trial.check(GOOD, "tools", ACCOUNT)


async def test_too_many_at_once_are_sent_elsewhere(trial: GrammarTrial) -> None:
    trial._places = FairPlaces(2, 3, 3, time.monotonic)
    outcomes = await asyncio.gather(
        *(trial.check(GOOD, "tools", ACCOUNT) for _ in range(5)), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) == 3
    assert sum(isinstance(outcome, PoolSaturated) for outcome in outcomes) == 2


async def test_a_vocabulary_without_masks_is_said_to_have_none(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text('{"model": {"type": "Other"}}', encoding="utf-8")
    trial = GrammarTrial(TrialSettings(str(path), 10, (0,)))
    with pytest.raises(UnsupportedFeature, match="masks"):
        await trial.check(GOOD, "tools", ACCOUNT)
    await trial.close()
