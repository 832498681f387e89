"""Every page about an account.

Owns nothing but the list. Read next: any of the pages.
"""

from gateway.console.account_pages import AccountPages
from gateway.console.limit_pages import LimitPages
from gateway.console.page_table import PageTable
from gateway.console.parts import ConsoleParts
from gateway.console.token_pages import TokenPages
from gateway.console.usage_pages import UsagePages


def add_account_pages(table: PageTable, parts: ConsoleParts) -> None:
    """Their routes."""
    AccountPages(parts).add_to(table)
    TokenPages(parts).add_to(table)
    LimitPages(parts).add_to(table)
    UsagePages(parts).add_to(table)
