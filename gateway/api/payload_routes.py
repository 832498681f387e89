"""The routes of payload logs.

Read next: `gateway.api.payload_pages`.
"""

from typing import Final

from gateway.api.inference_routes import ACCOUNT
from gateway.api.payload_pages import PAYLOAD_QUERY, PAYLOAD_SETTINGS, PayloadPages
from gateway.api.route_table import Route
from gateway.auth.access import Needs
from tenancy.permissions import Permission

_ALL: Final = ACCOUNT + "/logs/payloads"
_ONE: Final = _ALL + "/{request_id}"
_SETTINGS: Final = ACCOUNT + "/logs/payload_settings"


def list_payload_routes(pages: PayloadPages) -> tuple[Route, ...]:
    """What an account keeps of its own requests."""
    reading, writing = Needs(Permission.PAYLOAD_LOGS_READ), Needs(Permission.PAYLOAD_LOGS_WRITE)
    return (
        Route("payload_settings_get", "GET", _SETTINGS, reading, pages.get_settings),
        Route(
            "payload_settings_set",
            "PUT",
            _SETTINGS,
            writing,
            pages.set_settings,
            form=PAYLOAD_SETTINGS,
        ),
        Route("payloads_list", "GET", _ALL, reading, pages.list_all, query=PAYLOAD_QUERY),
        Route("payloads_delete", "DELETE", _ALL, writing, pages.delete_all),
        Route("payload_get", "GET", _ONE, reading, pages.get),
        Route("payload_delete", "DELETE", _ONE, writing, pages.delete),
    )
