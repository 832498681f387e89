"""The routes of API tokens, the same wherever they hang.

Owns their order: fixed names come before ids, which would match them too.
Read next: `gateway.api.token_pages`.
"""

from gateway.api.forms import NO_FORM
from gateway.api.route_table import Route
from gateway.api.token_forms import TOKEN_CREATE, TOKEN_UPDATE
from gateway.api.token_pages import GROUP_QUERY, LIST_QUERY, TokenPages
from gateway.auth.access import Access


def list_token_routes(
    prefix: str, base: str, pages: TokenPages, reading: Access, writing: Access
) -> tuple[Route, ...]:
    """The routes below `base`; `prefix` tells their names from those of other bases."""
    one = base + "/{token_id}"
    return (
        Route(
            f"{prefix}_permission_groups",
            "GET",
            f"{base}/permission_groups",
            reading,
            pages.list_groups,
            query=GROUP_QUERY,
        ),
        Route(f"{prefix}_list", "GET", base, reading, pages.list_all, query=LIST_QUERY),
        Route(f"{prefix}_create", "POST", base, writing, pages.create, form=TOKEN_CREATE),
        Route(f"{prefix}_get", "GET", one, reading, pages.get),
        Route(f"{prefix}_update", "PUT", one, writing, pages.update, form=TOKEN_UPDATE),
        Route(f"{prefix}_delete", "DELETE", one, writing, pages.delete),
        Route(f"{prefix}_roll", "PUT", f"{one}/value", writing, pages.roll, form=NO_FORM),
    )
