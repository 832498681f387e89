"""A decoder as the rest of the pool knows it: the whole of it, or what one rank of several holds.

Joins a family's configuration, parameters and `sharding`. Read next: `network`, `stages`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from gpu_pool.models.decoder_config import ConfigT, DecoderConfig
from gpu_pool.models.decoder_sharding import share_heads
from gpu_pool.models.errors import CheckpointError
from gpu_pool.models.network import CausalModel, CausalNetwork
from gpu_pool.models.parameters import ParameterSource, ReadParameter
from gpu_pool.models.stages import cut_stages
from gpu_pool.parallel.place import RankPlace
from gpu_pool.parallel.tensor_group import ALONE, TensorGroup

ConfigT_contra = TypeVar("ConfigT_contra", bound=DecoderConfig, contravariant=True)


class CreateModel(Protocol[ConfigT_contra]):
    """A family's function that builds a model, or what a rank computes of it."""

    def __call__(
        self,
        config: ConfigT_contra,
        read: ReadParameter,
        context_window: int,
        group: TensorGroup,
        /,
    ) -> CausalModel:
        """The network with all its parameters, for contexts of at most so many tokens."""
        ...


def create_causal_network(
    config: ConfigT,
    parameters: Mapping[str, ParameterSource],
    ignored: frozenset[str],
    create_model: CreateModel[ConfigT],
    share_config: Callable[[ConfigT, int], ConfigT] = share_heads,
) -> CausalNetwork:
    """The network that the pool is told of; `share_config` says what a tensor rank computes."""

    def describe(
        own: ConfigT,
        sources: Mapping[str, ParameterSource],
        group: TensorGroup,
    ) -> CausalNetwork:
        others = {part.name for source in parameters.values() for part in source.parts} - {
            part.name for source in sources.values() for part in source.parts
        }
        return CausalNetwork(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            context_window=config.context_window,
            kv_groups=own.kv_groups,
            layer_groups=tuple([own.place_layer(i).group for i in own.held_layers]),
            parameters=sources,
            ignored=ignored | others,
            create=lambda read, context_window: create_model(own, read, context_window, group),
            share=share,
        )

    def share(place: RankPlace, group: TensorGroup) -> CausalNetwork:
        shared = share_config(config, place.shape.tensor)
        _refuse_shares(parameters, place)
        stages = cut_stages(parameters, config.num_layers, place.shape.pipeline)
        own = replace(shared, held=stages[place.stage])
        _refuse_empty_groups(config, stages)
        return describe(own, _list_own(parameters, own), group)

    return describe(config, parameters, ALONE)


def _list_own(
    parameters: Mapping[str, ParameterSource], own: DecoderConfig
) -> dict[str, ParameterSource]:
    """The parameters that a stage reads."""
    prefixes = tuple(f"layers.{layer}." for layer in own.held_layers)
    prefixes += ("embedding",) * own.holds_first + ("norm", "head") * own.holds_last
    return {name: source for name, source in parameters.items() if name.startswith(prefixes)}


def _refuse_shares(parameters: Mapping[str, ParameterSource], place: RankPlace) -> None:
    """Raises: `CheckpointError` where a tensor does not divide among the ranks of a layer."""
    for source in parameters.values():
        for part in source.parts:
            try:
                part.find_share(source.split, 0, place.shape.tensor)
            except ValueError as error:
                message = f"tensor_parallel is {place.shape.tensor}: {error}."
                raise CheckpointError(message) from error


def _refuse_empty_groups(config: DecoderConfig, stages: list[range]) -> None:
    """Raises: `CheckpointError` where a stage has no layer of some kind, hence no KV memory."""
    for number, held in enumerate(stages):
        groups = replace(config, held=held).kv_groups
        empty = [group.reach for group in groups if group.num_layers == 0]
        if empty:
            raise CheckpointError(
                f"pipeline_parallel is {len(stages)}: stage {number} would have no layer with "
                f"{empty[0].kind} attention. Take fewer stages."
            )
