"""Which kind of request goes to which kind of model of our own.

Read next: `generation` (text), `encoding` (vectors).
"""

from collections.abc import Callable

from contracts.encoding import EncodeRequest
from contracts.errors import UnsupportedFeature
from contracts.grant import Grant
from contracts.inference import GenerateRequest, NodeRequest
from contracts.kv_transfer import KvHalf, KvTicket
from contracts.wire import StreamEvent
from gpu_pool.server.encoding import Encoding
from gpu_pool.server.generation import Generation
from gpu_pool.server.hand_over import HandOver
from gpu_pool.server.hosted_model import HostedModel, RunningRequest
from gpu_pool.server.served_encoder import ServedEncoder
from gpu_pool.server.served_model import ServedModel


def start_at_core(
    model: HostedModel,
    request: NodeRequest,
    grant: Grant,
    emit: Callable[[StreamEvent], None],
    ticket: KvTicket | None = None,
) -> RunningRequest:
    """`request` under way at `model`; `emit` is called with its events, perhaps at once.

    With a `ticket` only one half of it is: see `contracts.kv_transfer`.
    Raises: `UnsupportedFeature` when the model does something else.
    """
    if ticket is not None and not isinstance(request, GenerateRequest):
        raise UnsupportedFeature("Only generated text has KV blocks that move.", param="model")
    if ticket is not None and ticket.half is KvHalf.PREFILL:
        if not isinstance(model, ServedModel) or not isinstance(request, GenerateRequest):
            raise UnsupportedFeature("This model has no KV blocks that move.", param="model")
        hand_over = HandOver(ticket, emit)
        hand_over.start(model, request, grant)
        return hand_over
    if isinstance(request, EncodeRequest) and isinstance(model, ServedEncoder):
        encoding = Encoding(emit)
        encoding.start(model, request, grant)
        return encoding
    if not isinstance(request, EncodeRequest) and isinstance(model, ServedModel):
        generation = Generation(emit, ticket)
        generation.start(model, request, grant)
        return generation
    if isinstance(model, ServedModel):
        raise UnsupportedFeature("This model generates text; it gives no vectors.", param="model")
    raise UnsupportedFeature("This model encodes text; it generates none.", param="model")
