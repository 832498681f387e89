"""What `hearth doctor` says of an error: all that it knows, and nothing twice."""

import pytest

from cli.doctor.finding import Area, Findings
from contracts.errors import StoreUnavailable

REFUSED = "Error 111 connecting to 127.0.0.1:9. Connect call failed."


@pytest.mark.parametrize(
    ("said", "cause", "what"),
    [
        (f"ConnectionError: {REFUSED}", REFUSED, f"It fails: ConnectionError: {REFUSED}"),
        ("It is away: no route.", "no route", "It fails: It is away: no route."),
        ("It is away.", "", "It fails: It is away."),
        ("It is away.", "no route", "It fails: It is away. (no route)"),  # the control
    ],
)
def test_a_cause_is_said_once(said: str, cause: str, what: str) -> None:
    findings = Findings()
    with findings.expecting(Area.NODES, "It fails", "Mend it.", StoreUnavailable):
        raise StoreUnavailable(said) from OSError(cause)
    (finding,) = findings.all
    assert (finding.what, finding.advice) == (what, "Mend it.")
