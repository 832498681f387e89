"""`hearth plan`: what a model would take on GPUs, and which layout keeps most KV.

Owns the words of the answer; the arithmetic is `gpu_pool.capacity`'s. Nothing is downloaded or
loaded: a `config.json` is enough.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from cli.terminal import CommandFailed, print_json, print_table

if TYPE_CHECKING:
    from gpu_pool.capacity.layouts import Layout, ModelSize

_GIB: Final = 1 << 30
_CONFIG: Final = "config.json"


class StageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of a pipeline, as each of its GPUs sees it."""

    num_layers: int
    weight_bytes: int
    room_bytes: int
    """For KV; below 0 where weights and overhead do not fit."""


class LayoutRow(msgspec.Struct, frozen=True, kw_only=True):
    """A layout as `--json` prints it."""

    tensor: int
    pipeline: int
    fits: bool
    kv_tokens: int | None
    """Of all sequences together; 0 where it does not fit, None where tokens beyond the sequences'
    rings cost nothing."""
    stages: tuple[StageRow, ...]


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that `--json` prints. Bytes of KV are those of one copy."""

    gpus: str
    gpu_memory_bytes: int
    weight_bytes: int
    unpacked_weight_bytes: int
    """As this version computes with them: quantised weights are unpacked as they load, but for fp8
    in blocks of 128 x 128."""
    overhead_bytes: int
    """Of each GPU."""
    kv_bytes_per_token: int
    kv_bytes_per_sequence: int
    num_sequences: int
    layouts: tuple[LayoutRow, ...]
    """Best first."""
    explanation: str
    loaded: LayoutRow | None
    """The best for weights as they are loaded; None where these GPUs have no room for them."""
    obstacle: str | None
    """Why this version does not load the checkpoint at all."""


def plan(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="A config.json, or a folder that has one.")
    ],
    gpus: Annotated[
        str, typer.Option("--gpus", help="How many of which, such as 8xH100-80G or H200-141G.")
    ],
    overhead_gib: Annotated[
        float,
        typer.Option(
            "--overhead-gib",
            min=0,
            help="What each GPU needs besides weights and KV: context, activations, workspaces.",
        ),
    ] = 2.6,
    sequences: Annotated[
        int,
        typer.Option(
            "--sequences",
            min=0,
            help="Sequences at once, each with a ring of KV in layers that have a window.",
        ),
    ] = 8,
    kv_bits: Annotated[
        int, typer.Option("--kv-bits", help="Bits of a number in KV memory: 16 or 8.")
    ] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Say what a model takes on GPUs: weights, room for KV and tokens, for each layout.

    A layout is tensor x pipeline: every layer is split among so many GPUs, and the layers among so
    many stages. Only `config.json` is read, so GPUs and weights need not be there. Weights count as
    the checkpoint stores them, KV groups as they are: layers with a window or chunks keep a ring of
    each sequence, the others every token.

    This is arithmetic for choosing hardware. This version of Hearth unpacks most quantised weights
    when it loads them (fp8 in blocks stays); what they take then is said, too. The last lines are
    the settings of the layout that is best for them, if these GPUs have room for that.

    Examples: `hearth plan ./Llama-4-Scout --gpus 2xH200-141G`,
    `hearth plan kimi/config.json --gpus 8xH100-80G --json`
    """
    from gpu_pool.capacity.gpus import parse_gpus
    from gpu_pool.capacity.layouts import explain, list_layouts
    from gpu_pool.capacity.model_size import read_model_size
    from gpu_pool.models.errors import CheckpointError
    from gpu_pool.weights.config import find_obstacle

    if not math.isfinite(overhead_gib) or kv_bits not in (8, 16):
        raise CommandFailed("--overhead-gib is a number of GiB, --kv-bits 16 or 8.")
    content = _read(model)
    try:
        chosen = parse_gpus(gpus)
        size = read_model_size(content, kv_bits // 8)
        loaded_size = read_model_size(content, kv_bits // 8, is_loaded=True)
    except (CheckpointError, ValueError) as error:
        raise CommandFailed(str(error)) from error
    overhead_bytes = round(overhead_gib * _GIB)
    layouts = list_layouts(size, chosen, overhead_bytes, sequences)
    if not layouts:
        raise CommandFailed(f"No layout divides this model evenly among {chosen.count} GPUs.")
    loaded = list_layouts(loaded_size, chosen, overhead_bytes, sequences)[0]
    report = PlanReport(
        gpus=f"{chosen.count}x{chosen.name}",
        gpu_memory_bytes=chosen.memory_bytes,
        weight_bytes=size.weight_bytes,
        unpacked_weight_bytes=loaded_size.weight_bytes,
        overhead_bytes=overhead_bytes,
        kv_bytes_per_token=size.measure_kv().per_token,
        kv_bytes_per_sequence=size.measure_kv().per_sequence,
        num_sequences=sequences,
        layouts=tuple([_describe(layout) for layout in layouts]),
        explanation=explain(layouts[0], layouts),
        loaded=_describe(loaded) if loaded.num_tokens >= 0 else None,
        obstacle=find_obstacle(content),
    )
    if as_json:
        print_json(report)
    else:
        _print(report, size)


def _read(model: Path) -> bytes:
    """The content of a `config.json`, or of that in a folder. Raises: `CommandFailed`."""
    path = model / _CONFIG if model.is_dir() else model
    try:
        return path.read_bytes()
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}.") from error


def _describe(layout: "Layout") -> LayoutRow:
    """What is printed of a layout."""
    return LayoutRow(
        tensor=layout.tensor,
        pipeline=len(layout.stages),
        fits=layout.num_tokens >= 0,
        kv_tokens=None if layout.is_endless else max(layout.num_tokens, 0),
        stages=tuple(
            StageRow(
                num_layers=stage.num_layers,
                weight_bytes=stage.weight_bytes,
                room_bytes=stage.room_bytes,
            )
            for stage in layout.stages
        ),
    )


def _print(report: PlanReport, size: "ModelSize") -> None:
    """The report for people."""
    print(f"{report.gpus}: {_to_gib([report.gpu_memory_bytes])} GiB each")
    print(f"weights: {_to_gib([report.weight_bytes])} GiB in {size.num_layers} layers")
    ring = report.kv_bytes_per_sequence
    rings = f", and up to {ring / (1 << 20):,.1f} MiB for each sequence" if ring else ""
    print(f"KV: {report.kv_bytes_per_token:,} bytes a token{rings}")
    print()
    print_table(
        ("TENSOR", "PIPELINE", "LAYERS", "WEIGHTS", "OVERHEAD", "LEFT", "KV TOKENS"),
        [_list_cells(row, report.overhead_bytes) for row in report.layouts],
    )
    print("\nGiB of a GPU, from the emptiest to the fullest stage.")
    print(report.explanation)
    loaded = report.loaded
    if report.unpacked_weight_bytes != report.weight_bytes:
        outcome = (
            ", for which these GPUs have no room: it cannot start here."
            if loaded is None
            else f"; KV tokens then: {_to_tokens(loaded)}."
        )
        weights = _to_gib([report.unpacked_weight_bytes])
        print(f"As this version loads them, weights take {weights} GiB{outcome}")
    if report.obstacle is not None:
        print(f"This version does not load it as it is: {report.obstacle}")
    elif loaded is not None:
        _print_settings(loaded)


def _print_settings(loaded: LayoutRow) -> None:
    """What a node has to be told."""
    from gpu_pool.model_settings import MAX_RANKS

    num_ranks = loaded.tensor * loaded.pipeline
    if num_ranks > MAX_RANKS:
        print(f"A model has at most {MAX_RANKS} GPUs: it cannot start on {num_ranks}.")
        return
    print("\nIn the node's settings, in the model's [[models]] table:")
    print(f"tensor_parallel = {loaded.tensor}\npipeline_parallel = {loaded.pipeline}")


def _list_cells(row: LayoutRow, overhead_bytes: int) -> Sequence[str]:
    """A layout as a line of the table."""
    return (
        str(row.tensor),
        str(row.pipeline),
        "-".join(str(count) for count in sorted({stage.num_layers for stage in row.stages})),
        _to_gib([stage.weight_bytes for stage in row.stages]),
        _to_gib([overhead_bytes]),
        _to_gib([stage.room_bytes for stage in row.stages]),
        _to_tokens(row),
    )


def _to_tokens(row: LayoutRow) -> str:
    """How many tokens a layout keeps."""
    if not row.fits:
        return "does not fit"
    return "no bound" if row.kv_tokens is None else f"{row.kv_tokens:,}"


def _to_gib(sizes: Sequence[int]) -> str:
    """One size, or the smallest and the largest."""
    ends = dict.fromkeys(f"{size / _GIB:.1f}" for size in (min(sizes), max(sizes)))
    return " to ".join(ends)
