"""Encoders against transformers in fp32: texts of mixed lengths, heads for labels, mutations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from gpu_pool.encoder_architectures import ENCODER_ARCHITECTURES
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import Encoder, EncoderNetwork
from gpu_pool.weights.config import read_config
from gpu_pool.worker.model_loading import ModelLoader
from gpu_pool.worker.model_memory import CpuPlaces
from gpu_pool.worker.settings import WorkerSettings
from gpu_pool.worker.worker import create_executor
from tests.gpu_pool.models.family_checkpoint import create_prompt

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 300,
    "max_position_embeddings": 160,
    "initializer_range": 0.15,
}
LENGTHS = [7, 33, 33, 1, 140, 33]
MAX_ERROR = 1e-4
MIN_PEAK = 0.3
"""What one token takes of the attention to a text, in the mean, in every layer."""


def write_encoder(folder: Path, architecture: str, **changes: Any) -> Path:
    """Saves a random checkpoint whose attention is peaked."""
    torch.manual_seed(0)
    kind: Any = getattr(transformers, architecture)
    model = kind(kind.config_class(**(SIZES | changes)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".query." in name or ".key." in name:
                parameter.mul_(2)
            if name.endswith("bias") or "LayerNorm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return folder


def load(folder: Path, dtype: torch.dtype = torch.float32) -> tuple[Encoder, EncoderNetwork]:
    """The encoder in a folder."""
    network = read_config(folder).network
    assert isinstance(network, EncoderNetwork)
    return ModelLoader(folder, None, dtype).load_encoder(network, CpuPlaces().join), network


def create_texts() -> list[list[int]]:
    """Token ids of texts of `LENGTHS`, without padding tokens."""
    return [[3 + i % 297 for i in create_prompt(n, n)] for n in LENGTHS]


@torch.inference_mode()
def run_ours(folder: Path, types: list[int] | None = None) -> tuple[list[Tensor], Tensor | None]:
    """Hidden states of each text, and the scores of the labels where there are any."""
    encoder, network = load(folder)
    ids = torch.tensor([i for text in create_texts() for i in text])
    type_ids = None if types is None else torch.tensor(types)
    hidden_TD = encoder.encode(ids, LENGTHS, type_ids)
    scores = encoder.classify(hidden_TD, LENGTHS) if network.num_labels else None
    return list(hidden_TD.split(LENGTHS)), scores


@torch.inference_mode()
def run_reference(
    folder: Path, architecture: str, types: list[int] | None = None
) -> tuple[list[Tensor], Tensor | None]:
    """The same by transformers, text by text."""
    kind: Any = getattr(transformers, architecture)
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    base, scores, states = model.base_model, [], []
    split = torch.tensor(types or [0] * sum(LENGTHS)).split(LENGTHS)
    for text, text_types in zip(create_texts(), split, strict=True):
        inputs = {"input_ids": torch.tensor([text]), "token_type_ids": text_types[None]}
        output = base(**inputs, output_attentions=True)
        states.append(output.last_hidden_state[0])
        assert min(weights.amax(-1).mean() for weights in output.attentions) > MIN_PEAK
        if "Classification" in architecture:
            scores.append(model(**inputs).logits[0])
    return states, torch.stack(scores) if scores else None


def measure(ours: list[Tensor], reference: list[Tensor]) -> float:
    """The largest difference."""
    pairs = zip(ours, reference, strict=True)
    return max((mine - theirs).abs().max().item() for mine, theirs in pairs)


@pytest.mark.parametrize("architecture", ENCODER_ARCHITECTURES)
def test_states_and_scores_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    changes = {"num_labels": 3} if "Classification" in architecture else {}
    folder = write_encoder(tmp_path, architecture, **changes)
    states, scores = run_ours(folder)
    expected_states, expected_scores = run_reference(folder, architecture)
    assert measure(states, expected_states) <= MAX_ERROR
    assert (scores is None) == (expected_scores is None)
    if scores is not None and expected_scores is not None:
        assert scores.shape == (len(LENGTHS), 3)
        assert expected_scores.std() > 0.1
        assert measure([scores], [expected_scores]) <= MAX_ERROR


def test_types_are_added_to_their_tokens(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "BertModel")
    types = [i % 2 for i in range(sum(LENGTHS))]
    expected, _ = run_reference(folder, "BertModel", types)
    assert measure(run_ours(folder, types)[0], expected) <= MAX_ERROR
    assert measure(run_ours(folder)[0], expected) > 100 * MAX_ERROR


@pytest.mark.parametrize("activation", ["relu", "gelu_new", "gelu_pytorch_tanh"])
def test_other_activations_are_computed(activation: str, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "BertModel", hidden_act=activation)
    assert measure(run_ours(folder)[0], run_reference(folder, "BertModel")[0]) <= MAX_ERROR


@pytest.mark.parametrize(
    "changes", [{"pad_token_id": 0}, {"layer_norm_eps": 0.1}, {"hidden_act": "relu"}]
)
def test_a_mutation_is_found(changes: dict[str, Any], tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "XLMRobertaModel")
    expected, _ = run_reference(folder, "XLMRobertaModel")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    assert measure(run_ours(folder)[0], expected) > 100 * MAX_ERROR


def test_a_mutated_attention_is_found(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "BertModel")
    expected, _ = run_reference(folder, "BertModel")
    state = load_file(folder / "model.safetensors")
    state["encoder.layer.0.attention.self.key.weight"] *= 1.1
    save_file(state, folder / "model.safetensors")
    assert measure(run_ours(folder)[0], expected) > 100 * MAX_ERROR


def test_a_text_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    encoder, _ = load(write_encoder(tmp_path, "BertModel"))
    texts = create_texts()
    with torch.inference_mode():
        together = encoder.encode(torch.tensor([i for text in texts for i in text]), LENGTHS)
        for text, states in zip(texts, together.split(LENGTHS), strict=True):
            alone = encoder.encode(torch.tensor(text), [len(text)])
            assert (alone - states).abs().max() <= 1e-5


@pytest.mark.parametrize("architecture", ["BertModel", "XLMRobertaModel"])
def test_bfloat16_rounds_no_worse_than_transformers(architecture: str, tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, architecture)
    expected, _ = run_reference(folder, architecture)
    kind: Any = getattr(transformers, architecture)
    model = kind.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    encoder, _ = load(folder, torch.bfloat16)
    ours = theirs = 0.0
    with torch.inference_mode():
        for text, states in zip(create_texts(), expected, strict=True):
            mine = encoder.encode(torch.tensor(text), [len(text)]).float()
            other = model(torch.tensor([text])).last_hidden_state[0].float()
            ours += (mine - states).abs().sum().item()
            theirs += (other - states).abs().sum().item()
    assert 0 < ours <= 1.1 * theirs


def test_an_encoder_generates_nothing(tmp_path: Path) -> None:
    folder = write_encoder(tmp_path, "BertModel")
    with pytest.raises(CheckpointError, match="encoder"):
        create_executor(WorkerSettings(model_dir=folder))
