"""Small random checkpoints of any family, written and answered by transformers."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "vocab_size": 300,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    # Larger than usual, so that positions and neighbours show in the logits.
    "initializer_range": 0.15,
}
QUERIES_AND_KEYS = ("q_proj", "k_proj", "q_b_proj")
HEAD_NORMS = ("q_norm", "k_norm")
FEW_NUMBERS = 32
"""Of so many numbers of a head two are made to count where heads are normed without weights."""


def write_checkpoint(
    folder: Path,
    model_type: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    sharpness: float = 2.0,
    **changes: Any,
) -> Path:
    """Saves a checkpoint of that type; `changes` go over `SIZES`.

    Queries and keys are made `sharpness` times as long, so that single tokens take most of the
    attention (`Reference.measure_peak`).
    """
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, **(SIZES | changes))
    )
    sharpen(model, sharpness)
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.rand_like(buffer) * 0.2)
    model.to(dtype).save_pretrained(folder)
    return folder


@torch.no_grad()
def sharpen(model: Any, sharpness: float = 2.0) -> None:
    """Has single tokens take most of the attention, and makes differ what starts alike."""
    for name, parameter in model.named_parameters():
        if any(f".{part}.weight" in name for part in QUERIES_AND_KEYS):
            parameter.mul_(sharpness)
        elif name.endswith("sinks"):
            parameter.mul_(20)
        elif parameter.abs().max() in (0, 1):  # biases, norms and the like start alike
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if any(f".{part}.weight" in name for part in HEAD_NORMS):
                parameter.add_(1.5)  # to 2.5 times, as one is all that Gemma's leave out
    for module in model.modules():
        if hasattr(module, "qk_norm"):
            _narrow(module.q_proj.weight)
            _narrow(module.k_proj.weight)


def _narrow(projection: Tensor) -> None:
    """Makes two of `FEW_NUMBERS` outputs count, for products of normed vectors of many numbers are
    all alike."""
    rows = torch.arange(len(projection)) % FEW_NUMBERS < 2
    projection[rows] *= 8


def copy_checkpoint(
    folder: Path,
    target: Path,
    *,
    tensors: Mapping[str, Callable[[Tensor], Tensor]] | None = None,
    **changes: Any,
) -> Path:
    """The checkpoint with a changed `config.json`, and changed tensors whose names end so."""
    target.mkdir()
    config = json.loads((folder / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | changes))
    state = load_file(folder / "model.safetensors")
    for ending, change in (tensors or {}).items():
        names = [name for name in state if name.endswith(ending)]
        assert names, f"no tensor ends in {ending}"
        for name in names:
            state[name] = change(state[name]).contiguous()
    save_file(state, target / "model.safetensors")
    return target


class Reference:
    """Logits of transformers, in one pass without a cache."""

    def __init__(
        self,
        folder: Path,
        dtype: torch.dtype = torch.float32,
        *,
        kind: Any = AutoModelForCausalLM,
    ) -> None:
        """Loads the model."""
        self._model: Any = kind.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager"
        ).eval()
        self._known: dict[tuple[int, ...], Tensor] = {}

    @torch.inference_mode()
    def measure_peak(self, token_ids: list[int]) -> float:
        """The share of attention that one token takes, in the mean of the second half, in the layer
        where it is smallest."""
        output = self._model(torch.tensor([token_ids]), use_cache=False, output_attentions=True)
        half = len(token_ids) // 2
        return min(weights[0, :, half:].amax(-1).mean().item() for weights in output.attentions)

    @torch.inference_mode()
    def compute_logits(self, token_ids: list[int]) -> Tensor:
        """Logits `[T, V]` of all positions."""
        key = tuple(token_ids)
        if key not in self._known:
            output = self._model(torch.tensor([token_ids]), use_cache=False)
            self._known[key] = output.logits[0].float()
        return self._known[key]


def create_prompt(num_tokens: int, seed: int, vocab_size: int = 300) -> list[int]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab_size, (num_tokens,), generator=generator).tolist()
