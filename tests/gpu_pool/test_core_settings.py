"""What an engine core is told, as a file."""

from pathlib import Path

from contracts.ids import ModelName, NodeId
from contracts.sections import LogSettings
from gpu_pool.core_settings import CoreSettings, decode_core_settings, encode_core_settings
from gpu_pool.model_settings import EngineSettings, ServedModelSettings


def test_a_core_reads_what_the_server_writes() -> None:
    settings = CoreSettings(
        node_id=NodeId("n"),
        model=ServedModelSettings(name=ModelName("@a/b"), path=Path("/models/b")),
        engine=EngineSettings(num_threads=2),
        transfer=None,
        num_default_threads=3,
        log=LogSettings(),
        to_core_endpoint="ipc:///a",
        from_core_endpoint="ipc:///b",
        parent_pid=1,
    )
    assert decode_core_settings(encode_core_settings(settings)) == settings
