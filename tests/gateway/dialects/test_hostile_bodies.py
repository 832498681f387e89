"""Bodies from strangers, in every dialect: a request or a refusal, and never anything else."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from contracts.codec import decode_request, encode_request
from contracts.errors import InvalidRequest, RequestError
from contracts.inference import NodeRequest
from gateway.dialects import strict_json
from gateway.dialects.anthropic_messages import ANTHROPIC_MESSAGES, MessagesBody
from gateway.dialects.completions import COMPLETIONS, CompletionRequest
from gateway.dialects.openai_chat import OPENAI_CHAT, ChatCompletionRequest
from gateway.dialects.responses import RESPONSES, ResponsesBody
from gateway.dialects.workers_ai import WORKERS_AI
from gateway.dialects.workers_ai_input import ModelAndInput, TextGenerationInput
from tests.gateway.dialects.dialect_words import MODEL, parse_body

NUM_KEYS = 200_000
Parse = Callable[[bytes], NodeRequest]


def parse_run(body: bytes) -> NodeRequest:
    """`/ai/run/{model}`."""
    return parse_body(WORKERS_AI, body, MODEL).request


def parse_run_named(body: bytes) -> NodeRequest:
    """`/ai/run`, the body inside the input."""
    named = b'{"model":"%b","input":%b}' % (MODEL.encode(), body)
    return parse_body(WORKERS_AI, named).request


def parse_chat(body: bytes) -> NodeRequest:
    """`/ai/v1/chat/completions`."""
    return parse_body(OPENAI_CHAT, body).request


def parse_completions(body: bytes) -> NodeRequest:
    """`/ai/v1/completions`."""
    return parse_body(COMPLETIONS, body).request


def parse_responses(body: bytes) -> NodeRequest:
    """`/ai/v1/responses`."""
    return parse_body(RESPONSES, body).request


def parse_messages(body: bytes) -> NodeRequest:
    """`/ai/v1/messages`."""
    return parse_body(ANTHROPIC_MESSAGES, body).request


PARSERS = [
    *(parse_run, parse_run_named, parse_chat, parse_completions, parse_responses, parse_messages),
]
MESSAGES = b'"messages":[{"role":"user","content":"Hi"}]'
NAMED = b'"model":"%b"' % MODEL.encode()
PARTS: dict[Parse, dict[str, bytes]] = {
    parse_run: {"messages": MESSAGES},
    parse_run_named: {"messages": MESSAGES},
    parse_chat: {"messages": MESSAGES, "model": NAMED},
    parse_completions: {"prompt": b'"prompt":"Hi"', "model": NAMED},
    parse_responses: {"input": b'"input":"Hi"', "model": NAMED},
    parse_messages: {"messages": MESSAGES, "model": NAMED, "max_tokens": b'"max_tokens":9'},
}
"""What a plain body must have, by the field's name."""
PLAIN = {parse: b",".join(parts.values()) for parse, parts in PARTS.items()}
KINDS: dict[Parse, type[msgspec.Struct]] = {
    parse_run: TextGenerationInput,
    parse_chat: ChatCompletionRequest,
    parse_completions: CompletionRequest,
    parse_responses: ResponsesBody,
    parse_messages: MessagesBody,
}


def list_fields(parse: Parse) -> list[str]:
    """The names that a body's outermost object may have."""
    return [field.encode_name for field in msgspec.structs.fields(KINDS[parse])]


FIELDS = [(parse, name) for parse in KINDS for name in list_fields(parse)]


def create_body(parse: Parse, name: str, value: bytes) -> bytes:
    """A plain request with one field set to `value`, in place of its own if it has one."""
    pieces = PARTS[parse] | {name: b'"%b":%b' % (name.encode(), value)}
    return b"{%b}" % b",".join(pieces.values())


def is_served(parse: Parse, body: bytes) -> bool:
    """True for a request that a node can read, False for a refusal; all else is a defect."""
    try:
        request = parse(body)
    except RequestError as error:
        return not error.message.encode()  # it can be sent: no lone surrogate
    assert decode_request(encode_request(request)).model == MODEL
    return True


@pytest.mark.parametrize("parse", PARSERS)
def test_the_plain_body_is_served(parse: Parse) -> None:
    assert is_served(parse, b"{%b}" % PLAIN[parse])  # the control of all that follows


NASTY: dict[str, bytes] = {
    "NaN": b"NaN",
    "Infinity": b"Infinity",
    "1e999": b"1e999",
    "-1e999": b"-1e999",
    "5,000 digits": b"9" * 5_000,
    "5,000 negative digits": b"-" + b"9" * 5_000,
    "5,000 digits and a fraction": b"9" * 5_000 + b".5",
    "deep arrays": b"[" * 10_000 + b"]" * 10_000,
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "deep and open": b"[" * 100_000,
    "wrong UTF-8": b'"\xff"',
    "a surrogate as UTF-8": b'"\xed\xa0\x80"',
    "a lone surrogate": b'"\\ud800"',
    "a lone low surrogate": b'"\\udfff!"',
    "surrogates in the wrong order": b'"\\udc00\\ud800"',
    "a control character": b'"\x01"',
}
NOT_SERVED = {name for name in NASTY if "digits" not in name}
NOT_JSON = NOT_SERVED - {"1e999", "-1e999"}
"""What is wrong even where nobody looks; a number out of range is at least a number."""


