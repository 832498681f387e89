"""Quotas and needs, as tests of limiters write them."""

from typing import Any

from contracts.ids import AccountId, ApiTokenId, ModelName
from contracts.quotas import Quota, QuotaLimits, QuotaScope
from gateway.admission.limiter import RateNeed

ACCOUNT = AccountId("a" * 32)
TOKEN, SECOND_TOKEN = ApiTokenId("1" * 32), ApiTokenId("2" * 32)
MODEL = ModelName("@hearth/tests/small")
OF_ACCOUNT = QuotaScope(ACCOUNT)
OF_TOKEN = QuotaScope(ACCOUNT, TOKEN)
OF_SECOND_TOKEN = QuotaScope(ACCOUNT, SECOND_TOKEN)
OF_MODEL = QuotaScope(ACCOUNT, None, MODEL)


def quota(scope: QuotaScope = OF_ACCOUNT, **limits: Any) -> Quota:
    """A quota; dimensions that are not named are without limit."""
    return Quota(scope, QuotaLimits(**limits))


def need(name: str, *quotas: Quota, tokens: int = 1) -> RateNeed:
    """What a request asks for."""
    return RateNeed(name, quotas, tokens)
