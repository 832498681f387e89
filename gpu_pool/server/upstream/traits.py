"""What each kind of engine understands and tells beyond what all OpenAI-compatible servers do.

Facts, no code: a new kind is one more row. Read next: `request_body`, `engine_watch`,
`engine_metrics`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpu_pool.upstream_settings import EngineKind

CHAT_PATH: Final = "/v1/chat/completions"
TEXT_PATH: Final = "/v1/completions"
MODELS_PATH: Final = "/v1/models"


@dataclass(frozen=True, slots=True)
class LoadMetrics:
    """Names in the engine's Prometheus text, of gauges where nothing else is said."""

    num_running: str
    num_waiting: str
    cache_usage: tuple[str, ...]
    """The share of KV memory in use, 0 to 1: the first that is there counts."""
    cache_tokens: str = ""
    """How many tokens the KV memory holds; empty where `cache_config` says it."""
    cache_config: str = ""
    """An info metric with `num_gpu_blocks`, `block_size` and `enable_prefix_caching` as labels."""
    preempted: str = ""
    """How often requests gave up their place for want of memory; empty: it does not say."""


@dataclass(frozen=True, slots=True)
class EngineTraits:
    """One kind of engine."""

    health_path: str
    has_more_sampling: bool = False
    """Takes `top_k`, `min_p`, `repetition_penalty` and `ignore_eos`."""
    takes_token_ids: bool = False
    """A prompt of `/v1/completions` may be token ids."""
    tells_usage_early: bool = False
    """Takes `continuous_usage_stats`: every chunk says what was used so far."""
    gives_token_ids: bool = False
    """Takes `return_token_ids`: chunks say which tokens they are made of."""
    takes_bad_words: bool = False
    """Takes `bad_words`."""
    takes_reasoning: bool = False
    """Takes earlier thoughts as `reasoning_content` of a message."""
    count_path: str = ""
    """Where messages and prompts are counted; empty: nowhere."""
    info_paths: tuple[str, ...] = ()
    """Where it tells how it was started, by version; none: nowhere."""
    metrics: LoadMetrics | None = None


TRAITS: Final[Mapping[EngineKind, EngineTraits]] = {
    EngineKind.VLLM: EngineTraits(
        health_path="/health",
        has_more_sampling=True,
        takes_token_ids=True,
        tells_usage_early=True,
        gives_token_ids=True,
        takes_bad_words=True,
        takes_reasoning=True,
        count_path="/tokenize",
        metrics=LoadMetrics(
            num_running="vllm:num_requests_running",
            num_waiting="vllm:num_requests_waiting",
            cache_usage=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            cache_config="vllm:cache_config_info",
            preempted="vllm:num_preemptions_total",
        ),
    ),
    EngineKind.SGLANG: EngineTraits(
        health_path="/health",
        has_more_sampling=True,
        takes_token_ids=True,
        tells_usage_early=True,
        takes_reasoning=True,
        info_paths=("/server_info", "/get_server_info"),
        metrics=LoadMetrics(
            num_running="sglang:num_running_reqs",
            num_waiting="sglang:num_queue_reqs",
            cache_usage=("sglang:token_usage",),
            cache_tokens="sglang:max_total_num_tokens",
        ),
    ),
    EngineKind.OPENAI: EngineTraits(health_path=MODELS_PATH),
}
