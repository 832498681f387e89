"""What an item asks of a node: a body of the native route, without a hurry.

Read next: `gateway.dialects.workers_ai`, `gateway.batches.item_run`.
"""

import msgspec

from contracts.encoding import EncodeRequest
from contracts.errors import InvariantBroken, NoEndpoint
from contracts.ids import ModelName
from contracts.inference import GenerateRequest
from gateway.dialects.dialect import FindModel, ParsedRequest
from gateway.dialects.workers_ai import parse_run


def parse_item(
    body: bytes, model: ModelName, find_model: FindModel, *, may_wait: bool
) -> ParsedRequest:
    """The request in `body`, to be answered in one piece, and now unless it `may_wait`.

    Raises: what `parse_run` raises, and `NoEndpoint` for a model that nobody offers.
    """
    if find_model(model) is None:
        # It was known when the batch was handed in: its nodes are not back yet.
        raise NoEndpoint("No node offers the model right now.")
    parsed = parse_run(body, model, find_model)
    request = parsed.request
    if isinstance(request, GenerateRequest):
        quiet = msgspec.structs.replace(request, stream=False, reject_if_busy=not may_wait)
        return msgspec.structs.replace(parsed, request=quiet)
    if isinstance(request, EncodeRequest):
        patient = msgspec.structs.replace(request, reject_if_busy=not may_wait)
        return msgspec.structs.replace(parsed, request=patient)
    raise InvariantBroken("The native route has no requests of this kind.")
