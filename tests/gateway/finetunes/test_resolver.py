"""Which adapter a request gets, and how often the store is asked for it."""

import asyncio

import pytest
from msgspec.structs import replace

from contracts.errors import (
    AdapterIncomplete,
    AdapterUnsupported,
    NotFound,
    ServiceError,
    StoreUnavailable,
)
from contracts.ids import ModelName
from contracts.inference import GenerateRequest, SamplingParams, TextPrompt
from gateway.dialects.dialect import ParsedRequest
from gateway.dialects.native_shapes import create_text_form
from gateway.finetunes.resolver import AdapterResolver
from tests.gateway.finetunes.finetune_doubles import (
    MODEL,
    OTHER,
    OWNER,
    FinetunesInMemory,
    create_finetune,
)

PLAIN = ModelName("@hearth/tests/plain")
NOBODYS = ModelName("@hearth/tests/nobodys")
RANKS = {MODEL: 16, PLAIN: 0}


def ask(name: str, model: ModelName = MODEL) -> ParsedRequest:
    """A request that names an adapter."""
    request = GenerateRequest(
        model=model, prompt=TextPrompt(text="a"), sampling=SamplingParams(), stream=False
    )
    return ParsedRequest(request, create_text_form(1), name)


@pytest.fixture
def directory() -> FinetunesInMemory:
    return FinetunesInMemory()


@pytest.fixture
def resolver(directory: FinetunesInMemory) -> AdapterResolver:
    return AdapterResolver(directory, RANKS.get, lambda: True, 4)


async def test_own_ones_are_found_by_id_and_name_and_public_ones_by_id_alone(
    directory: FinetunesInMemory, resolver: AdapterResolver
) -> None:
    own = create_finetune(1)
    public = create_finetune(2, name="open", account_id=OTHER, is_public=True)
    private = create_finetune(3, name="secret", account_id=OTHER)
    directory.finetunes = [own, public, private]
    for name, expected in ((own.finetune_id, own), ("mine", own), (public.finetune_id, public)):
        request = (await resolver.resolve(OWNER, ask(name))).request
        assert isinstance(request, GenerateRequest)
        assert request.adapter == expected.adapter
    refusals = []
    for name in ("open", "secret", private.finetune_id, "nothing", "0" * 8):
        with pytest.raises(NotFound) as caught:
            await resolver.resolve(OWNER, ask(name))
        refusals.append((caught.value.message, caught.value.param))
    # Another's looks like what there is not.
    assert set(refusals) == {(refusals[-1][0], "lora")}
    # The control: its owner gets it.
    assert (await resolver.resolve(OTHER, ask("secret"))).request != ask("secret").request


async def test_each_refusal_is_its_own(
    directory: FinetunesInMemory, resolver: AdapterResolver
) -> None:
    whole = create_finetune(1)
    large = replace(
        create_finetune(2, name="large"),
        config=replace(whole.config, rank=17),  # type: ignore[type-var]
    )
    directory.finetunes = [
        whole,
        large,
        replace(create_finetune(3, name="no weights"), weights=None),
        create_finetune(4, name="no config", config=None),
        replace(create_finetune(5, name="elsewhere"), model=PLAIN),
    ]
    cases: list[tuple[str, ModelName, type[ServiceError], str]] = [
        ("mine", PLAIN, AdapterUnsupported, "takes no"),
        ("nothing", PLAIN, AdapterUnsupported, "takes no"),
        ("large", MODEL, AdapterUnsupported, "rank 17"),
        ("no weights", MODEL, AdapterIncomplete, "adapter_model.safetensors"),
        ("no config", MODEL, AdapterIncomplete, "adapter_config.json"),
        ("elsewhere", MODEL, AdapterUnsupported, "another model"),
    ]
    for name, model, kind, words in cases:
        with pytest.raises(kind, match=words) as caught:
            await resolver.resolve(OWNER, ask(name, model))
        assert caught.value.param == "lora"
    # Of a model that nobody offers something else is told, by whoever admits requests.
    unknown = ask("mine", NOBODYS)
    assert await resolver.resolve(OWNER, unknown) is unknown


async def test_the_store_is_asked_once_until_something_changes(
    directory: FinetunesInMemory, resolver: AdapterResolver
) -> None:
    directory.finetunes = [create_finetune(1)]
    for _ in range(3):
        await resolver.resolve(OWNER, ask("mine"))
        with pytest.raises(NotFound):
            await resolver.resolve(OWNER, ask("nothing"))
    assert directory.num_asked == 2
    directory.finetunes = [create_finetune(2, name="nothing")]
    await resolver.forget()
    await resolver.resolve(OWNER, ask("nothing"))
    with pytest.raises(NotFound):
        await resolver.resolve(OWNER, ask("mine"))
    assert directory.num_asked == 4


async def test_those_who_ask_at_once_share_one_look_up_and_one_may_leave(
    directory: FinetunesInMemory, resolver: AdapterResolver
) -> None:
    directory.finetunes = [create_finetune(1)]
    directory.gate.clear()
    tasks = [asyncio.ensure_future(resolver.resolve(OWNER, ask("mine"))) for _ in range(5)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    directory.gate.set()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(done[0], asyncio.CancelledError)
    assert all(isinstance(one, ParsedRequest) for one in done[1:])
    assert directory.num_asked == 1


async def test_a_slow_look_up_does_not_bring_back_what_was_forgotten(
    directory: FinetunesInMemory, resolver: AdapterResolver
) -> None:
    directory.finetunes = [create_finetune(1)]
    directory.gate.clear()
    slow = asyncio.ensure_future(resolver.resolve(OWNER, ask("mine")))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    directory.finetunes = []
    await resolver.forget()
    directory.gate.set()
    await slow
    with pytest.raises(NotFound):
        await resolver.resolve(OWNER, ask("mine"))


async def test_nothing_is_remembered_while_nobody_tells_of_changes(
    directory: FinetunesInMemory,
) -> None:
    is_trusted = True
    resolver = AdapterResolver(directory, RANKS.get, lambda: is_trusted, 4)
    directory.finetunes = [create_finetune(1)]
    await resolver.resolve(OWNER, ask("mine"))
    await resolver.resolve(OWNER, ask("mine"))
    assert directory.num_asked == 1
    is_trusted = False
    directory.finetunes = []
    for _ in range(2):
        with pytest.raises(NotFound):
            await resolver.resolve(OWNER, ask("mine"))
    assert directory.num_asked == 3


async def test_what_is_remembered_is_bounded_and_made_up_names_push_out_nobody(
    directory: FinetunesInMemory, resolver: AdapterResolver
) -> None:
    directory.finetunes = [create_finetune(number, name=f"n{number}") for number in range(1, 7)]
    await resolver.resolve(OWNER, ask("n1"))
    for number in range(100):
        with pytest.raises(NotFound):
            await resolver.resolve(OTHER, ask(f"x{number}"))
    asked = directory.num_asked
    await resolver.resolve(OWNER, ask("n1"))
    assert directory.num_asked == asked
    for number in range(2, 7):
        await resolver.resolve(OWNER, ask(f"n{number}"))
    assert len(resolver._found) == len(resolver._missing) == 4  # pyright: ignore[reportPrivateUsage]


async def test_a_store_that_is_away_says_so_and_nothing_is_remembered_of_it(
    directory: FinetunesInMemory, resolver: AdapterResolver
) -> None:
    directory.finetunes = [create_finetune(1)]
    directory.is_away = True
    with pytest.raises(StoreUnavailable):
        await resolver.resolve(OWNER, ask("mine"))
    directory.is_away = False
    await resolver.resolve(OWNER, ask("mine"))
