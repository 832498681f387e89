"""The node's settings: every option name is frozen, and odd values are refused by name."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from contracts.settings import SettingsError, decode_settings, list_option_names
from gpu_pool.engine.settings import NgramSettings
from gpu_pool.settings import PREFIX, PoolSettings
from gpu_pool.upstream_settings import PrefixCache

GUIDE = (Path(__file__).parents[2] / "docs/operations.md").read_text()
OPTIONS = """
drain_s engine.adapter_bytes engine.max_adapter_rank
engine.block_size engine.check_weights engine.cpu_level engine.device engine.kv_bytes
engine.kv_dtype engine.kv_least_bytes kv_shared_bytes
engine.max_account_waiting
engine.max_account_waiting_tokens engine.max_batch_tokens engine.max_chunk_tokens engine.max_running
engine.max_pause_ms
engine.max_silence_s engine.max_waiting engine.max_waiting_tokens engine.ngram.max_draft_tokens
engine.ngram.max_match_tokens engine.ngram.max_step_drafts engine.ngram.min_match_tokens
engine.native_kernels engine.num_threads engine.packed_copies engine.prefix_caching
engine.row_invariant
engine.swap_bytes
engine.tiers.file.account_bytes engine.tiers.file.max_bytes engine.tiers.file.path
engine.tiers.host.account_bytes engine.tiers.host.max_bytes engine.tiers.staging_tokens
engine.tiers.store.account_bytes engine.tiers.store.call_s engine.tiers.store.local_host
engine.tiers.store.master engine.tiers.store.max_bytes engine.tiers.store.protocol
engine.tiers.store.network_namespace engine.tiers.store.regions engine.tiers.store.segment_bytes
adapters.disk_bytes adapters.folder adapters.keep_days
gateways[].gateway_id gateways[].key_file hello_timeout_s jurisdiction listen.host listen.port
listen.tls.certificate_file listen.tls.key_file
log.format log.level max_cold_wait_s max_cold_waiting
membership.advertised_url membership.budget_s membership.url
metrics.host metrics.port metrics.tls.certificate_file metrics.tls.key_file
models[].description models[].dtype models[].name models[].path models[].pipeline_parallel
models[].service_class models[].tensor_parallel
node_id placement.device_bytes placement.host_bytes placement.turn_s region
role roles running_costs.per_hour running_costs.per_kilowatt_hour
tracing.ca_file tracing.endpoint tracing.flush_s tracing.headers_file tracing.max_waiting
tracing.sample_share tracing.timeout_s transfer.batch_s transfer.engine transfer.host
transfer.network_namespace
placement.disk_bytes weights_token
upstreams[].api_key_file upstreams[].ca_file upstreams[].connect_s upstreams[].context_window
upstreams[].description upstreams[].features upstreams[].keeps_nothing upstreams[].kind
upstreams[].max_running upstreams[].name upstreams[].poll_s upstreams[].prefix_cache
upstreams[].served_name upstreams[].silence_s upstreams[].url
"""


def decode(table: dict[str, Any], environ: dict[str, str] | None = None) -> PoolSettings:
    return decode_settings(PoolSettings, table, environ or {}, PREFIX)


def test_the_options_are_these() -> None:
    """A model's own engine section has the options of the node's."""
    names = OPTIONS.split()
    of_models = [f"models[].{name}" for name in names if name.startswith("engine.")]
    assert list_option_names(PoolSettings) == tuple(sorted([*names, *of_models]))


def read_blocks() -> list[dict[str, Any]]:
    """Each piece of a settings file that the operations guide shows."""
    blocks = re.findall(r"```toml\n(.*?)```", GUIDE, re.DOTALL)
    return [tomllib.loads(block) for block in blocks]


def test_the_operations_guide_names_every_option() -> None:
    names = {name.rpartition(".")[2] for name in OPTIONS.split()}
    missing = {name for name in names if not re.search(rf"\b{name}\b", GUIDE)}
    assert missing == set()


def test_the_limits_in_the_operations_guide_are_the_defaults() -> None:
    (shown,) = [b["engine"] for b in read_blocks() if "max_running" in b.get("engine", {})]
    assert len(shown) == 9
    assert decode({"engine": shown}) == PoolSettings()
    changed = {"engine": shown | {"max_chunk_tokens": 1}}
    assert decode(changed) != PoolSettings()  # the control


def test_every_engine_section_of_the_operations_guide_is_one() -> None:
    sections = [block["engine"] for block in read_blocks() if "engine" in block]
    assert len(sections) > 4
    for section in sections:
        decode({"region": "weur", "engine": section})
    with pytest.raises(SettingsError, match="max_runing"):
        decode({"engine": {"max_runing": 8}})


def test_a_model_may_have_an_engine_section_of_its_own() -> None:
    table = {
        "models": [
            {"name": "@cf/a/a", "path": "/a", "engine": {"max_running": 2, "ngram": {}}},
            {"name": "@cf/b/b", "path": "/b"},
        ],
        "engine": {"max_running": 8},
    }
    first, second = decode(table).models
    assert first.engine is not None
    assert (first.engine.max_running, first.engine.ngram) == (2, NgramSettings())
    assert second.engine is None


def test_models_share_as_much_kv_memory_as_one_of_them_can_take() -> None:
    table = {
        "models": [
            {"name": "@a/a", "path": "a", "engine": {"kv_bytes": 90, "kv_least_bytes": 40}},
            {"name": "@a/b", "path": "b", "engine": {"kv_bytes": 100, "kv_least_bytes": 20}},
            {"name": "@a/c", "path": "c"},
        ]
    }
    assert decode(table).shared_kv_bytes == 80
    assert decode({**table, "kv_shared_bytes": 30}).shared_kv_bytes == 30
    assert decode({}).shared_kv_bytes == 0  # the control


def test_defaults_work_without_a_file() -> None:
    assert decode({}) == PoolSettings()


def test_a_file_is_decoded() -> None:
    settings = decode(
        {
            "gateways": [{"gateway_id": "gateway-1", "key_file": "/run/key"}],
            "models": [{"name": "@cf/meta/llama", "path": "/models/llama", "dtype": "bfloat16"}],
            "engine": {"max_running": 8},
        },
        {"HEARTH_POOL__ENGINE__KV_BYTES": "1000000"},
    )
    assert settings.gateways[0].key_file == Path("/run/key")
    assert settings.models[0].path == Path("/models/llama")
    assert settings.engine.max_running == 8
    assert settings.engine.kv_bytes == 1_000_000


UPSTREAM: dict[str, Any] = {
    "name": "@a/b",
    "url": "http://127.0.0.1:8000",
    "kind": "vllm",
    "served_name": "b",
    "prefix_cache": "salted",
}


def test_an_engine_of_others_is_described() -> None:
    (upstream,) = decode({"upstreams": [UPSTREAM]}).upstreams
    assert upstream.prefix_cache is PrefixCache.SALTED
    assert not upstream.keeps_nothing


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prefix_cache": ""}, "`prefix_cache` must be said.*by timing"),
        ({"prefix_cache": "shared"}, "prefix_cache"),
        ({"url": "localhost:8000"}, "`url` must be"),
        ({"url": "http://me:pass@host"}, "api_key_file"),
        ({"url": "http://host/v1/"}, "before `/v1`"),
        ({"kind": "openai"}, "`context_window` must be said"),
        ({"kind": "ollama"}, "kind"),
        ({"served_name": ""}, "served_name"),
        ({"name": "b"}, "@scope"),
        ({"max_running": 0}, "max_running"),
        ({"silence_s": 0}, "silence_s"),
        ({"features": ["flying"]}, "features"),
    ],
)
def test_an_engine_of_others_that_is_described_badly_is_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        decode({"upstreams": [UPSTREAM | changes]})


def test_there_is_no_default_for_how_an_engine_of_others_keeps_accounts_apart() -> None:
    unsaid = {name: value for name, value in UPSTREAM.items() if name != "prefix_cache"}
    with pytest.raises(SettingsError, match="`prefix_cache` must be said"):
        decode({"upstreams": [unsaid]})


def test_a_model_is_our_own_or_of_others_but_not_both() -> None:
    with pytest.raises(SettingsError, match="listed twice"):
        decode({"models": [{"name": "@a/b", "path": "p"}], "upstreams": [UPSTREAM]})


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"node_id": "a b"}, "node_id"),
        ({"jurisdiction": "EU"}, "`EU` names no jurisdiction: it takes up to 63 lower"),
        ({"jurisdiction": "x" * 64}, "names no jurisdiction"),
        ({"jurisdiction": "any"}, "No jurisdiction is called `any`"),
        ({"region": "any"}, "No region is called `any`"),
        ({"region": "we ur"}, "`we ur` is not a region's name"),
        ({"listen": {"port": 70_000}}, "port"),
        ({"gateways": [{"gateway_id": "", "key_file": "k"}]}, "gateway_id"),
        ({"models": [{"name": "llama", "path": "p"}]}, "@scope"),
        ({"models": [{"name": "@a/b", "path": "p"}] * 2}, "The model `@a/b` is listed twice"),
        ({"gateways": [{"gateway_id": "g", "key_file": "k"}] * 2}, "gateway `g` is listed twice"),
        ({"engine": {"max_batch_tokens": 8, "max_running": 64}}, "max_batch_tokens"),
        ({"engine": {"block_size": 24}}, "block_size is 16, 32 or 64"),
        ({"engine": {"block_size": 0}}, "block_size"),
        ({"engine": {"max_silence_s": 0.5}}, "max_silence_s"),
        ({"engine": {"max_silence_s": 1e6}}, "max_silence_s"),
        ({"engine": {"kv_bytes": 10, "kv_least_bytes": 11}}, "a part of kv_bytes"),
        ({"engine": {"kv_least_bytes": 10, "device": "cuda"}}, "GPU"),
        ({"kv_shared_bytes": 10}, "kv_least_bytes"),
        (
            {
                "engine": {"kv_least_bytes": 10},
                "models": [{"name": "@a/b", "path": "p", "tensor_parallel": 2}],
            },
            "several processes",
        ),
        (
            {
                "engine": {"kv_bytes": 100, "kv_least_bytes": 10},
                "models": [{"name": "@a/b", "path": "p"}],
                "placement": {"device_bytes": 90},
            },
            "device_bytes",
        ),
        ({"log": {"level": "loud"}}, "level"),
        ({"engine": {"device": "tpu"}}, "device"),
        ({"models": [{"name": "@a/b", "path": "p", "dtype": "bf16"}]}, "dtype"),
        ({"models": [{"name": "@a/b", "path": "p", "tensor_parallel": 0}]}, "tensor_parallel"),
        (
            {
                "models": [
                    {"name": "@a/b", "path": "p", "tensor_parallel": 9, "pipeline_parallel": 9}
                ]
            },
            "at most 64",
        ),
        ({"models": [{"name": "@a/b", "paht": "p"}]}, r"models\[0\]\.paht"),
        ({"gateways": [{"gateway_id": "g", "kee_file": "k"}]}, r"gateways\[0\]\.kee_file"),
        *(
            ({"running_costs": {name: price}}, name)
            for name in ("per_hour", "per_kilowatt_hour")
            for price in (-1, float("nan"), float("inf"), 1e30)
        ),
    ],
)
def test_odd_values_are_refused(table: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        decode(table)


def test_a_store_that_is_said_to_be_elsewhere_than_its_node_is_refused() -> None:
    def tell(*regions: str) -> dict[str, Any]:
        store = {"master": "10.77.0.5:50051", "max_bytes": 1, "regions": regions}
        return {"tiers": {"store": store}}

    elsewhere, here = tell("enam"), tell("enam", "weur")
    model = {"name": "@cf/a/a", "path": "/a"}
    for table in (
        {"engine": elsewhere},
        {"engine": here, "models": [model | {"engine": elsewhere}]},
    ):
        with pytest.raises(SettingsError, match="lack weur"):
            decode({"region": "weur", **table})
    assert decode({"region": "weur", "engine": here}).engine.tiers  # the control


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"role": "decode", "roles": ["decode"], "transfer": {}}, "both of them"),
        ({"role": "decode", "roles": ["decode", "mixed"], "transfer": {}}, "both of them"),
        ({"role": "mixed", "roles": ["prefill", "decode"], "transfer": {}}, "none of `roles`"),
        ({"role": "decode", "roles": ["prefill", "decode"]}, "need `[transfer]`"),
    ],
)
def test_roles_that_a_node_could_not_take_are_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=re.escape(said)):
        decode(table)
    taken = {"role": "decode", "roles": ["prefill", "decode"], "transfer": {}}
    assert decode(taken).roles  # the control
