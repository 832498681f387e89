"""A real gateway and a real node on this machine, with a model of random weights behind them.

The node computes on the bench's device; state, keys and the model's files are in a temporary
folder. Read next: `served`, `cli.dev.command` (which starts the same two processes).
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.random_checkpoint import write_random_checkpoint
from benchmarks.gpu.shapes import Shapes
from cli.dev.child_process import ChildProcess, create_hearth_command
from cli.dev.home import DevHome
from cli.dev.preparation import prepare
from cli.dev.readiness import ReadinessProbe, wait_for
from cli.dev.settings_files import LOOPBACK, DevPorts
from cli.dev.supervisor import Supervisor
from contracts.ids import ModelName
from gpu_pool.model_settings import ServedModelSettings

MODEL: Final = ModelName("@bench/random/model")
_ENGINE: Final = "HEARTH_POOL__ENGINE__"
_TEMPLATE: Final = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ServedHearth:
    """What clients and watchers have to know."""

    run_url: str
    api_token: str
    pids: dict[str, int]
    """Of gateway and node; an engine core is below its node."""
    ready_s: float
    """From the start of both until the model answered."""

    def measure_cpu_s(self, name: str) -> float:
        """CPU seconds of a process and all below it so far."""
        parents = _list_parents()
        found = [self.pids[name]]
        for pid in found:  # grows while it is gone through
            found += [child for child, parent in parents.items() if parent == pid]
        return sum(_read_cpu_s(pid) for pid in found)


@contextmanager
def serve(
    bench: Bench, folder: Path, shapes: Shapes, context_window: int, max_running: int, kv_bytes: int
) -> Iterator[ServedHearth]:
    """Starts both processes, waits until the model answers, ends them.

    Raises: `CommandFailed` when one dies or takes too long.
    """
    model = folder / "model"
    model.mkdir()
    write_random_checkpoint(model, shapes, context_window)
    write_tokenizer(model, shapes.vocab_size)
    home, ports = DevHome(folder / "state"), DevPorts(*_choose_ports())
    home.create()
    models = (ServedModelSettings(name=MODEL, path=model),)
    prepared = asyncio.run(prepare(home, ports, models))
    credentials = prepared.credentials
    os.environ |= {
        f"{_ENGINE}DEVICE": bench.device,
        f"{_ENGINE}KV_BYTES": str(kv_bytes),
        f"{_ENGINE}MAX_RUNNING": str(max_running),
        f"{_ENGINE}MAX_BATCH_TOKENS": "8192",
    }
    children = tuple(
        ChildProcess(
            name,
            create_hearth_command(name, "--config", str(settings.resolve())),
            home.logs / f"{name}.log",
        )
        for name, settings in (("node", home.node_settings), ("gateway", home.gateway_settings))
    )
    supervisor = Supervisor(children, Event(), print)
    base_url = f"http://{LOOPBACK}:{ports.gateway}"
    admin_url = f"http://{LOOPBACK}:{ports.admin}"
    probe = ReadinessProbe(base_url, admin_url, credentials.operator.reveal())
    try:
        began_s = time.monotonic()
        supervisor.start()
        patience_s = max(1.0, bench.left_s)
        wait_for(
            lambda: MODEL in probe.list_ready_models(),
            MODEL,
            patience_s,
            Event(),
            supervisor.refuse_deaths,
        )
        yield ServedHearth(
            f"{base_url}/client/v4/accounts/{credentials.account_id}/ai/run/{MODEL}",
            credentials.api_token.reveal(),
            {child.name: pid for child in children if (pid := child.pid) is not None},
            time.monotonic() - began_s,
        )
    finally:
        supervisor.close(lambda: False)


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """A tokenizer of as many ids as the model has: a letter is a token, all other ids are words."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [f"Ġw{number}" for number in range(vocab_size - len(letters) - 1)]
    vocabulary = {"<|end|>": 0} | {word: 1 + i for i, word in enumerate([*letters, *words])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|end|>", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _choose_ports() -> tuple[int, int, int]:
    """Three ports that are free now."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(3)]
    first, second, third = (one.getsockname()[1] for one in sockets)
    for one in sockets:
        one.close()
    return first, second, third


def _list_parents() -> dict[int, int]:
    """Every process's parent."""
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            fields = _read_stat(int(folder.name))
            if fields:
                found[int(folder.name)] = int(fields[1])
    return found


def _read_cpu_s(pid: int) -> float:
    """CPU seconds of a process, of all its threads; 0 when it has gone."""
    fields = _read_stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def _read_stat(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` behind the command's name; none when the process has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
