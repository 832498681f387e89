"""A process that loads a model and draws one token, and says when it got how far.

    python -m benchmarks.gpu.first_token FOLDER DEVICE

Prints seconds since the process began, as JSON. Read next: `start` (which runs it).
"""

import time

BEGAN_S = time.time()  # before anything is imported, which takes longest

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402


def main() -> None:
    """Marks each part's end."""
    folder, device = Path(sys.argv[1]), sys.argv[2]
    marks = {"interpreter": BEGAN_S}
    import torch

    from benchmarks.gpu.load import Streams, carry, create_request, create_settings
    from gpu_pool.compute_choice import WeightCheck
    from gpu_pool.models.network import CausalModel, CausalNetwork
    from gpu_pool.weights.reader import JoinParts
    from gpu_pool.worker.model_loading import ModelLoader
    from gpu_pool.worker.settings import WorkerSettings
    from gpu_pool.worker.worker import create_executor

    class MarkedLoader(ModelLoader):
        def load_causal(
            self, network: CausalNetwork, context_window: int, join: JoinParts
        ) -> CausalModel:
            model = super().load_causal(network, context_window, join)
            torch.zeros(1, device=device).item()  # behind all copies
            marks["weights"] = time.time()
            return model

        def compute_revision(self) -> str:
            marks["KV memory"] = time.time()
            revision = super().compute_revision()
            marks["digest of the files"] = time.time()
            return revision

    marks["imports"] = time.time()
    torch.zeros(1, device=device).item()
    marks["context"] = time.time()
    settings = WorkerSettings(
        model_dir=folder, device=device, num_blocks=1024, check_weights=WeightCheck.NEVER
    )
    executor = create_executor(settings, create_loader=MarkedLoader)
    marks["rows and recorded steps"] = time.time()
    requests = [create_request(0, range(first, first + 100), 1, 0.0) for first in (5, 105)]
    runs = carry(executor, [Streams([request]) for request in requests], create_settings(1, 2048))
    ended_s = time.time() - time.perf_counter()
    marks["first token"], marks["second token"] = (
        ended_s + run.traces[0].token_s[0] for run in runs
    )
    executor.close()
    print(json.dumps({"pid": os.getpid(), "marks": marks}))


if __name__ == "__main__":
    main()
