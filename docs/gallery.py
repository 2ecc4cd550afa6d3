"""Draws p and the loss's slope of heads over the true token's lead: docs/heads.png, for docs/heads.md.

python docs/gallery.py
python docs/gallery.py labs/more_heads/heads.png softcap brier    a file, and rows of config/
"""

import argparse
import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from common.config import read_config
from common.places import find
from heads import Head, Targets, named_head
from tables.figures import pyplot, write

V = 4096  # the vocabulary of the small tables
LEADS = torch.linspace(-5, 20, 501, dtype=torch.float64)
# What is drawn: a row of config/ for each head, and each setting that changes a curve
ROWS = (
    "baseline temperature smooth_gpt_10 sig_gpt sig_gpt_pw gs_softmax_f1 gs_softmax_f2 sigsoftmax "
    "taylor_2 taylor_6 taylor_inf sm_softmax sm_taylor am_softmax sparse_softmax_k "
    "sparsemax entmax15 entmax perturb_normal perturb_exponential smooth_accuracy stop_gradient"
).split()


class Curve(NamedTuple):
    """At each lead of the true token over all others, which are equal: p_t (N,) and -dL/dz_t (N,)."""

    p: Tensor
    slope: Tensor


def head_of(row: str) -> tuple[Head, float]:
    """The head of a row of config/, and its gain."""
    config = read_config(find(f"config/{row}.py"))
    head = named_head(config["head"], V, config.get("head_args"))
    return head.double(), config.get("gain", 1.0)


def curve(head: Head, leads: Tensor) -> Curve:
    """The others' logits are where training starts: at the output bias."""
    logits = torch.full((len(leads), V), head.bias or 0.0, dtype=torch.float64)
    logits[:, 0] += leads
    logits.requires_grad_()
    token = torch.zeros(len(leads), dtype=torch.long)
    (gradient,) = torch.autograd.grad(head.loss(logits, Targets.single(token)).sum(), logits)
    with torch.no_grad():
        return Curve(head.log_probs(logits)[:, 0].exp(), -gradient[:, 0])


def heads_figure(path: Path, rows: list[str] = ROWS) -> list[Path]:
    """A panel a row: p_t and the loss's slope over the lead, softmax behind them in grey."""
    high = -(-len(rows) // 6)
    wide = -(-len(rows) // high)
    size = dict(figsize=(max(5, 2 * wide), 1.5 * high + 0.4), sharex=True, sharey=True, squeeze=False)
    fig, axes = pyplot().subplots(high, wide, layout="constrained", **size)
    for ax in axes.flat[len(rows) :]:
        ax.axis("off")
    if high > 1:  # where a column ends sooner, its last panel has the numbers of the x axis
        for ax in axes[-2, (len(rows) - 1) % wide + 1 :]:
            ax.tick_params(labelbottom=True)
    softmax = curve(head_of("baseline")[0], LEADS)
    for ax, row in zip(axes.flat, rows):
        head, gain = head_of(row)
        drawn = curve(head, LEADS * gain)
        for values, style in ((softmax.p, "-"), (softmax.slope, "--")):
            ax.plot(LEADS, values, color="0.75", lw=1.5, ls=style)
        ax.plot(LEADS, drawn.p, color="tab:blue", lw=1, label="p")
        # divided by the largest: a slope's size is a matter of the learning rate, and Adam's steps have none
        ax.plot(
            LEADS, drawn.slope / drawn.slope.abs().max(), color="tab:orange", lw=1, ls="--", label="slope"
        )
        ax.set_title(row if gain == 1 else f"{row} (gain {gain:g})", fontsize=8)
        ax.set_ylim(-0.1, 1.1)
    axes.flat[0].legend(fontsize=6, frameon=False)
    fig.supxlabel(f"h w of the true token above the {V - 1:,} others', which are equal; grey: softmax")
    fig.supylabel("p, and -dL/dz over its largest value")
    return write(fig, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=ROOT / "docs" / "heads.png")
    parser.add_argument("rows", nargs="*", default=ROWS)
    asked = parser.parse_args()
    heads_figure(asked.file.with_suffix(""), asked.rows)
