"""What a node starts is Hearth's own code, wherever the node itself was started."""

import subprocess
from pathlib import Path

import pytest

from gpu_pool.kv.tiers.mooncake_life import AGENT_COMMAND as STORE_COMMAND
from gpu_pool.node import CORE_COMMAND
from gpu_pool.structured.grammar_trial import COMMAND as TRIAL_COMMAND
from gpu_pool.transfer.agent_client import AGENT_COMMAND
from gpu_pool.worker.rank_team import COMMAND as RANK_COMMAND

COMMANDS = {
    "core": CORE_COMMAND,
    "rank": RANK_COMMAND,
    "trial": TRIAL_COMMAND,
    "transfer": AGENT_COMMAND,
    "store": STORE_COMMAND,
}
SAFE = "-P"


def leaves_trace(command: tuple[str, ...], folder: Path) -> bool:
    """Whether code in `folder`, named as a library is, was run by a process that begins there."""
    trace = folder / "trace"
    trace.unlink(missing_ok=True)
    for library in ("msgspec", "torch", "structlog", "gpu_pool"):
        (folder / f"{library}.py").write_text(f"open({str(trace)!r}, 'w'); raise SystemExit(1)")
    subprocess.run(
        [*command, "nothing"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return trace.exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_code_in_the_folder_where_a_node_was_started_is_not_run(name: str, tmp_path: Path) -> None:
    """It may be a checkpoint's, as it was downloaded."""
    command = COMMANDS[name]
    assert not leaves_trace(command, tmp_path)
    control = tuple(word for word in command if word != SAFE)
    assert leaves_trace(control, tmp_path)
