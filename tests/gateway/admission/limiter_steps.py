"""Random steps of a limiter and of its model side by side, until they differ.

Read next: `reference_limiter`.
"""

import random

from contracts.errors import LimitError
from contracts.quotas import Quota, QuotaScope
from gateway.admission.limiter import Limiter, RateNeed
from tests.gateway.admission.limiter_words import (
    OF_ACCOUNT,
    OF_MODEL,
    OF_SECOND_TOKEN,
    OF_TOKEN,
    need,
    quota,
)
from tests.gateway.admission.reference_limiter import ReferenceLimiter


class Steps:
    """A limiter and its model on one clock, which is the model's."""

    def __init__(self, model: ReferenceLimiter, limiter: Limiter) -> None:
        self.model = model
        self.limiter = limiter

    async def set_time(self) -> None:
        """Tells the limiter what the model's clock says, where it has a clock of its own."""

    async def run(self, chance: random.Random, num_steps: int) -> dict[str, int]:
        """How many requests were admitted and refused."""
        kinds = draw_quotas(chance)
        open_needs: list[RateNeed] = []
        counts = {"admitted": 0, "refused": 0}
        for step in range(num_steps):
            if step % 1000 == 0:
                kinds = draw_quotas(chance)  # limits change while requests run
            match chance.choices(["reserve", "correct", "release", "wait"], (5, 2, 4, 6))[0]:
                case "reserve":
                    tokens = chance.choice([1, 7, 90, 999])
                    wanted = need(f"{step}", *chance.choice(kinds), tokens=tokens)
                    is_admitted = await self.reserve(wanted)
                    counts["admitted" if is_admitted else "refused"] += 1
                    if is_admitted:
                        open_needs.append(wanted)
                case "correct" if open_needs:
                    chosen, change = chance.choice(open_needs), chance.randint(-200, 200)
                    self.limiter.correct(chosen, change)
                    self.model.correct(chosen, change)
                case "release" if open_needs:
                    chosen = open_needs.pop(chance.randrange(len(open_needs)))
                    for _ in range(chance.choice([1, 1, 2])):
                        self.limiter.release(chosen)
                        self.model.release(chosen)
                case "wait":
                    await self.limiter.flush()
                    self.model.now_ms += chance.choice([0, 1, 13, 400, 2500, 20_000])
                    await self.set_time()
                case _:
                    pass
        return counts

    async def reserve(self, wanted: RateNeed) -> bool:
        """True when both admit; they must agree, error for error."""
        expected = self.model.judge(wanted)
        got: type[LimitError] | None = None
        try:
            await self.limiter.reserve(wanted)
        except LimitError as error:
            got = type(error)
        assert got is expected, wanted
        if got is None:
            self.model.take(wanted)
        return got is None


def draw_quotas(chance: random.Random) -> list[tuple[Quota, ...]]:
    """What three kinds of requests fall under; scopes are shared and limits are small."""

    def draw(scope: QuotaScope) -> Quota:
        def limit(most: int) -> int | None:
            return chance.choice([None, 0, *range(1, most)]) if chance.random() < 0.9 else most

        return quota(
            scope,
            requests_per_min=chance.choice([None, limit(30)]),
            tokens_per_min=chance.choice([None, limit(400)]),
            concurrent_streams=chance.choice([None, limit(6)]),
        )

    account, model, one, two = map(draw, (OF_ACCOUNT, OF_MODEL, OF_TOKEN, OF_SECOND_TOKEN))
    return [(account, one), (account, model, one), (account, two)]
