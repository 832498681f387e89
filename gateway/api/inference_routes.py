"""Every path that asks a model for something, and the language it speaks.

Read next: `gateway.api.tenant_routes`, which adds the pages; `gateway.dialects.dialect`.
"""

from typing import Final

from gateway.api.query_fields import Flag, QueryField
from gateway.api.route_table import Route
from gateway.auth.access import Needs
from gateway.dialects.anthropic_messages import ANTHROPIC_COUNT, ANTHROPIC_MESSAGES
from gateway.dialects.batch_bodies import QUEUE_PARAMETER
from gateway.dialects.completions import COMPLETIONS
from gateway.dialects.dialect import Dialect
from gateway.dialects.embeddings import EMBEDDINGS
from gateway.dialects.openai_chat import OPENAI_CHAT
from gateway.dialects.responses import RESPONSES
from gateway.dialects.workers_ai import WORKERS_AI, WORKERS_AI_NAMED
from tenancy.interfaces import Permission

ACCOUNT: Final = "/client/v4/accounts/{account_id}"
INFERENCE: Final = Needs(Permission.WORKERS_AI_READ)


def create_inference_routes() -> tuple[Route, ...]:
    """The routes; their table is checked with the pages."""
    dialects: tuple[tuple[str, str, Dialect], ...] = (
        ("run", "/ai/run/{model:path}", WORKERS_AI),
        ("run_named", "/ai/run", WORKERS_AI_NAMED),
        ("chat_completions", "/ai/v1/chat/completions", OPENAI_CHAT),
        ("completions", "/ai/v1/completions", COMPLETIONS),
        ("embeddings", "/ai/v1/embeddings", EMBEDDINGS),
        ("responses", "/ai/v1/responses", RESPONSES),
        ("messages", "/ai/v1/messages", ANTHROPIC_MESSAGES),
        ("messages_count", "/ai/v1/messages/count_tokens", ANTHROPIC_COUNT),
        # Anthropic's client appends `/v1/messages` to whatever base it is given.
        ("messages_alias", "/ai/v1/v1/messages", ANTHROPIC_MESSAGES),
        ("messages_count_alias", "/ai/v1/v1/messages/count_tokens", ANTHROPIC_COUNT),
    )
    return tuple(
        Route(
            name,
            "POST",
            ACCOUNT + path,
            INFERENCE,
            dialect=dialect,
            query=(QueryField(QUEUE_PARAMETER, Flag),) if dialect.takes_batches else (),
        )
        for name, path, dialect in dialects
    )
