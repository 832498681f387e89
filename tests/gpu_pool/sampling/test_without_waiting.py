"""On a GPU: adjusting and drawing wait for nothing, and one graph draws for rows of all kinds."""

import pytest
import torch

from contracts.inference import SamplingParams
from gpu_pool.kernels.draw import draw
from gpu_pool.sampling.bad_words import BadWords
from gpu_pool.sampling.biases import Biases
from gpu_pool.sampling.penalties import TokenCounts
from gpu_pool.sampling.sampler import SamplingRow, adjust_logits, create_draw_parameters, sample
from gpu_pool.sampling.scoring import gather_scores

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
]

VOCAB = 20_000
CUDA = torch.device("cuda")


def create_rows(device: torch.device) -> list[SamplingRow]:
    """Rows that ask for all there is."""
    penalised = SamplingParams(seed=1, presence_penalty=1.0, repetition_penalty=1.2)
    biased = SamplingParams(seed=2, top_k=40, top_p=0.9)
    masked = SamplingParams(temperature=0.0, seed=3)
    return [
        SamplingRow(penalised, 5, TokenCounts([1, 2], [3], VOCAB, device)),
        SamplingRow(biased, 6, None, biases=Biases(((7, 3.0), (9, -5.0)), device)),
        SamplingRow(masked, 7, None, b"\x55" * (VOCAB // 8)),
        SamplingRow(masked, 8, None, None, BadWords([(1,), (2, 3, 4)], [2], device), (3,)),
    ]


def test_nothing_waits_until_tokens_are_read() -> None:
    logits = torch.randn(4, VOCAB, device=CUDA)
    rows = create_rows(CUDA)
    sample(logits.clone(), rows)  # compiles
    gather_scores(logits, torch.zeros(4, dtype=torch.int64, device=CUDA), 5)
    torch.cuda.set_sync_debug_mode("error")
    try:
        adjust_logits(logits, rows)
        token_ids = draw(logits, create_draw_parameters(rows, CUDA))
        counts = rows[0].counts
        assert counts is not None
        counts.add_drawn(token_ids[:1])
        words = rows[3].bad_words
        assert words is not None
        words.add_drawn(token_ids[3:])
        gather_scores(logits, token_ids, 5)
        with pytest.raises(RuntimeError):  # the control: reading does wait
            token_ids.tolist()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_one_graph_draws_for_rows_that_came_later() -> None:
    logits = torch.randn(4, VOCAB, device=CUDA)
    later = torch.randn(4, VOCAB, device=CUDA)
    parameters = create_draw_parameters(create_rows(CUDA), CUDA)
    draw(logits, parameters)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token_ids = draw(logits, parameters)
    logits.copy_(later)
    parameters.positions_R.add_(100)
    graph.replay()
    assert token_ids.tolist() == draw(later, parameters).tolist()
