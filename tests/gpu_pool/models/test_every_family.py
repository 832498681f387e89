"""Every family is compared with transformers, and every comparison is shown to fail."""

import importlib
from types import ModuleType

import pytest

from gpu_pool.encoder_architectures import ENCODER_ARCHITECTURES
from gpu_pool.models.llama import config as llama
from gpu_pool.models.registry import FAMILIES, ModelFamily
from tests.gpu_pool.models.family_coverage import (
    find_folder,
    find_missing,
    find_part,
    find_unmutated,
    list_folders,
    name_architectures,
)
from tests.gpu_pool.models.test_text_parts import PARTS

DECODERS = sorted(list_folders() - {"bert"})
NEW = ModelFamily("New", ("NewForCausalLM",), llama.describe)
SEEING = {f"{part}ForConditionalGeneration" for part in PARTS}


def load_tests(folder: str) -> ModuleType:
    """The tests of a family's model."""
    return importlib.import_module(f"tests.gpu_pool.models.{folder}.test_model")


def list_proven() -> set[str]:
    """Architectures whose results are compared; encoders' tests go by the list itself."""
    types = {kind for folder in DECODERS for kind, _ in load_tests(folder).VARIANTS.values()}
    return name_architectures(types) | SEEING | set(ENCODER_ARCHITECTURES)


def test_no_family_goes_without_a_comparison() -> None:
    assert {find_folder(family) for family in FAMILIES} == list_folders()
    proven = list_proven()
    assert find_missing(proven) == set()
    assert find_missing(proven, (*FAMILIES, NEW)) == {"New"}
    assert find_missing(proven - {"MixtralForCausalLM"}) == {"Mixtral"}


@pytest.mark.parametrize("folder", DECODERS)
def test_what_is_compared_is_mutated_too(folder: str) -> None:
    tests = load_tests(folder)
    mutated = {tests.VARIANTS[variant][0] for variant, _ in tests.MUTATIONS.values()}
    assert mutated == {model_type for model_type, _ in tests.VARIANTS.values()}


@pytest.mark.parametrize("folder", DECODERS)
def test_theta_window_and_router_are_mutated_wherever_there_are_any(folder: str) -> None:
    tests = load_tests(folder)
    mutations = list(tests.MUTATIONS.values())
    assert find_unmutated(tests.VARIANTS, mutations) == set()
    kept = [m for m in mutations if find_part(m[1], tests.VARIANTS[m[0]][1]) != "theta"]
    types = {kind for kind, _ in tests.VARIANTS.values()}
    assert find_unmutated(tests.VARIANTS, kept) == {(kind, "theta") for kind in types}


@pytest.mark.parametrize("folder", sorted(list_folders()))
def test_each_family_asks_the_same_questions(folder: str) -> None:
    names = vars(load_tests(folder))
    assert "test_a_mutation_is_found" in names
    assert "test_bfloat16_rounds_no_worse_than_transformers" in names
    assert any(name.endswith("are_those_of_transformers") for name in names)
