"""Loads an encoder and carries out plans on it: the `EncoderExecutor` of this process.

Owns what becomes of hidden states and scores: pooling, length 1, probabilities. Must not know
queues. Read next: `gpu_pool.models.network`, `gpu_pool.engine.encoder_core` (the caller).
"""

from contextlib import closing

import torch
from torch import Tensor
from torch.nn import functional

from contracts.encoding import Pooling
from gpu_pool.models.network import Encoder, EncoderNetwork
from gpu_pool.plan import EncodePlan, EncoderExecutor, EncoderInfo
from gpu_pool.weights.config import CheckpointConfig
from gpu_pool.worker.compute import choose_dtype, choose_num_threads
from gpu_pool.worker.model_loading import ModelLoader
from gpu_pool.worker.model_memory import ModelMemory, create_places
from gpu_pool.worker.settings import WorkerSettings


class EncoderWorker:
    """An `EncoderExecutor` that encodes at once. Shapes: T tokens, B texts, D states, L labels."""

    def __init__(
        self,
        encoder: Encoder,
        memory: ModelMemory,
        network: EncoderNetwork,
        info: EncoderInfo,
        device: torch.device,
    ) -> None:
        """Takes what `create_encoder_executor` built."""
        self._encoder: Encoder | None = encoder
        self._network = network
        self._info = info
        self._memory = memory
        self._device = device

    @property
    def info(self) -> EncoderInfo:
        """What was loaded."""
        return self._info

    @torch.inference_mode()
    def encode(self, plan: EncodePlan) -> tuple[bytes, ...]:
        """One vector per text, as `EncoderExecutor` has it."""
        assert self._encoder is not None, "the worker is closed"
        lengths = [len(token_ids) for token_ids in plan.token_ids]
        flat = [token_id for token_ids in plan.token_ids for token_id in token_ids]
        ids_T = torch.tensor(flat, device=self._device)
        hidden_TD = self._encoder.encode(ids_T, lengths, self._find_types(plan, lengths))
        if self._network.num_labels:
            vectors_BX = self._to_probabilities(self._encoder.classify(hidden_TD, lengths))
        else:
            vectors_BX = pool_states(hidden_TD, lengths, plan.poolings)
        rows = vectors_BX.float().cpu().contiguous()
        return tuple(row.numpy().astype("<f4", copy=False).tobytes() for row in rows)

    def sleep(self) -> int:
        """Moves the weights to the host, as `EncoderExecutor` has it."""
        assert self._encoder is not None, "the worker is closed"
        return self._memory.leave()

    def wake(self) -> int:
        """Brings the weights back, as `EncoderExecutor` has it."""
        return self._memory.come_back()

    def close(self) -> None:
        """Frees the model; nothing may follow."""
        self._encoder = None
        self._memory.close()

    def _find_types(self, plan: EncodePlan, lengths: list[int]) -> Tensor | None:
        """Type 0 for a query's tokens and 1 for those behind it, where the model tells them apart;
        all are 0 where there is no query.
        """
        if self._network.num_types < 2 or not any(plan.nums_query_tokens):
            return None
        types: list[int] = []
        for length, num_query in zip(lengths, plan.nums_query_tokens, strict=True):
            types += [0] * (num_query or length) + [1] * (length - (num_query or length))
        return torch.tensor(types, device=self._device)

    def _to_probabilities(self, scores_BL: Tensor) -> Tensor:
        """Of labels that exclude each other, or of each by itself."""
        if self._network.num_labels == 1 or self._network.is_multi_label:
            return scores_BL.sigmoid()
        return scores_BL.softmax(-1)


def pool_states(hidden_TD: Tensor, lengths: list[int], poolings: tuple[Pooling, ...]) -> Tensor:
    """One vector `[B, D]` of length 1 per text, in fp32."""
    pooled = [
        states_D.float().mean(0) if pooling is Pooling.MEAN else states_D[0].float()
        for states_D, pooling in zip(hidden_TD.split(lengths), poolings, strict=True)
    ]
    return functional.normalize(torch.stack(pooled), dim=-1)


def create_encoder_executor(
    settings: WorkerSettings, checked: CheckpointConfig, network: EncoderNetwork
) -> EncoderExecutor:
    """The loaded encoder. Sets the process's number of CPU threads.

    Raises: `CheckpointError` for a checkpoint that cannot be served.
    """
    torch.set_num_threads(choose_num_threads(settings))
    device = torch.device(settings.device)
    dtype = choose_dtype(settings.dtype, checked.dtype)
    loader = ModelLoader(
        settings.model_dir, checked.find_packed, dtype, None, settings.check_weights
    )
    places = create_places(device, loader.measure_bytes(network))
    with closing(loader):
        encoder = loader.load_encoder(network, places.join)
        memory = places.finish(encoder)
        revision = loader.compute_revision()
        checked.confirm(settings.model_dir)
    info = EncoderInfo(
        context_window=min(
            settings.context_window or network.context_window, network.context_window
        ),
        vocab_size=network.vocab_size,
        model_revision=revision,
        weights_bytes=memory.weights_bytes,
    )
    return EncoderWorker(encoder, memory, network, info, device)
