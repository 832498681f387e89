"""Hearth and the peers as servers of one checkpoint: started, waited for, weighed, ended.

Each gets as many threads as there are cores and room for as many sequences as will come.
Read next: `cpu_peers` (which installs the others), `bench_cpu_peers`.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engine.cpu_peers import CHECKPOINT, find_llama
from benchmarks.gateway.bench_processes import choose_port, python
from cli.dev.home import DevHome
from cli.dev.preparation import prepare
from cli.dev.settings_files import LOOPBACK, DevPorts
from contracts.ids import ModelName
from gpu_pool.load_progress import NobodyListens
from gpu_pool.model_settings import ServedModelSettings
from gpu_pool.worker.preparation import prepare_copy

NUM_THREADS = os.cpu_count() or 1
PEER_MODEL = "peer"
OUR_MODEL = ModelName("@bench/random/qwen3")
KV_BYTES = 1 << 30
"""What a server that asks for it is given for keys and values: 32 sequences of 256 tokens fit."""


_CPU_CLOCK = 2
"""Of a process, in the number of a clock. Source: clock_getcpuclockid(3), as glibc has it."""
ONEDNN_LEVELS = {"avx512": "AVX512_CORE", "avx2": "AVX2"}


@dataclass(frozen=True)
class Launch:
    """How a server is started, and how it is asked for completions."""

    provider: str
    commands: list[list[str]]
    port: int
    model: str
    prefix: str = "/v1"
    api_token: str = "-"
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    health_url: str = ""
    """Answers 200 as soon as a request would be served, where that is told."""

    @property
    def url(self) -> str:
        """Of completions."""
        return f"http://{LOOPBACK}:{self.port}{self.prefix}/completions"


def launch_hearth(
    folder: Path,
    num_sequences: int,
    level: str | None,
    checkpoint: Path | None = None,
    *,
    is_prepared: bool = True,
) -> Launch:
    """A gateway and a node with this one model, as `hearth dev` sets them up; that of `folder`
    unless told otherwise, and prepared as `hearth models add` does: not for a `level`, whose node
    keeps a copy of its own.
    """
    home = DevHome(folder / "hearth")
    home.create()
    ports = DevPorts(choose_port(), choose_port(), choose_port())
    checkpoint = checkpoint or folder / CHECKPOINT
    if level is None and is_prepared:
        prepare_copy(checkpoint, NobodyListens(), NUM_THREADS)
    models = (ServedModelSettings(name=OUR_MODEL, path=checkpoint),)
    credentials = asyncio.run(prepare(home, ports, models)).credentials
    commands = [
        python("cli", name, "--config", str(settings.resolve()))
        for name, settings in (("node", home.node_settings), ("gateway", home.gateway_settings))
    ]
    environment = {
        "HEARTH_POOL__ENGINE__KV_BYTES": str(KV_BYTES),
        "HEARTH_POOL__ENGINE__MAX_RUNNING": str(num_sequences),
        "HEARTH_POOL__ENGINE__CPU_LEVEL": level or "auto",
        # None is refused: what is asked is how long it takes.
        "HEARTH_GATEWAY__LIMITS__QUEUE_DEADLINE_S": "600",
    }
    prefix = f"/client/v4/accounts/{credentials.account_id}/ai/v1"
    token = credentials.api_token.reveal()
    health_url = f"http://{LOOPBACK}:{ports.gateway}/health/ready"
    return Launch(
        "hearth", commands, ports.gateway, OUR_MODEL, prefix, token, environment, health_url
    )


def launch_llama(folder: Path, num_sequences: int, level: str | None) -> Launch:
    """llama.cpp's server, with a slot of 256 tokens for every sequence."""
    port = choose_port()
    options = {
        "-m": folder / f"{CHECKPOINT}.gguf",
        "--alias": PEER_MODEL,
        "--host": LOOPBACK,
        "--port": port,
        "-t": NUM_THREADS,
        "-tb": NUM_THREADS,
        "-np": num_sequences,
        "-c": 256 * num_sequences,
    }
    command = [str(find_llama(folder, level)), *_flatten(options)]
    return Launch("llama.cpp", [command], port, PEER_MODEL)


