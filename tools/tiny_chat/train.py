"""Trains tiny-chat from nothing and keeps the best of the last weights.

    python -m tools.tiny_chat.train --minutes 40 --out gpu_pool/bundled/tiny_chat
    python -m tools.tiny_chat.train --device cuda --loaders 14 --tokens 16384 --minutes 8 --out DIR

Owns the schedule and the loop. The text is the same for a seed and a number of writers; how much of
it is read depends on the clock.
"""

from __future__ import annotations

import argparse
import socket
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, distributed
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

from tools.tiny_chat.answer import Answerer
from tools.tiny_chat.batches import Batch, Encoder, loaded_batches
from tools.tiny_chat.checkpoint import load_checkpoint, rounded_copy, save_checkpoint
from tools.tiny_chat.model import TinyChat, TinyChatConfig
from tools.tiny_chat.muon import Muon, fast_dtype
from tools.tiny_chat.rehearsal import Rehearsal
from tools.tiny_chat.tokenizer import train_tokenizer

_WARM_UP, _COOL_DOWN = 0.01, 0.7  # shares of the whole time
_SETTLED = 0.9  # of the whole time: from then on weights change little


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSettings:
    """What the command line decides."""

    minutes: float
    out: Path
    seed: int
    rate: float  # at its height
    num_tokens: int  # per step and process
    num_processes: int
    rehearse_every_s: float
    device: str  # of torch
    num_loaders: int  # processes that write text; none: the one that learns writes it
    is_compiled: bool
    is_brief: bool  # mostly single questions, few sums, hardly an answer to its end
    start: Path | None  # weights and tokenizer to go on from


class Trainer:
    """The network, its optimiser and the clock: one of several processes that learn in step.

    Small matrices gain little from a second thread; a second process with its own batch does, as it
    waits for the other one only once per step.
    """

    def __init__(self, settings: TrainingSettings, rank: int, console: Console) -> None:
        torch.manual_seed(settings.seed)
        self._settings = settings
        self._rank = rank
        self._console = console
        config = TinyChatConfig()
        self._device = torch.device(settings.device)
        self._model = initialised(TinyChat(config)).to(self._device)
        if settings.start is None:
            self._tokenizer = train_tokenizer(config.vocab_size, settings.seed)
        else:
            self._tokenizer, weights = load_checkpoint(settings.start)
            self._model.load_state_dict(weights)
        self._shared = with_flat_gradients(self._model)
        self._optimisers = optimisers_of(self._model)
        self._rehearsal = Rehearsal(settings.seed + 1)
        self._best = -1.0
        self._mean_loss = (
            torch.compile(mean_loss, dynamic=True) if settings.is_compiled else mean_loss
        )

    def run(self) -> None:
        """Trains until the time is up; the best of the last weights lie in the folder then."""
        batches = loaded_batches(
            Encoder(self._tokenizer),
            seed=self._settings.seed + 2 + self._rank,
            num_tokens=self._settings.num_tokens,
            max_position=self._model.config.max_position_embeddings,
            num_loaders=self._settings.num_loaders,
            is_pinned=self._device.type == "cuda",
            is_brief=self._settings.is_brief,
        )
        started = rehearsed = time.monotonic()
        progress, num_tokens, losses = 0.0, 0, list[Tensor]()
        for step, batch in enumerate(batches):
            losses.append(self._learn(batch))
            progress = self._agree((time.monotonic() - started) / (self._settings.minutes * 60))
            if progress >= 1:
                break
            self._move(rate_share(progress))
            num_tokens += batch.token_ids_BT.numel() * self._settings.num_processes
            if self._rank == 0 and time.monotonic() - rehearsed > self._settings.rehearse_every_s:
                mean = float(torch.stack(losses).mean())
                self._rehearse(
                    f"{progress:5.1%} step {step} {num_tokens / 1e6:.2f}M tokens loss {mean:.4f}",
                    progress,
                )
                rehearsed, losses = time.monotonic(), list[Tensor]()
        if self._rank == 0:
            self._rehearse("end", 1.0)

    def _learn(self, batch: Batch) -> Tensor:
        """Adds the gradient of one batch and returns its loss, not waited for."""
        there = batch.to(self._device)
        loss = self._mean_loss(
            self._model,
            there.token_ids_BT,
            there.positions_BT,
            there.before_answer_A,
            there.next_ids_A,
        )
        loss.backward()
        return loss.detach()

    def _agree(self, progress: float) -> float:
        """Sums the gradients of all processes and returns the clock of the first."""
        if self._settings.num_processes == 1:
            return progress
        self._shared[-1] = progress if self._rank == 0 else 0.0
        distributed.all_reduce(self._shared)
        return float(self._shared[-1])

    def _move(self, share: float) -> None:
        self._shared.div_(self._settings.num_processes)
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        for optimiser in self._optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self._settings.rate * share
            optimiser.step()
        self._shared.zero_()

    def _rehearse(self, where: str, progress: float) -> None:
        """Examines the weights and keeps them; of those at the end, the best.

        An examination is chance in part: of one while the rate is high, a good mark says little.
        """
        rounded = rounded_copy(self._model)
        scores = self._rehearsal.scores(Answerer(rounded, self._tokenizer))
        mean = sum(scores.values()) / len(scores)
        is_kept = mean >= self._best
        if is_kept:
            self._best = mean if progress >= _SETTLED else -1.0
            save_checkpoint(rounded, self._tokenizer, self._settings.out)
        shown = "  ".join(f"{kind} {score:.1%}" for kind, score in scores.items())
        self._console.print(f"{where}  {shown}{'  kept' if is_kept else ''}", highlight=False)


