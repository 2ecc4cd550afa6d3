"""Writes a run's best checkpoint as a GPT2LMHeadModel folder, which transformers reads.

python export.py out/baseline FOLDER
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

from dataclasses import dataclass
from pathlib import Path

import torch

from data.prepared import tokenizer_of
from heads import BayesianProjection, Softmax
from model import GPT, LanguageModel
from runtime.checkpoint import load_model, writing
from runtime.configurator import cli, configure, help_text, wants_help
from runtime.errors import UserError
from runtime.files import beside
from runtime.gpt2 import to_gpt2


@dataclass
class ExportConfig:
    # fmt: off
    run: str        # the out folder of a training run, or one checkpoint in it
    folder: str     # the new folder
    # fmt: on


def is_gpt2(model: LanguageModel) -> bool:
    """Whether GPT-2 computes the model's distribution: softmax of a plain projection."""
    head, projection = model.head.head, model.head.projection
    plain_softmax = isinstance(head, Softmax) and type(head).link is Softmax.link
    return plain_softmax and projection.bias is None and not isinstance(projection, BayesianProjection)


def export(path: str | Path, folder: str | Path) -> None:
    """Writes a run's best checkpoint as a `GPT2LMHeadModel` folder.

    UserError if GPT-2 cannot compute it: another trunk, order or link, an output bias, Bayesian weights.
    """
    folder = Path(folder)
    if folder.exists():
        raise UserError(f"{folder} exists: give the name of a new folder")
    model, ckpt = load_model(path)
    trunk = model.trunk
    if not isinstance(trunk, GPT):
        raise UserError(f"{ckpt.path} has the trunk {ckpt.config['trunk']!r}: a GPT2LMHeadModel has GPT-2's")
    if trunk.config.order != "left_to_right":
        raise UserError(
            f"{ckpt.path} reads in the order {ckpt.config['order']!r}: "
            "a GPT2LMHeadModel reads from left to right"
        )
    if not is_gpt2(model):
        weights = " with Bayesian weights" if ckpt.config["bayesian"] else ""
        raise UserError(
            f"{ckpt.path} has the head {ckpt.config['head']!r}{weights}: "
            "a GPT2LMHeadModel computes a plain softmax only"
        )
    tokenizer, aside = tokenizer_of(ckpt), beside(folder)
    remedy = "nothing of it is left: free some disk space and run it again"
    with writing(aside, f"could not write {folder}", remedy):
        with torch.no_grad():  # GPT-2 has no gain; the last LayerNorm's scale and shift can have it
            for p in trunk.ln_f.parameters():
                p.mul_(model.head.gain)
        to_gpt2(trunk, aside)
        tokenizer.save(aside)
    aside.rename(folder)


def main(argv: list[str]) -> int:
    if wants_help(argv):
        print(__doc__, help_text(ExportConfig), sep="\n")
        return 0
    c = configure(ExportConfig, argv)
    export(c.run, c.folder)
    print(f"wrote {c.folder}")
    return 0


if __name__ == "__main__":
    cli(main)()
