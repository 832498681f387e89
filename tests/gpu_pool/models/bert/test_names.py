"""The list of parameters against what transformers saves."""

from pathlib import Path

import pytest

from gpu_pool.models.bert.sharding import SPLITS
from tests.gpu_pool.models.bert.test_model import write_encoder
from tests.gpu_pool.models.listing_check import find_unlisted, list_last_names


@pytest.mark.parametrize(
    ("architecture", "others"),
    [
        ("BertModel", ("pooler.",)),
        ("BertForMaskedLM", ("cls.",)),
        ("BertForSequenceClassification", ()),
        ("XLMRobertaModel", ("pooler.",)),
        ("XLMRobertaForSequenceClassification", ()),
    ],
)
def test_parameters_are_what_transformers_saves_for_states_and_labels(
    architecture: str, others: tuple[str, ...], tmp_path: Path
) -> None:
    unlisted = find_unlisted(write_encoder(tmp_path, architecture))
    assert all(name.startswith(others) for name, _ in unlisted)
    assert bool(unlisted) == bool(others)


def test_every_parameter_has_a_split_and_no_split_is_left_over(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "BertForSequenceClassification")
    assert list_last_names(folder) == set(SPLITS)
