"""What tenancy accepts: names, regions, permissions, times and page sizes.

Owns the rules that hold for every store; must not know how a store keeps the values.
Every function returns what may be stored, or raises `InvalidRequest` naming the parameter.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from contracts.errors import InvalidRequest
from contracts.finetunes import MAX_FINETUNE_NAME, MAX_FINETUNE_TEXT
from contracts.ids import (
    JURISDICTION_FORM,
    MAX_MODEL_NAME_LENGTH,
    RESERVED_PLACES,
    RegionId,
    is_finetune_id,
    is_jurisdiction,
    is_model_name,
)
from tenancy.policies import (
    EVERYTHING,
    AddressCondition,
    Effect,
    Policies,
    can_be_narrowed,
    is_narrowed,
)

MAX_NAME_LENGTH: Final = 100
MAX_PAGE_SIZE: Final = 1000
MAX_REGIONS: Final = 64
MAX_MODELS: Final = 200
MAX_POLICIES: Final = 32
MAX_NETWORKS: Final = 200
MAX_PRIORITY: Final = 100
MAX_EMAIL_LENGTH: Final = 254
"""Source: RFC 5321 section 4.5.3.1.3, less the angle brackets."""
MAX_UNIX_S: Final = 253_402_300_799
"""The last second of the year 9999: later ones have no form that clients can read."""

_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_MODEL_BEGINNING: Final = re.compile(r"@[A-Za-z0-9._/-]*")
_EMAIL: Final = re.compile(r"[^@\s\x00-\x20\x7f<>\"]+@[^@\s\x00-\x20\x7f<>\"]+")
_FINETUNE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@+-]*")
_FINETUNES_OWN: Final = "public"
"""Stands where a finetune's name does in the address of the list of public ones."""
_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode categories of control characters, lone surrogates, line and paragraph separators."""


def check_name(name: str) -> str:
    """`name`, which has 1 to 100 characters, is not blank and has no control characters."""
    if not name.strip() or len(name) > MAX_NAME_LENGTH:
        raise InvalidRequest(
            f"A name has 1 to {MAX_NAME_LENGTH} characters that are not all blank.", param="name"
        )
    if any(unicodedata.category(character) in _UNPRINTABLE for character in name):
        raise InvalidRequest("A name cannot contain control characters.", param="name")
    return name


def check_finetune_name(name: str) -> str:
    """`name`, which can stand in an address and is not taken for an id."""
    if len(name) > MAX_FINETUNE_NAME or _FINETUNE_NAME.fullmatch(name) is None:
        raise InvalidRequest(
            f"A finetune's name has 1 to {MAX_FINETUNE_NAME} letters, digits, blanks and "
            "characters of `._@+-`, and begins with a letter or digit.",
            param="name",
        )
    if name == _FINETUNES_OWN or is_finetune_id(name):
        raise InvalidRequest(
            f"A finetune is neither called `{_FINETUNES_OWN}` nor like an id.", param="name"
        )
    return name


def check_description(text: str | None) -> str | None:
    """`text`, which is short enough and can be stored."""
    if text is None:
        return None
    if len(text) > MAX_FINETUNE_TEXT:
        raise InvalidRequest(
            f"A description has at most {MAX_FINETUNE_TEXT} characters.", param="description"
        )
    if any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text):
        raise InvalidRequest(
            "A description cannot contain characters that no text has.", param="description"
        )
    return text


def check_regions(regions: Iterable[RegionId] | None, param: str) -> list[RegionId] | None:
    """`regions` without repetitions, each of a region's shape; None, which is any, stays None."""
    if regions is None:
        return None
    unique = [RegionId(name) for name in _list_unique(regions, param)]
    if any(_REGION.fullmatch(region) is None for region in unique):
        raise InvalidRequest(
            "A region is named by up to 63 lower-case letters, digits and hyphens, such as `weur`.",
            param=param,
        )
    return unique


def check_jurisdictions(names: Iterable[str] | None, param: str) -> list[str] | None:
    """The same of jurisdictions, which may have other characters."""
    if names is None:
        return None
    unique = _list_unique(names, param)
    if not all(map(is_jurisdiction, unique)):
        raise InvalidRequest(f"A jurisdiction is named by {JURISDICTION_FORM}.", param=param)
    return unique


