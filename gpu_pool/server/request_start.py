"""Which kind of request goes to which kind of model.

Read next: `generation` (text), `encoding` (vectors).
"""

from collections.abc import Callable

from contracts.encoding import EncodeRequest
from contracts.errors import UnsupportedFeature
from contracts.grant import Grant
from contracts.inference import GenerationEvent, NodeRequest
from gpu_pool.server.encoding import Encoding
from gpu_pool.server.generation import Generation
from gpu_pool.server.hosted_model import HostedModel, RunningRequest
from gpu_pool.server.served_encoder import ServedEncoder
from gpu_pool.server.served_model import ServedModel


def start_request(
    model: HostedModel,
    request: NodeRequest,
    grant: Grant,
    emit: Callable[[GenerationEvent], None],
) -> RunningRequest:
    """`request` under way at `model`; `emit` is called with its events, perhaps at once.

    Raises: `UnsupportedFeature` when the model does something else.
    """
    if isinstance(request, EncodeRequest) and isinstance(model, ServedEncoder):
        encoding = Encoding(emit)
        encoding.start(model, request, grant)
        return encoding
    if not isinstance(request, EncodeRequest) and isinstance(model, ServedModel):
        generation = Generation(emit)
        generation.start(model, request, grant)
        return generation
    if isinstance(model, ServedModel):
        raise UnsupportedFeature("This model generates text; it gives no vectors.", param="model")
    raise UnsupportedFeature("This model encodes text; it generates none.", param="model")
