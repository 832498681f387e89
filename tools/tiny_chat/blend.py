"""Blends two sets of tiny-chat's weights, and tells what the rehearsal says of each blend.

    python -m tools.tiny_chat.blend OLD NEW --out DIR --share 0.5

Weights that have gone on learning and those they began from lie close enough for their mean to know
what either knows. Without --out the shares are only compared. Read next: `rehearsal`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from tokenizers import Tokenizer
from torch import Tensor

from tools.tiny_chat.answer import Answerer
from tools.tiny_chat.checkpoint import load_checkpoint, rounded_copy, save_checkpoint
from tools.tiny_chat.model import TinyChat, TinyChatConfig
from tools.tiny_chat.rehearsal import Rehearsal

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_REHEARSAL_SEED = 18


def blend(old: dict[str, Tensor], new: dict[str, Tensor], share: float) -> TinyChat:
    """The model whose weights are `share` of `new` and the rest of `old`, rounded as when saved."""
    model = TinyChat(TinyChatConfig())
    model.load_state_dict({name: old[name].lerp(new[name], share) for name in old})
    return rounded_copy(model)


def describe(model: TinyChat, tokenizer: Tokenizer, rehearsal: Rehearsal) -> str:
    """The rehearsal's marks in one line."""
    scores = rehearsal.scores(Answerer(model, tokenizer))
    mean = sum(scores.values()) / len(scores)
    return "  ".join(f"{kind} {score:.1%}" for kind, score in {**scores, "mean": mean}.items())


def main() -> None:
    """Compares shares, or saves one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path, help="folder of weights")
    parser.add_argument("new", type=Path, help="folder of weights that began from the old ones")
    parser.add_argument("--share", type=float, help="of the new ones, 0 to 1")
    parser.add_argument("--out", type=Path, help="folder for the blend")
    args = parser.parse_args()
    if (args.out is None) != (args.share is None):
        parser.error("--out and --share go together")
    (tokenizer, old), (_, new) = load_checkpoint(args.old), load_checkpoint(args.new)
    rehearsal, console = Rehearsal(_REHEARSAL_SEED), Console(highlight=False)
    for share in _SHARES if args.share is None else (args.share,):
        model = blend(old, new, share)
        console.print(f"{share:.2f}  {describe(model, tokenizer, rehearsal)}", soft_wrap=True)
        if args.out is not None:
            save_checkpoint(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
