"""From the content of a `config.json` to sizes; nothing of a checkpoint is loaded or run."""

from collections.abc import Mapping
from typing import Final

from gpu_pool.capacity.layouts import ModelSize
from gpu_pool.capacity.stored_size import read_stored_form
from gpu_pool.models.config_json import read_text_part
from gpu_pool.models.network import require_causal
from gpu_pool.models.parameters import ParameterSource, Split
from gpu_pool.models.registry import FAMILIES, find_family
from gpu_pool.weights.block_reader import measure_kept
from gpu_pool.weights.config_header import read_config_header

_COPIED: Final = (Split.WHOLE, Split.FIRST)


def read_model_size(
    content: bytes, kv_element_bytes: int = 2, *, is_loaded: bool = False
) -> ModelSize:
    """The sizes of the network that `content` describes; of one that sees, its text part's.

    Weights count as the checkpoint stores them, or as they are on a GPU once they are loaded.
    Raises: `CheckpointError` naming the field.
    """
    header = read_config_header(content)
    known = {name for family in FAMILIES for name in family.architectures}
    architectures = header.architectures
    if not known & set(architectures) and known & set(header.text_architectures):
        content, architectures = read_text_part(content), header.text_architectures
    dtype = header.dtype or "bfloat16"
    network = require_causal(find_family(architectures).describe(content))
    form = read_stored_form(dtype, header.quantization_config)

    def measure_stored(parameters: Mapping[str, ParameterSource], num_ranks: int) -> int:
        return sum(
            size if source.split in _COPIED else -(-size // num_ranks)
            for source in parameters.values()
            for size in [sum(map(form.count_bytes, source.parts))]
        )

    def measure_loaded(parameters: Mapping[str, ParameterSource], num_ranks: int) -> int:
        return measure_kept(form, parameters, 4 if dtype == "float32" else 2, num_ranks)

    return ModelSize(network, measure_loaded if is_loaded else measure_stored, kv_element_bytes)