def _list_unique(names: Iterable[str], param: str) -> list[str]:
    """`names` without repetitions, of which there are not too many, and each is of one place:
    whoever lists `any` means all of them, and would be bound to a place that is nowhere.
    """
    unique = list(dict.fromkeys(names))
    for word in RESERVED_PLACES:
        if word in unique:
            raise InvalidRequest(
                f"No place is called `{word}`, which `{param}` names; an empty list stands for "
                "none, and where a list is what is allowed, null stands for any.",
                param=param,
            )
    if len(unique) > MAX_REGIONS:
        raise InvalidRequest(f"`{param}` has at most {MAX_REGIONS} names.", param=param)
    return unique


def check_models(patterns: Iterable[str] | None, param: str) -> tuple[str, ...] | None:
    """`patterns` without repetitions: models' names, beginnings with `*`, or `*` alone."""
    if patterns is None:
        return None
    unique = tuple(dict.fromkeys(patterns))
    if len(unique) > MAX_MODELS:
        raise InvalidRequest(f"`{param}` names at most {MAX_MODELS} models.", param=param)
    if not all(_is_model_pattern(pattern) for pattern in unique):
        raise InvalidRequest(
            f"`{param}` holds names of models, beginnings such as `@cf/meta/*`, or `*`.",
            param=param,
        )
    return unique


def check_policies(policies: Policies) -> Policies:
    """`policies`, of which one allows something, and which single out models for models only."""
    if not any(policy.effect is Effect.ALLOW for policy in policies):
        raise InvalidRequest("An API token needs a policy that allows something.", param="policies")
    if len(policies) > MAX_POLICIES:
        raise InvalidRequest(f"An API token has at most {MAX_POLICIES} policies.", param="policies")
    for policy in policies:
        if not policy.permissions or not policy.models:
            raise InvalidRequest(
                "A policy names at least one permission and one resource.", param="policies"
            )
        check_models(policy.models, "policies")
        if is_narrowed(policy) and not can_be_narrowed(policy):
            raise InvalidRequest(
                "Only the permissions of Workers AI can be held for single models.",
                param="policies",
            )
    return policies


def check_condition(condition: AddressCondition | None) -> AddressCondition | None:
    """`condition`, which is of a size that can be checked at each request."""
    if condition is None:
        return None
    if len(condition.allowed) + len(condition.denied) > MAX_NETWORKS:
        raise InvalidRequest(
            f"A condition names at most {MAX_NETWORKS} networks.", param="condition"
        )
    return condition


def check_priority(priority: int) -> int:
    """`priority`, between -100 and 100."""
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequest(
            f"A priority lies between -{MAX_PRIORITY} and {MAX_PRIORITY}.", param="priority"
        )
    return priority


def check_email(email: str) -> str:
    """`email`, which looks like an address; whether anybody reads it is not asked."""
    if len(email) > MAX_EMAIL_LENGTH or _EMAIL.fullmatch(email) is None:
        raise InvalidRequest("This is not an e-mail address.", param="email")
    return email


def check_lifetime(not_before_unix_s: int | None, expires_unix_s: int | None) -> None:
    """Accepts times in range, the end after the beginning."""
    for param, unix_s in (("not_before", not_before_unix_s), ("expires_on", expires_unix_s)):
        if unix_s is not None and not 0 <= unix_s <= MAX_UNIX_S:
            raise InvalidRequest(f"`{param}` is not a time between 1970 and 9999.", param=param)
    if not_before_unix_s is None or expires_unix_s is None:
        return
    if expires_unix_s <= not_before_unix_s:
        raise InvalidRequest("`expires_on` must be later than `not_before`.", param="expires_on")


def check_page_size(limit: int) -> int:
    """`limit`, which lies between 1 and 1000."""
    if not 1 <= limit <= MAX_PAGE_SIZE:
        raise InvalidRequest(f"`limit` lies between 1 and {MAX_PAGE_SIZE}.", param="limit")
    return limit


def _is_model_pattern(pattern: str) -> bool:
    """True for a model's name, a beginning of some with `*`, and `*` alone."""
    if pattern == EVERYTHING or is_model_name(pattern):
        return True
    is_short = len(pattern) <= MAX_MODEL_NAME_LENGTH
    return is_short and pattern.endswith("*") and bool(_MODEL_BEGINNING.fullmatch(pattern[:-1]))
