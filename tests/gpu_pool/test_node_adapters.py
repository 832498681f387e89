"""An adapter's whole way on a node: over the wire, to the disk, to a real core, into the answer."""

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from contracts.ids import AccountId
from contracts.inference import Accepted, GenerateRequest, GenerationEvent
from tests.fixtures.gateway_client import GatewayClient, ask, failure_code, join_ids
from tests.fixtures.node_process import MODEL, run_node_process
from tests.fixtures.random_checkpoint import write_random_checkpoint
from tests.gateway.file_reader import make_ref
from tests.gpu_pool.lora.adapter_files import merge, write_adapter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PLAIN = ask(MODEL, "Tell me of adapters, please.", max_tokens=24, ignore_eos=True)
SCALE = 2.0


async def generate(
    client: GatewayClient, request: GenerateRequest, content: bytes, letter: str = "a"
) -> list[GenerationEvent]:
    """The answer; the node gets what it asks for of the file."""
    stream = await client.open(request, account_id=AccountId(letter * 32))
    feeding = asyncio.create_task(client.feed(stream, content))
    try:
        return await stream.read_all()
    finally:
        feeding.cancel()


def copy_tokenizer(checkpoint: Path, target: Path) -> None:
    """What merging weights leaves out."""
    for path in checkpoint.glob("tokenizer*"):
        shutil.copy(path, target)


async def test_an_answer_with_an_adapter_is_that_of_merged_weights(tmp_path: Path) -> None:
    checkpoint = write_random_checkpoint(tmp_path / "model")
    file = write_adapter(tmp_path / "a.safetensors", checkpoint, scale=SCALE, size=0.5)
    merged = merge(checkpoint, file, tmp_path / "merged")
    copy_tokenizer(checkpoint, merged)
    content, none = (tmp_path / "a.safetensors").read_bytes(), b"no file of tensors"
    adapted = msgspec.structs.replace(PLAIN, adapter=make_ref(content, SCALE, rank=4))
    unfit = msgspec.structs.replace(PLAIN, adapter=make_ref(none))
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with run_node_process(tmp_path / "one", checkpoint) as (_, address):
        async with GatewayClient(address) as client:
            plain = join_ids(await generate(client, PLAIN, b""))
            first = await generate(client, adapted, content)
            again = await generate(client, adapted, b"", "b")
            assert failure_code(await generate(client, unfit, none)) == "adapter_unsupported"
            assert join_ids(await generate(client, PLAIN, b"")) == plain
    with run_node_process(tmp_path / "two", merged) as (_, address):
        async with GatewayClient(address) as client:
            wanted = join_ids(await generate(client, PLAIN, b""))
    assert wanted == join_ids(first) == join_ids(again)
    assert wanted != plain  # the control: the adapter changes something
    accepted = again[0]
    assert isinstance(accepted, Accepted)
    assert accepted.num_cached_tokens > 0
