"""vLLM's engine alone, in one process, where it is installed. Started by `bench_cpu_offline`."""

import argparse
import time

# pyright: reportMissingImports=false, reportUnknownVariableType=false
from vllm import LLM, SamplingParams, TokensPrompt

from benchmarks.engine import offline_bursts


def main() -> None:
    """Loads the model and answers every burst."""
    options: argparse.Namespace = offline_bursts.create_parser().parse_args()
    engine = LLM(
        str(options.checkpoint),
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=max(options.counts),
        disable_log_stats=True,
    )
    bursts = offline_bursts.ask(options)
    burst = next(bursts, None)
    while burst is not None:
        greedy = SamplingParams(
            temperature=0, max_tokens=burst.num_tokens, ignore_eos=True, detokenize=False
        )
        prompts = [TokensPrompt(prompt_token_ids=ids) for ids in burst.prompts]
        begun_s = time.perf_counter()
        answers = engine.generate(prompts, greedy, use_tqdm=False)
        seconds = time.perf_counter() - begun_s
        num_tokens = sum(len(answer.outputs[0].token_ids) for answer in answers)
        assert num_tokens == len(prompts) * burst.num_tokens, "tokens are missing"
        try:
            burst = bursts.send(seconds)
        except StopIteration:
            burst = None


if __name__ == "__main__":
    main()
