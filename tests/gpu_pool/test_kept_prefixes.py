"""A node that keeps prefixes in files: killed at any moment, its next core finds what is whole.

What the files hold beside that: `tests.gpu_pool.models.test_tiers`.
"""

import re
from pathlib import Path

import httpx
import numpy as np
import pytest
from tokenizers import Tokenizer

from contracts.inference import Delta, Finished, GenerationEvent
from gpu_pool.kv.tiers.file_tier import name_model_folder
from tests.fixtures.free_port import find_port
from tests.fixtures.gateway_client import GatewayClient, ask
from tests.fixtures.node_process import (
    MODEL,
    kill_hard,
    list_children,
    run_node_process,
    wait_until,
)
from tests.fixtures.random_checkpoint import write_random_checkpoint

pytestmark = pytest.mark.slow

PROMPT = "The canary sings at noon. "


def read_metric(port: int, name: str) -> float:
    """The sum over all labels; -1 where there is no such metric."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    values = re.findall(rf"^{name}\{{.*?\}} (\S+)$", text, re.MULTILINE)
    return sum(map(float, values)) if values else -1.0


def read_file_tier(port: int, figure: str) -> float:
    """A figure of the tier of files; -1 while it has not been told."""
    text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    pattern = rf'^hearth_node_kv_tier_{figure}\{{[^}}]*tier="file"[^}}]*\}} (\S+)$'
    found = re.search(pattern, text, re.MULTILINE)
    return float(found[1]) if found else -1.0


def read_text(events: list[GenerationEvent]) -> str:
    """The answer."""
    assert isinstance(events[-1], Finished)
    return "".join(event.text for event in events if isinstance(event, Delta))


def list_secrets(checkpoint: Path) -> list[bytes]:
    """What is the client's of a request: a prompt's text and tokens, its account and the salt."""
    ids = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(PROMPT * 3).ids[1:17]
    tokens = [np.array(ids, kind).tobytes() for kind in ("<u2", "<i4", "<i8")]
    return [PROMPT.encode(), *tokens, b"s" * 32, b"a" * 32]


def count_found(folder: Path, secrets: list[bytes]) -> int:
    """How many of them stand in a file, or in a name, below a folder."""
    paths = list(folder.rglob("*"))
    texts = [path.read_bytes() for path in paths if path.is_file()]
    texts += [str(path).encode() for path in paths]
    return sum(any(secret in text for text in texts) for secret in secrets)


async def test_a_core_that_was_killed_finds_its_files_again(tmp_path: Path) -> None:
    """And nothing of the request is in any file of the node, be it a tier's or a log."""
    checkpoint = write_random_checkpoint(tmp_path / "model")
    files, port = tmp_path / "kv", find_port()
    gone = files / name_model_folder("a model that is gone")
    gone.mkdir(parents=True)
    (gone / "lock").touch()
    settings = f"""
[engine.tiers.host]
max_bytes = 1000000000
[engine.tiers.file]
path = "{files}"
max_bytes = 1000000000
[metrics]
port = {port}
"""
    request = ask(MODEL, PROMPT * 40, max_tokens=8, ignore_eos=True, temperature=0.0)
    with run_node_process(tmp_path, checkpoint, more_settings=settings) as (process, address):
        assert not gone.exists()
        (core_pid,) = list_children(process.pid)
        async with GatewayClient(address) as client:
            expected = read_text(await client.generate(request))
            await wait_until(lambda: len(list(files.rglob("*.kv"))) > 20, 60)
            await wait_until(lambda: read_file_tier(port, "kept_total") > 20, 60)
            kill_hard(core_pid)
            halves = [next(files.rglob("*.kv")).with_suffix(".part"), *files.rglob("*.part")]
            halves[0].write_bytes(b"half of a block")
            await wait_until(lambda: set(list_children(process.pid)) - {core_pid} != set(), 60)
            other = ask(MODEL, "Something else.", max_tokens=2)
            await client.generate(other)  # the new life's figures come with its first answers
            await wait_until(lambda: 0 <= read_file_tier(port, "kept_total") < 10, 60)
            assert not any(half.exists() for half in halves)
            block_bytes = next(files.rglob("*.kv")).stat().st_size
            assert read_file_tier(port, "bytes") > 20 * block_bytes  # most of the life before
            assert read_text(await client.generate(request)) == expected
    kept = list(files.rglob("*.kv"))
    assert len(kept) > 20
    assert not any(path.stat().st_mode & 0o077 for path in kept)
    secrets = list_secrets(checkpoint)
    assert count_found(tmp_path, secrets) == 0
    (tmp_path / "control").write_bytes(b"".join(secrets))
    assert count_found(tmp_path, secrets) == len(secrets)
