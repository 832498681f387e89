"""What is said of a batch: how it stands, or all of its answers.

Pure. Read next: `gateway.dialects.batch_bodies`, `gateway.batches.item_forms`.
"""

import msgspec

from contracts.batches import BatchProgress, BatchState
from contracts.ids import RequestId
from gateway.batches.item_forms import ItemOutput, decode_output
from gateway.dialects.batch_bodies import BatchAnswers, BatchStatus, ItemFailure, ItemResult
from gateway.dialects.replies import SuccessEnvelope, encoder, to_usage_fields
from gateway.request_context import add_usages


def render_progress(batch_id: RequestId, progress: BatchProgress) -> bytes:
    """The body of an answer about a batch."""
    if progress.state is not BatchState.DONE:
        status = BatchStatus(progress.state, batch_id, progress.model)
        return encoder.encode(SuccessEnvelope(status))
    outputs = [decode_output(output) for output in progress.outputs]
    responses = tuple(map(_to_result, range(len(outputs)), outputs))
    usage = to_usage_fields(add_usages([output.usage for output in outputs]))
    return encoder.encode(SuccessEnvelope(BatchAnswers(responses, usage)))


def _to_result(index: int, output: ItemOutput) -> ItemResult:
    """The answer to one request."""
    if output.result is None:
        failure = ItemFailure(output.code, output.message)
        return ItemResult(index, False, None, output.reference, failure)
    return ItemResult(index, True, msgspec.Raw(output.result), output.reference)
