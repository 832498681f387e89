"""The settings that the operations guide begins with are understood, and fit each other."""

import re
from pathlib import Path

import pytest

from cli.process_settings import read_settings
from gateway.settings import PREFIX as GATEWAY_PREFIX
from gateway.settings import GatewaySettings
from gpu_pool.engine.settings import NgramSettings
from gpu_pool.settings import PREFIX as POOL_PREFIX
from gpu_pool.settings import PoolSettings

ROOT = Path(__file__).parents[2]
HEADING = "\n## As separate processes\n"


def test_gateway_and_node_of_the_guide_belong_together(tmp_path: Path) -> None:
    guide = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = guide.partition(HEADING)[2].partition("\n## ")[0]
    files = re.findall(r"```toml\n# (\S+)\n(.+?)```", section, re.DOTALL)
    assert [name for name, _text in files] == ["gateway.toml", "weur.toml"]
    for name, text in files:
        (tmp_path / name).write_text(text)
    gateway = read_settings(GatewaySettings, tmp_path / "gateway.toml", GATEWAY_PREFIX, {})
    node = read_settings(PoolSettings, tmp_path / "weur.toml", POOL_PREFIX, {})
    (known,) = gateway.nodes
    (allowed,) = node.gateways
    assert (known.node_id, known.region) == (node.node_id, node.region)
    assert known.url == f"ws://{node.listen.host}:{node.listen.port}"
    assert (allowed.gateway_id, allowed.key_file) == (gateway.gateway_id, known.key_file)
    assert (ROOT / node.models[0].path).is_dir()


@pytest.mark.parametrize(
    "heading", ["Prefixes that leave the device", "Nodes for prompts, nodes for answers"]
)
def test_settings_for_kv_memory_are_understood(tmp_path: Path, heading: str) -> None:
    guide = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = guide.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    texts = re.findall(r"```toml\n(.+?)```", section, re.DOTALL)
    assert texts
    for text in texts:
        (tmp_path / "node.toml").write_text(f'node_id = "node-weur"\nregion = "weur"\n{text}')
        node = read_settings(PoolSettings, tmp_path / "node.toml", POOL_PREFIX, {})
        assert node.engine.tiers is not None or node.transfer is not None


def test_the_settings_of_shared_kv_memory_are_understood(tmp_path: Path) -> None:
    guide = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = guide.partition("\n## Models that share KV memory\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"```toml\n(.+?)```", section, re.DOTALL)
    (tmp_path / "node.toml").write_text(text)
    node = read_settings(PoolSettings, tmp_path / "node.toml", POOL_PREFIX, {})
    assert node.shared_kv_bytes == node.engine.most_shared_bytes


def test_the_guides_settings_for_guesses_are_the_defaults(tmp_path: Path) -> None:
    guide = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = guide.partition("\n## Answers that repeat what was said\n")[2].partition("\n## ")[0]
    (text,) = re.findall(r"```toml\n(.+?)```", section, re.DOTALL)
    assert set(re.findall(r"^(\w+) =", text, re.MULTILINE)) == set(NgramSettings.__struct_fields__)
    for guesses in (text, "[engine.ngram]"):
        (tmp_path / "node.toml").write_text(f'node_id = "node-weur"\n{guesses}')
        node = read_settings(PoolSettings, tmp_path / "node.toml", POOL_PREFIX, {})
        assert node.engine.ngram == NgramSettings()
    assert PoolSettings(node_id=node.node_id).engine.ngram is None


def test_the_sections_of_membership_are_understood(tmp_path: Path) -> None:
    guide = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    section = guide.partition("\n## Nodes that come and go\n")[2].partition("\n## ")[0]
    files = dict(re.findall(r"```toml\n# (\S+)\n(.+?)```", section, re.DOTALL))
    (tmp_path / "gateway.toml").write_text(files["gateway.toml"])
    (tmp_path / "node.toml").write_text(f'node_id = "gpu-7"\n{files["node.toml"]}')
    gateway = read_settings(GatewaySettings, tmp_path / "gateway.toml", GATEWAY_PREFIX, {})
    node = read_settings(PoolSettings, tmp_path / "node.toml", POOL_PREFIX, {})
    assert gateway.membership is not None
    assert node.membership is not None
    assert node.membership.advertised_url == "wss://gpu-7:8790"
