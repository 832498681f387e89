"""What a request's failure may leave behind in the log."""

import time

import structlog

from contracts.errors import InvariantBroken
from contracts.grant import Grant, RetentionClass
from contracts.ids import AccountId, ModelName, RequestId
from contracts.inference import Failed, GenerateRequest, GenerationEvent
from gpu_pool.server.generation import Generation
from gpu_pool.server.served_model import ServedModel
from tests.fixtures.gateway_client import ask

MODEL = ModelName("@test/defective")
CANARY = "xylophone-marmalade"


class DefectiveModel(ServedModel):
    """A model with a defect of ours in it, of the kind that quotes what it was given."""

    def __init__(self) -> None:
        pass

    def try_prepare(self, request: GenerateRequest, grant: Grant) -> None:
        raise KeyError(f"nothing fits {request.prompt!r}")


def create_grant() -> Grant:
    return Grant(
        request_id=RequestId("r"),
        attempt=1,
        account_id=AccountId("a" * 32),
        cache_salt=b"s" * 32,
        model=MODEL,
        regions=None,
        priority=0,
        retention=RetentionClass.STANDARD,
        deadline_unix_ms=int(time.time() * 1000) + 60_000,
        max_total_tokens=100,
    )


def test_a_defect_is_logged_with_its_place_and_without_the_prompt() -> None:
    request = ask(MODEL, CANARY)
    assert CANARY in repr(request.prompt)  # the control: the exception does quote it
    events: list[GenerationEvent] = []
    with structlog.testing.capture_logs() as lines:
        Generation(events.append).start(DefectiveModel(), request, create_grant())
    (event,) = events
    assert isinstance(event, Failed)
    assert event.error.code == InvariantBroken.code
    assert event.usage is None
    (line,) = lines
    assert line["error"] == "KeyError"
    assert "try_prepare" in "".join(line["frames"])
    assert CANARY not in f"{lines} {event}"
