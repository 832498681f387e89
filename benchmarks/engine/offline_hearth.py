"""Hearth's engine core alone: scheduler and executor, no server and no text.

Started by `bench_cpu_offline`.
"""

import argparse
from collections.abc import Generator, Iterator

from benchmarks.engine import offline_bursts
from benchmarks.engine.offline_bursts import Burst
from benchmarks.gpu.load import Load, Source, Streams, create_request
from gpu_pool.engine.core import EngineCore
from gpu_pool.engine.settings import SchedulerSettings
from gpu_pool.garbage import settle_garbage
from gpu_pool.worker.settings import CpuLevel, DtypeChoice, WorkerSettings
from gpu_pool.worker.worker import create_executor

_LIMIT_S = 3600.0


class Bursts:
    """One burst after the other, as the parts of a load."""

    def __init__(self, bursts: Generator[Burst, float]) -> None:
        """Nothing is asked before the load takes its first part."""
        self._bursts = bursts
        self.load = Load(self._list_parts(), _LIMIT_S)

    def _list_parts(self) -> Iterator[Source]:
        burst = next(self._bursts, None)
        while burst is not None:
            prompts, num_tokens = burst
            yield Streams(
                create_request(index, prompt, num_tokens, temperature=0.0)
                for index, prompt in enumerate(prompts)
            )
            run = self.load.runs[-1]
            assert run.num_tokens == len(prompts) * num_tokens, "tokens are missing"
            try:
                burst = self._bursts.send(run.seconds)
            except StopIteration:
                burst = None


def main() -> None:
    """Loads the model as a node does and answers every burst."""
    options: argparse.Namespace = offline_bursts.create_parser().parse_args()
    executor = create_executor(
        WorkerSettings(
            model_dir=options.checkpoint,
            dtype=DtypeChoice.BFLOAT16,
            num_threads=options.threads,
            kv_bytes=options.kv_bytes,
            cpu_level=CpuLevel(options.level),
        )
    )
    settle_garbage()
    settings = SchedulerSettings(max_running=max(options.counts))
    EngineCore(executor, settings, Bursts(offline_bursts.ask(options)).load).run()
    executor.close()


if __name__ == "__main__":
    main()
