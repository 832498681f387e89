"""What the core refuses before it schedules anything.

Owns the checks that need the loaded model's figures; must not know the current load.
Read next: `scheduler`, whose `add` calls it.
"""

from contracts.errors import ContextTooLong, InvalidRequest, InvariantBroken, OutOfBlocks
from gpu_pool.engine.messages import AddSequence
from gpu_pool.plan import ExecutorInfo


def check_admission(request: AddSequence, info: ExecutorInfo) -> int:
    """The number of tokens to generate at most.

    Raises: `InvalidRequest`, `ContextTooLong`; `OutOfBlocks` when even an idle pool is too small;
    `InvariantBroken` when the server left out what it has to set.
    """
    max_tokens = request.sampling.max_tokens
    if max_tokens is None or not request.cache_salt:
        raise InvariantBroken("The node lost a part of the request.")
    if not request.token_ids:
        raise InvalidRequest("The prompt is empty.", param="prompt")
    if min(request.token_ids) < 0 or max(request.token_ids) >= info.vocab_size:
        raise InvalidRequest("The prompt has token ids outside the vocabulary.", param="prompt")
    if max_tokens < 1:
        raise InvalidRequest("max_tokens must be at least 1.", param="max_tokens")
    num_tokens = len(request.token_ids) + max_tokens
    if num_tokens > info.context_window:
        raise ContextTooLong(
            f"The prompt has {len(request.token_ids)} tokens and max_tokens is {max_tokens}; "
            f"together they exceed the context window of {info.context_window}."
        )
    # The last token is sampled but never computed, so it needs no room.
    num_blocks = -(-(num_tokens - 1) // info.block_size)
    if num_blocks > info.num_blocks:
        raise OutOfBlocks(
            f"The request needs {num_blocks} blocks of KV memory; "
            f"this node has {info.num_blocks} for the model."
        )
    return max_tokens
