"""Uses of API tokens are kept until the store has them, each with its own time."""

from collections.abc import Mapping

from contracts.errors import StoreUnavailable
from contracts.ids import ApiTokenId
from gateway.auth.token_uses import TokenUses
from gateway.sources import Sources

A, B = ApiTokenId("a"), ApiTokenId("b")


class Store:
    """Takes uses unless it is away."""

    def __init__(self) -> None:
        self.is_away = False
        self.written: list[dict[ApiTokenId, int]] = []

    async def note_api_token_uses(self, uses: Mapping[ApiTokenId, int]) -> None:
        if self.is_away:
            raise StoreUnavailable("away")
        self.written.append(dict(uses))


async def test_uses_are_written_once_with_the_time_at_which_they_were_collected() -> None:
    store, now = Store(), [100.0]
    uses = TokenUses(store, Sources(lambda: now[0], lambda: now[0], lambda _: 0))
    await uses.write()
    for token in (A, A, B):
        uses.note(token)
    await uses.write()
    await uses.write()
    assert store.written == [{A: 100, B: 100}]


async def test_a_store_that_is_away_costs_no_use_and_no_time() -> None:
    store, now = Store(), [100.0]
    uses = TokenUses(store, Sources(lambda: now[0], lambda: now[0], lambda _: 0))
    store.is_away = True
    uses.note(A)
    uses.note(B)
    await uses.write()
    now[0] = 160.0
    uses.note(B)
    await uses.write()
    assert store.written == []
    now[0], store.is_away = 220.0, False
    await uses.write()
    assert store.written == [{A: 100, B: 160}]
