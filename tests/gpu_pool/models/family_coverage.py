"""Which families of the registry a set of checkpoints leaves out: no new one is forgotten."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from gpu_pool.models import registry
from gpu_pool.models.registry import FAMILIES, ModelFamily
from tests.gpu_pool.models.family_check import Mutation, Variant

WINDOWS: Final = {"sliding_window", "attention_chunk_size"}
EXPERTS: Final = {"num_experts", "num_local_experts", "n_routed_experts"}
ROUTERS: Final = ("gate.weight", "router.weight")


def list_folders() -> set[str]:
    """The folders of families, whether the registry knows them or not."""
    return {path.parent.name for path in Path(registry.__file__).parent.glob("*/*.py")}


def find_folder(family: ModelFamily) -> str:
    """The folder that computes a family."""
    return family.describe.__module__.split(".")[-2]


def name_architectures(model_types: Iterable[str]) -> set[str]:
    """What `config.json` calls the text models of these types."""
    return {MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type] for model_type in model_types}


def find_missing(
    architectures: Iterable[str], families: Sequence[ModelFamily] = FAMILIES
) -> set[str]:
    """The names of families of which none of these architectures is one."""
    known = set(architectures)
    return {family.name for family in families if known.isdisjoint(family.architectures)}


def find_unmutated(
    variants: Mapping[str, Variant], mutations: Iterable[Mutation]
) -> set[tuple[str, str]]:
    """Types of models, each with what none of the mutations has wrong of it: all turn their heads
    by some theta, some variants have windows, or experts and so a router.
    """
    owed = {(kind, what) for kind, fields in variants.values() for what in _list_parts(fields)}
    for variant, wrong in mutations:
        kind, fields = variants[variant]
        owed.discard((kind, find_part(wrong, fields)))
    return owed


def find_part(wrong: Mapping[str, Any] | str, fields: Mapping[str, Any]) -> str:
    """Which of theta, window and router a mutation changes, of a variant with these fields."""
    if isinstance(wrong, str):
        return "router" if wrong.endswith(ROUTERS) else ""
    if wrong.keys() & WINDOWS:
        return "window"
    thetas = [_list_thetas(each.get("rope_parameters", {})) for each in (wrong, fields)]
    return "theta" if thetas[0] and thetas[0] != thetas[1] else ""


def _list_parts(fields: Mapping[str, Any]) -> set[str]:
    """What there is to be mutated."""
    has_window = any(fields.get(name) for name in WINDOWS)
    parts = {"theta": True, "window": has_window, "router": bool(EXPERTS & fields.keys())}
    return {part for part, is_there in parts.items() if is_there}


def _list_thetas(ropes: Mapping[str, Any]) -> list[float]:
    """That of all layers, or of those that see everything and of the others."""
    parts = [ropes, *[part for part in ropes.values() if isinstance(part, dict)]]
    return [part["rope_theta"] for part in parts if "rope_theta" in part]
