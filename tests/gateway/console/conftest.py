"""A browser at the console's door, and one that has gone through it."""

import pytest

from tests.gateway.console.browser_double import BrowserDouble
from tests.gateway.running_gateway import RunningGateway


@pytest.fixture
def stranger(gateway: RunningGateway) -> BrowserDouble:
    """Nobody has signed in."""
    return BrowserDouble(gateway)


@pytest.fixture
async def browser(gateway: RunningGateway) -> BrowserDouble:
    """An operator has signed in."""
    browser = BrowserDouble(gateway)
    assert (await browser.sign_in()).status == 303
    return browser
