"""Patterns for modules mean what they mean to `re`, and none of them takes for ever."""

import random
import re
import subprocess
import sys
from typing import Final

import pytest

from gpu_pool.models.errors import CheckpointError
from gpu_pool.weights.formats.name_pattern import (
    MAX_NAME_CHARS,
    MAX_STEPS,
    MAX_WAYS,
    NamePattern,
    read_pattern,
)

ENDLESS: Final = ["(a|a)*b", "(?:a+)+b", "(a|aa)*(a|aa)*b", ".*" * 12 + "b", "(a?){0,600}b"]
"""What `re` does not get to the end of with a name of the longest kind."""
USUAL: Final = [
    r".*lm_head",
    r".*mlp\.(gate|up|gate_up|down)_proj.*",
    r"model\.layers\.\d+\.self_attn\.(q|k|v)_proj$",
    r"model\.layers\.(?:[0-9]|1[0-2])\..*(?<!shared)_expert.*",
    r"^(?!.*vision).*feed_forward.*",
]


def write_expression(random: random.Random, depth: int) -> str:
    """An expression with whatever is supported."""
    kind = random.randrange(12 if depth else 4)
    inner = [write_expression(random, depth - 1) for _ in range(2)] if kind > 3 else []
    if kind < 3:
        return random.choice(["a", "b", ".", r"\."])
    if kind == 3:
        return random.choice(["[ab]", "[^a]", r"\d", r"\W", "^", "$", r"\b", r"\Z", "[a-b.]"])
    if kind < 7:
        return "".join(inner)
    if kind == 7:
        return f"(?:{inner[0]}|{inner[1]})"
    if kind == 8:
        return f"({inner[0]})" + random.choice(["*", "+", "?", "{1,2}", "{2}", "*?", "{0,3}"])
    if kind == 9:
        return random.choice(["(?=", "(?!"]) + inner[0] + ")"
    if kind == 10:
        return random.choice(["(?<=b.)", "(?<!a)", "(?s:.)"])
    return f"(?i:{inner[0]})"


def test_ways_that_are_followed_at_once_end_where_those_end_that_are_tried() -> None:
    chance = random.Random(7)
    num_matched = num_followed = 0
    for _ in range(4000):
        text = write_expression(chance, 4)
        try:
            tried, followed = re.compile(text), NamePattern(text)
        except re.error:  # a look behind of no fixed width, repeats in repeats in repeats
            continue
        followed._simple = None
        num_followed += 1
        for _ in range(4):
            name = "".join(chance.choice("abA.1\n") for _ in range(chance.randrange(9)))
            is_match = tried.match(name) is not None
            assert followed.matches(name) is is_match, (text, name)
            num_matched += is_match
    assert num_followed > 3000
    assert 2000 < num_matched < 14_000


@pytest.mark.parametrize("text", ENDLESS)
def test_an_expression_that_backtracks_without_end_is_answered(text: str) -> None:
    pattern = read_pattern(text)
    longest = "a" * MAX_NAME_CHARS
    assert pattern._part.num_ways > MAX_WAYS
    assert pattern._part.num_steps <= MAX_STEPS
    assert not pattern.matches(longest)
    assert pattern.matches(longest[:-1] + "b")


@pytest.mark.parametrize("text", ENDLESS[:2])
def test_re_would_be_at_it_still(text: str) -> None:
    code = f"import re; re.match({text!r}, 'a' * {MAX_NAME_CHARS})"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", code], timeout=3, check=True)


@pytest.mark.parametrize("text", USUAL)
def test_what_checkpoints_say_means_the_same(text: str) -> None:
    pattern, tried = read_pattern(text), re.compile(text)
    layers = [f"model.layers.{layer}" for layer in (0, 12, 13)]
    ends = ["mlp.gate_up_proj", "self_attn.k_proj", "feed_forward.x", "some_expert.y"]
    names = [f"{layer}.{end}" for layer in layers for end in [*ends, "shared_expert.y"]]
    names += ["lm_head", "vision.feed_forward", "language.lm_head"]
    expected = [tried.match(name) is not None for name in names]
    assert [pattern.matches(name) for name in names] == expected
    assert 0 < sum(expected) < len(names)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(((a*)*)*)*b", "too many steps"),
        ("(?!(?!(?!a)))", "too many steps"),
        ("(?:" * 50 + "a" + ")*" * 50, "too many steps"),
        (r"(a)\1", "groupref is not supported"),
        ("(?m)^a", "MULTILINE is not supported"),
        ("(?<=a*)b", "look-behind"),
    ],
)
def test_what_cannot_be_followed_in_time_is_refused(text: str, said: str) -> None:
    with pytest.raises(re.error, match=said):
        NamePattern(text)


def test_a_name_that_no_module_has_is_refused() -> None:
    with pytest.raises(CheckpointError, match="too long"):
        read_pattern(".*").matches("a" * (MAX_NAME_CHARS + 1))