def launch_vllm(folder: Path, num_sequences: int, level: str | None) -> Launch:
    """vLLM's OpenAI server.

    By its module: `vllm serve` asks for the metadata of a package that has another name here.
    """
    port = choose_port()
    options = {
        "--model": folder / CHECKPOINT,
        "--served-model-name": PEER_MODEL,
        "--host": LOOPBACK,
        "--port": port,
        "--dtype": "bfloat16",
        "--max-model-len": 2048,
        "--max-num-seqs": num_sequences,
    }
    program = [str(folder / "vllm/bin/python"), "-m", "vllm.entrypoints.openai.api_server"]
    command = [*program, *_flatten(options), "--disable-uvicorn-access-log"]
    environment = describe_vllm(folder, level)
    return Launch("vLLM", [command], port, PEER_MODEL, environment=environment)


def describe_vllm(folder: Path, level: str | None) -> dict[str, str]:
    """vLLM's environment. Its own kernels cannot be held to a level, oneDNN's products can."""
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(KV_BYTES >> 30),
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{NUM_THREADS - 1}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CACHE_ROOT": str(folder / "vllm-cache"),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "HF_HUB_OFFLINE": "1",
    }
    if level is not None:
        environment["ONEDNN_MAX_CPU_ISA"] = ONEDNN_LEVELS[level]
    return environment


SERVERS: Mapping[str, Callable[[Path, int, str | None], Launch]] = {
    "hearth": launch_hearth,
    "llama.cpp": launch_llama,
    "vLLM": launch_vllm,
}


@contextmanager
def run(launch: Launch, log: Path) -> Generator[list["subprocess.Popen[bytes]"]]:
    """The server's processes, each with a session of its own; all are ended after the block, which
    SIGTERM ends, too."""
    processes: list[subprocess.Popen[bytes]] = []
    environment = {**os.environ, **launch.environment}
    # Compiled sources are kept, as in an installation: it costs our processes a second or two.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with log.open("ab") as output, _exit_on_sigterm():
        try:
            processes.extend(  # one by one: each is ended, wherever a signal comes
                subprocess.Popen(
                    command, stdout=output, stderr=output, env=environment, start_new_session=True
                )
                for command in launch.commands
            )
            yield processes
        finally:
            for process in processes:
                _end(process)


@contextmanager
def _exit_on_sigterm() -> Generator[None]:
    """Inside, the signal raises `SystemExit`, once: what ends processes is not to be cut short."""

    def leave(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def measure_memory_bytes(processes: list["subprocess.Popen[bytes]"]) -> int:
    """What the processes and all below them hold, where what several share counts once."""
    total = 0
    for folder in _walk([process.pid for process in processes]):
        with suppress(OSError):
            lines = (folder / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return total


def measure_work_s(process: "subprocess.Popen[bytes]") -> float:
    """Seconds of CPUs that a process, and all that run below it, have had."""
    total_s = 0.0
    for folder in _walk([process.pid]):
        with suppress(OSError):
            total_s += time.clock_gettime(~int(folder.name) << 3 | _CPU_CLOCK)
    return total_s


def _walk(waiting: list[int]) -> Iterator[Path]:
    """What the system tells of processes and all below them, each in a folder."""
    while waiting:
        folder = Path(f"/proc/{waiting.pop()}")
        with suppress(OSError):
            for thread in (folder / "task").iterdir():
                waiting += [int(child) for child in (thread / "children").read_text().split()]
            yield folder


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Politely, then with all that it has started."""
    process.terminate()
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _flatten(options: Mapping[str, object]) -> list[str]:
    return [str(word) for pair in options.items() for word in pair]