def mean_loss(
    model: TinyChat,
    token_ids_BT: Tensor,
    positions_BT: Tensor,
    before_answer_A: Tensor,
    next_ids_A: Tensor,
) -> Tensor:
    """Returns the mean loss over the tokens that are answers."""
    device = token_ids_BT.device
    dtype = fast_dtype(device)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        hidden_BTD, _ = model(token_ids_BT, positions_BT)
        logits_AV = model.logits(hidden_BTD.flatten(0, 1)[before_answer_A])
    return functional.cross_entropy(logits_AV.float(), next_ids_A)


def optimisers_of(model: TinyChat) -> list[torch.optim.Optimizer]:
    """Returns Muon for the matrices inside the blocks, and AdamW for the embedding and the norms.

    After as many tokens from nothing (0.75 million) Muon left a loss of 0.38 where AdamW alone left
    0.45, and twice as many right answers to questions in other words.
    """
    inner = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.ndim == 2 and "embed" not in name
    }
    others = [parameter for name, parameter in model.named_parameters() if name not in inner]
    return [
        Muon(inner.values(), fast_dtype(next(model.parameters()).device)),
        torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01, fused=True),
    ]


def with_flat_gradients(model: TinyChat) -> Tensor:
    """Returns one tensor that holds every gradient of the model, and a last number to spare."""
    parameters = list(model.parameters())
    flat = torch.zeros(
        sum(parameter.numel() for parameter in parameters) + 1, device=parameters[0].device
    )
    start = 0
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return flat


def run_process(rank: int, settings: TrainingSettings, port: int) -> None:
    """Runs one of the processes that train together."""
    if settings.device == "cpu":
        torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=settings.num_processes,
        timeout=timedelta(hours=1),
    )
    Trainer(settings, rank, Console(width=200)).run()
    distributed.barrier()
    distributed.destroy_process_group()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def initialised(model: TinyChat) -> TinyChat:
    """Returns the model with normal weights; the last product of each branch starts at nothing."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            continue
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.zeros_(parameter)
        else:
            torch.nn.init.normal_(
                parameter, std=0.02 if "embed" in name else parameter.shape[1] ** -0.5
            )
    return model


def rate_share(progress: float) -> float:
    """Returns the share of the full learning rate: a short rise, a plateau, a straight fall."""
    return min(progress / _WARM_UP, 1.0, (1 - progress) / _COOL_DOWN)


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=40.0)
    parser.add_argument("--out", type=Path, default=Path("gpu_pool/bundled/tiny_chat"))
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--rate", type=float, default=1.5e-3, help="learning rate at its height")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or cuda (with one process)")
    parser.add_argument(
        "--loaders", type=int, default=0, help="processes per learner that write text ahead"
    )
    parser.add_argument("--tokens", type=int, default=1024, help="tokens per step and process")
    parser.add_argument(
        "--rehearse-every", type=float, default=120.0, help="seconds between examinations"
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the step: two minutes at first, then up to 1.6 times as fast",
    )
    parser.add_argument(
        "--brief",
        action="store_true",
        help="mostly single questions and few sums: to go on learning wordings",
    )
    parser.add_argument("--from", dest="start", type=Path, help="folder to go on from")
    args = parser.parse_args()
    settings = TrainingSettings(
        minutes=args.minutes,
        out=args.out,
        seed=args.seed,
        rate=args.rate,
        num_tokens=args.tokens,
        num_processes=args.processes,
        rehearse_every_s=args.rehearse_every,
        device=args.device,
        num_loaders=args.loaders,
        is_compiled=args.compile,
        is_brief=args.brief,
        start=args.start,
    )
    spawn(run_process, args=(settings, _free_port()), nprocs=settings.num_processes)


if __name__ == "__main__":
    main()
