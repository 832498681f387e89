"""A real model behind the core's own pipes: adapters come beside streams, and wake who waits."""

import threading
from pathlib import Path
from typing import Any

import pytest

from contracts.inference import FinishReason
from gpu_pool.lora.loading import AdapterLoading
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.engine.engine_rig import create_request
from tests.gpu_pool.engine.test_core import serve
from tests.gpu_pool.lora.adapter_files import describe, load, write_adapter
from tests.gpu_pool.lora.test_exactness import create_driver
from tests.gpu_pool.models.family_checkpoint import create_prompt, write_checkpoint
from tests.gpu_pool.parallel.test_families import describe as describe_worker

PROMPT = create_prompt(40, 5)


def test_streams_go_on_while_an_adapter_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = write_checkpoint(tmp_path / "model", "qwen3")
    adapter = write_adapter(tmp_path / "a.safetensors", checkpoint)
    driver = create_driver(checkpoint)
    load(driver.executor, adapter)
    (plain,) = driver.generate([driver.add(PROMPT)], 30)
    driver.adapter = adapter
    (adapted,) = driver.generate([driver.add(PROMPT)], 30)
    driver.executor.close()
    assert plain != adapted
    goes_on = threading.Event()
    load_slowly = AdapterLoading.load

    def wait(self: AdapterLoading, file: Any) -> Any:
        assert goes_on.wait(30)
        return load_slowly(self, file)

    monkeypatch.setattr(AdapterLoading, "load", wait)
    room: dict[str, Any] = {"adapter_bytes": 4 << 20, "max_adapter_rank": 16}
    executor = create_executor(describe_worker(checkpoint, **room))
    with serve(tmp_path, executor) as server:  # type: ignore[arg-type]
        server.send(create_request(1, PROMPT, max_tokens=30, adapter=adapter))
        server.send(create_request(2, PROMPT, max_tokens=30))
        server.receive_until_finished(1)  # the other, with the adapter still on its way
        assert server.list_tokens(2) == plain
        assert not server.list_tokens(1)
        bad = tmp_path / "bad.safetensors"
        bad.write_bytes(b"nothing of the kind")
        goes_on.set()
        server.send(create_request(3, PROMPT, max_tokens=3, adapter=describe(bad)))
        finished = server.receive_until_finished(3)
        assert server.list_tokens(1) == adapted
        outcomes = {one.sequence_id: one for one in finished}
        assert outcomes[1].reason is FinishReason.LENGTH
        error = outcomes[3].error
        assert error is not None
        assert error.code == "adapter_unsupported"
    executor.close()
