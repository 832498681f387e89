"""Whose engine a request goes to: one of our own cores, or an engine of others.

Read next: `core_start`, `upstream.relay`.
"""

from collections.abc import Callable

from contracts.encoding import EncodeRequest
from contracts.errors import AdapterUnsupported, UnsupportedFeature
from contracts.grant import Grant
from contracts.inference import GenerateRequest, NodeRequest
from contracts.kv_transfer import KvTicket
from contracts.wire import StreamEvent
from gpu_pool.server.core_start import start_at_core
from gpu_pool.server.hosted_model import HostedModel, RunningRequest
from gpu_pool.server.upstream.relay import Relay
from gpu_pool.server.upstream.upstream_model import UpstreamModel


def start_request(
    model: HostedModel,
    request: NodeRequest,
    grant: Grant,
    emit: Callable[[StreamEvent], None],
    ticket: KvTicket | None = None,
) -> RunningRequest:
    """`request` under way at `model`; `emit` is called with its events, perhaps at once.

    With a `ticket` only one half of it is: see `contracts.kv_transfer`.
    Raises: `UnsupportedFeature` when the model does something else, `AdapterUnsupported`.
    """
    if not isinstance(model, UpstreamModel):
        return start_at_core(model, request, grant, emit, ticket)
    if ticket is not None or isinstance(request, EncodeRequest):
        raise UnsupportedFeature("This model generates text, and all of it.", param="model")
    if isinstance(request, GenerateRequest) and request.adapter is not None:
        raise AdapterUnsupported("This model takes no LoRA adapters.", param="lora")
    relay = Relay(emit)
    relay.start(model, request, grant)
    return relay
