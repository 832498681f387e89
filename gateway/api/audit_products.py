"""The products that entries of the audit log are about, in the categories that they are asked by.

Owns both lists; a product is a type of resource. Source: Cloudflare's API reference (audit logs,
product categories). Read next: `gateway.api.audit_query`.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from contracts.errors import InvalidRequest


class Product(msgspec.Struct, frozen=True):
    """A type of resource."""

    value: str
    label: str


class Category(msgspec.Struct, frozen=True):
    """Products that are asked for together."""

    value: str
    label: str
    products: tuple[Product, ...]


CATEGORIES: Final = (
    Category(
        "accounts",
        "Accounts",
        (
            Product("account", "Account"),
            Product("quota", "Limits"),
            Product("data_key", "Encryption"),
        ),
    ),
    Category(
        "identity_and_access",
        "Identity and access",
        (Product("api_token", "API tokens"), Product("member", "Members")),
    ),
    Category(
        "ai_and_machine_learning", "AI and machine learning", (Product("finetune", "Finetunes"),)
    ),
    Category("logging", "Logging", (Product("payload_log", "Payload logs"),)),
)


def list_products(categories: Iterable[str]) -> list[str]:
    """The products of these categories. Raises: `InvalidRequest` for one that there is not."""
    known = {category.value: category for category in CATEGORIES}
    products: list[str] = []
    for name in categories:
        category = known.get(name.lower())
        if category is None:
            sentence = f"`product_category` is one of {', '.join(known)}."
            raise InvalidRequest(sentence, param="product_category")
        products += [product.value for product in category.products]
    return products
