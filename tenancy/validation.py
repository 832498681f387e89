"""What tenancy accepts: names, regions, permissions, times and page sizes.

Owns the rules that hold for every store; must not know how a store keeps the values.
Every function returns what may be stored, or raises `InvalidRequest` naming the parameter.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from contracts.errors import InvalidRequest
from contracts.ids import RegionId
from tenancy.interfaces import Permission

MAX_NAME_LENGTH: Final = 100
MAX_PAGE_SIZE: Final = 1000
MAX_REGIONS: Final = 64
MAX_UNIX_S: Final = 253_402_300_799
"""The last second of the year 9999: later ones have no form that clients can read."""

_REGION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
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


def check_regions(regions: Iterable[RegionId] | None) -> tuple[RegionId, ...] | None:
    """`regions` without repetitions, each of a region's shape; None, which is any, stays None."""
    if regions is None:
        return None
    unique = tuple(dict.fromkeys(regions))
    if len(unique) > MAX_REGIONS:
        raise InvalidRequest(
            f"An account is bound to at most {MAX_REGIONS} regions.", param="allowed_regions"
        )
    if any(_REGION.fullmatch(region) is None for region in unique):
        raise InvalidRequest(
            "A region is named by up to 63 lower-case letters, digits and hyphens, such as `weur`.",
            param="allowed_regions",
        )
    return unique


def check_permissions(permissions: Iterable[Permission]) -> frozenset[Permission]:
    """`permissions`, of which there is at least one."""
    granted = frozenset(permissions)
    if not granted:
        raise InvalidRequest("An API token needs at least one permission.", param="permissions")
    return granted


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