@pytest.mark.parametrize(
    ("parse", "field"), FIELDS, ids=lambda part: getattr(part, "__name__", part)
)
def test_every_field_refuses_what_is_no_json_and_survives_the_rest(
    parse: Parse, field: str
) -> None:
    for name, value in NASTY.items():
        served = is_served(parse, create_body(parse, field, value))
        assert not (served and name in NOT_SERVED), name


@pytest.mark.parametrize("parse", PARSERS)
@pytest.mark.parametrize("name", sorted(NOT_JSON))
def test_a_field_that_is_ignored_is_no_hiding_place(parse: Parse, name: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(b'{%b,"made_up":%b}' % (PLAIN[parse], NASTY[name]))


SIMPLE = [0, -1, 2**63, 2**64, -(2**63) - 1, 1.5, 1e308, "", "x", True, [], {}, [None], {"": None}]


@pytest.mark.parametrize(
    ("parse", "field"), FIELDS, ids=lambda part: getattr(part, "__name__", part)
)
def test_every_field_takes_any_value_or_refuses_it(parse: Parse, field: str) -> None:
    for value in SIMPLE:
        is_served(parse, create_body(parse, field, msgspec.json.encode(value)))


@pytest.mark.parametrize(
    ("parse", "field"), FIELDS, ids=lambda part: getattr(part, "__name__", part)
)
def test_every_optional_field_may_be_null(parse: Parse, field: str) -> None:
    assert is_served(parse, create_body(parse, field, b"null")) == (field not in PARTS[parse])


# -- keys that come twice ------------------------------------------------------------------------


@pytest.mark.parametrize("parse", PARSERS)
def test_a_field_that_comes_twice_is_refused_whichever_it_is(parse: Parse) -> None:
    for extra in (PLAIN[parse], b'"stream":true,"stream":true', b'"made_up":1,"m\\u0061de_up":1'):
        with pytest.raises(InvalidRequest, match="twice"):
            parse(b"{%b,%b}" % (PLAIN[parse], extra))


def test_the_outer_object_may_not_name_a_field_twice_either() -> None:
    """Otherwise two readers could see two different models in one body."""
    body = b'{"model":"@a/b","input":{"prompt":"a"},"model":"%b"}' % MODEL.encode()
    with pytest.raises(InvalidRequest, match="twice"):
        parse_body(WORKERS_AI, body)
    assert {field.name for field in msgspec.structs.fields(ModelAndInput)} == {"model", "input"}


def count_comparisons(monkeypatch: pytest.MonkeyPatch, body: bytes) -> int:
    """How often two keys of `body` are compared for equality while it is read."""
    count = 0

    class Counted(str):
        """A key that counts its comparisons; equal hashes are compared as well."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal count
            count += 1
            return str.__eq__(self, other)  # type: ignore[arg-type]

    class CountedKey(strict_json._Key):
        __slots__ = ()

        def __str__(self) -> str:
            return Counted(super().__str__())

    decoder = msgspec.json.Decoder(
        dict[strict_json._Key, msgspec.Raw], dec_hook=lambda _, name: CountedKey(name)
    )
    monkeypatch.setattr(strict_json, "_keys_decoder", decoder)
    parse_run(body)
    return count


def create_many_keys(num_keys: int) -> bytes:
    """A body with that many fields that are ignored."""
    made_up = b",".join(b'"k%d":0' % index for index in range(num_keys))
    return b"{%b,%b}" % (MESSAGES, made_up)


def test_the_search_for_repeated_keys_is_linear(monkeypatch: pytest.MonkeyPatch) -> None:
    num_keys = 5_000
    # Pairwise, it would be 12 million; hashing leaves only the collisions of whole hashes.
    assert count_comparisons(monkeypatch, create_many_keys(num_keys)) < num_keys


@pytest.mark.parametrize("parse", [parse_run_named, parse_chat])
def test_a_body_of_very_many_keys_is_read_like_any_other(parse: Parse) -> None:
    """The proof is that it ends: pairwise, these are 20 billion comparisons."""
    made_up = b",".join(b'"k%d":0' % index for index in range(NUM_KEYS))
    assert is_served(parse, b"{%b,%b}" % (PLAIN[parse], made_up))
    assert not is_served(parse, b'{%b,%b,"k7":0}' % (PLAIN[parse], made_up))


# -- anything at all -----------------------------------------------------------------------------

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
ALMOST = st.fixed_dictionaries(
    {},
    optional={
        name: JSON_VALUES for name in dict.fromkeys(name for _, name in FIELDS) if name != "model"
    }
    | {
        "model": st.just(MODEL) | JSON_VALUES,
        "prompt": st.text(max_size=5) | st.lists(st.integers(-1, 9) | st.text()) | JSON_VALUES,
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.just("user") | JSON_VALUES}, optional={"content": JSON_VALUES}
            ),
            max_size=2,
        )
        | JSON_VALUES,
    },
)


@pytest.mark.parametrize("parse", PARSERS)
@settings(max_examples=50)
@given(value=JSON_VALUES | ALMOST)
@example(value={"text": []})  # only an encoder takes it, and the model may be one
def test_any_json_value_is_a_request_or_a_refusal(parse: Parse, value: Any) -> None:
    is_served(parse, msgspec.json.encode(value))


@settings(max_examples=50)
@given(value=JSON_VALUES | ALMOST)
def test_any_json_value_in_place_of_the_outer_object(value: Any) -> None:
    is_served(lambda body: parse_body(WORKERS_AI, body).request, msgspec.json.encode(value))
