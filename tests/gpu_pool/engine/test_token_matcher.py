"""Answers that have to match a grammar: what is drawn, when they end, what goes wrong."""

import pytest

from contracts.inference import FinishReason
from gpu_pool.engine.executor_double import create_double_info
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.engine.token_matcher import TokenMatcher
from tests.gpu_pool.engine.engine_rig import EngineRig, create_request
from tests.gpu_pool.engine.list_matcher import Lists


class Lost(Lists):
    """A matcher whose grammar is too complex to be followed."""

    @property
    def has_given_up(self) -> bool:
        return True


class Forgetful(Lists):
    """A matcher with a defect: it accepts nothing of what its mask allows."""

    def accept(self, token_id: int) -> bool:
        return False


@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_an_answer_has_only_allowed_tokens_and_ends_with_its_grammar(max_in_flight: int) -> None:
    rig = EngineRig(info=create_double_info(max_in_flight=max_in_flight), create_matcher=Lists)
    bound = rig.add(create_request(1, [1, 2, 3], max_tokens=9, grammar="5|6 7 8|9|10"))
    free_request = create_request(2, [1, 2, 3], max_tokens=9)
    free = rig.add(free_request)
    rig.run()
    first, second, third = bound.token_ids
    assert (first in (5, 6), second, third in (8, 9, 10)) == (True, 7, True)
    assert bound.reasons == [FinishReason.STOP]
    assert free.token_ids == rig.predict(free_request)


def test_what_comes_first_ends_the_answer_the_grammar_or_the_number_of_tokens() -> None:
    rig = EngineRig(create_matcher=Lists)
    cut = rig.add(create_request(1, [1], max_tokens=2, grammar="5 6 7"))
    rig.run()
    assert (cut.token_ids, cut.reasons) == ([5, 6], [FinishReason.LENGTH])


def test_an_end_of_sequence_token_that_the_grammar_allows_ends_the_answer() -> None:
    rig = EngineRig(create_matcher=Lists)
    ended = rig.add(create_request(1, [1], ignore_eos=False, grammar="5 0 7"))
    rig.run()
    assert (ended.token_ids, ended.reasons) == ([5], [FinishReason.STOP])


def test_a_preempted_answer_goes_on_where_its_grammar_stood() -> None:
    info = create_double_info(num_blocks=7, max_in_flight=2)
    limits = SchedulerSettings(max_running=3)
    rig = EngineRig(limits, info, Lists)
    grammar = " ".join(f"{n}|{n + 100}|{n + 200}" for n in range(1, 11))
    answers = [
        rig.add(create_request(n, [n] * 4, max_tokens=10, grammar=grammar)) for n in (1, 2, 3)
    ]
    rig.run()
    assert sum(len(plan.new) for plan in rig.plans) > len(answers), "nobody was preempted"
    for answer in answers:
        assert [token_id % 100 for token_id in answer.token_ids] == list(range(1, 11))
        assert answer.reasons == [FinishReason.STOP]


@pytest.mark.parametrize(
    ("grammar", "create_matcher", "code", "told"),
    [
        ("(", Lists, "invalid_request", []),
        ("5 6", Lost, "constraint_unmet", []),
        ("5 6", Forgetful, "internal_error", [5]),
    ],
)
def test_a_grammar_that_fails_harms_only_its_own_request(
    grammar: str, create_matcher: type[Lists], code: str, told: list[int]
) -> None:
    rig = EngineRig(create_matcher=create_matcher)
    failed = rig.add(create_request(1, [1, 2], grammar=grammar))
    neighbour = create_request(2, [1, 2])
    whole = rig.add(neighbour)
    rig.run()
    assert failed.error_codes == [code]
    assert failed.token_ids == told
    assert whole.token_ids == rig.predict(neighbour)


def test_a_core_without_matchers_refuses_grammars() -> None:
    rig = EngineRig()
    refused = rig.add(create_request(1, [1, 2], grammar="5"))
    assert refused.error_codes == ["unsupported_feature"]


def test_the_double_of_this_test_is_a_token_matcher() -> None:
    matcher: TokenMatcher = Lists("5")
    assert matcher.fill_mask()[0] == 1 << 5
