"""Figures of the heads' own code and of the tables' numbers.

    python docs/gallery.py

docs/heads.png    p and the loss's slope of each head over the true token's lead: see docs/heads.md
results/heads.trials.png  where the trials of each row's search lie, and how far above its best they end
results/heads.forest.png  each head's perplexity over softmax's, tuned and at equal settings
docs/linear_loss.png  seconds and memory of linear_loss and of torch's losses over the vocabulary
"""

import argparse
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.colors import BoundaryNorm
from torch import Tensor

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from config.defaults import TrainConfig
from docs.sources import ROOT, bench, configured, ratios, search, shared_ratios
from evaluation.figures import panels, plain_numbers, pyplot, write
from heads import HEADS, Head, Targets
from model import LanguageModel, build

OVER = [1, 1.01, 1.02, 1.05, 1.1, 1.2]  # a row's best perplexity: the colours of its trials
V = 4096  # the vocabulary of the small tables
LEADS = torch.linspace(-5, 20, 501, dtype=torch.float64)
# What is drawn: a row of config/ for each head, and each setting that changes a curve
ROWS = (
    "baseline temperature smooth_gpt_10 sig_gpt sig_gpt_pw gs_softmax_f1 gs_softmax_f2 sigsoftmax "
    "sigmoid_cap stablemax taylor_2 taylor_6 taylor_inf sm_softmax sm_taylor am_softmax sparse_softmax_k "
    "sparsemax entmax15 entmax perturb_normal perturb_exponential confidence_penalty unlikelihood "
    "smooth_accuracy power_loss brier spherical stop_gradient"
).split()
# an overlay of config/ -> V there
WORDS = {"brief": V, "grammar": 2903}
TUNED, UNTUNED = "#0072B2", "#D55E00"  # blue and vermilion of Okabe and Ito, which all eyes tell apart
PLACES = 128  # of a fresh model, at which its slope is measured


class Curve(NamedTuple):
    """At each lead of the true token over all others, which are equal: p_t (N,) and -dL/dz_t (N,)."""

    p: Tensor
    slope: Tensor


def head_of(row: str) -> Head:
    config = configured(row)
    return HEADS[config["head"]](V, **config.get("head_args", {})).double()


def gain_of(row: str) -> float:
    return configured(row).get("gain", 1.0)


def curve(head: Head, leads: Tensor) -> Curve:
    """The others' logits are where training starts: at the output bias."""
    logits = torch.full((len(leads), V), head.bias or 0.0, dtype=torch.float64)
    logits[:, 0] += leads
    logits.requires_grad_()
    token = torch.zeros(len(leads), dtype=torch.long)
    (gradient,) = torch.autograd.grad(head.loss(logits, Targets.single(token)).sum(), logits)
    with torch.no_grad():
        return Curve(head.log_probs(logits)[:, 0].exp(), -gradient[:, 0])


def fresh(row: str, gain: float, overlay: str) -> LanguageModel:
    """The model that a row of config/ starts from under an overlay, in float64; always of one seed."""
    config = vars(TrainConfig()) | configured(row) | configured(overlay) | {"gain": gain}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return build(config | {"vocab_size": WORDS[overlay]}).double().eval()


@cache
@torch.no_grad()
def start_slope(row: str, gain: float = 0.0, overlay: str = "brief", step: float = 1e-4) -> float:
    """d log p_t / d(h w_t) of a row when training starts, measured on a fresh model: the mean over PLACES
    places, each asked for a random token t.

    h moves along w_t until h w_t, as softmax has it, has moved by `step` either way, and t's logit alone
    follows. So the slope counts the gain (0 stands for that of the row's config file), the head's own slope,
    and the length of w_t for heads on cosines. Not for heads with exact zeros: a fresh model rules tokens out
    already.
    """
    model = fresh(row, gain or gain_of(row), overlay)
    generator = torch.Generator().manual_seed(1)
    read, next_token = torch.randint(WORDS[overlay], (2, PLACES), generator=generator)
    h, draws = model.trunk(read[None])[0], model.head.draws(1, 1, torch.float64)
    w, t = model.head.projection.weight[next_token], next_token[:, None]
    along = step * w / w.square().sum(1, keepdim=True)
    (still,) = model.head._products(h, draws)
    log_p = []
    for moved in (h - along, h + along):
        (z,) = model.head._products(moved, draws)
        log_p.append(model.head._mean([still.scatter(1, t, z.gather(1, t))], draws).gather(1, t))
    return float((log_p[1] - log_p[0]).mean()) / (2 * step)


def equal_slope(row: str, step: float = 1e-7) -> float:
    """d log p_t / dz_t of a row's head where all V logits are equal, times the gain of its config file."""
    head = head_of(row)
    logits = torch.full((2, V), head.bias or 0.0, dtype=torch.float64)
    logits[:, 0] += torch.tensor([-step, step], dtype=torch.float64)
    with torch.no_grad():
        low, high = head.log_probs(logits)[:, 0].tolist()
    return gain_of(row) * (high - low) / (2 * step)


def slope_of(row: str) -> float:
    """What docs/heads.md says: measured, and of heads with exact zeros where all logits are equal."""
    return equal_slope(row) if head_of(row).sparse else start_slope(row)


def heads_figure(path: Path) -> list[Path]:
    """A panel a row: p_t and the loss's slope over the lead, softmax behind them in grey."""
    fig, axes = panels(ROWS, 1.5)
    softmax = curve(head_of("baseline"), LEADS)
    for ax, row in axes:
        gain = gain_of(row)
        head = curve(head_of(row), LEADS * gain)
        for values, style in ((softmax.p, "-"), (softmax.slope, "--")):
            ax.plot(LEADS, values, color="0.75", lw=1.5, ls=style)
        ax.plot(LEADS, head.p, color="tab:blue", lw=1, label="p")
        # divided by the largest: a slope's size is a matter of the learning rate, and Adam's steps have none
        ax.plot(LEADS, head.slope / head.slope.abs().max(), color="tab:orange", lw=1, ls="--", label="slope")
        ax.set_title(row if gain == 1 else f"{row} (gain {gain:g})", fontsize=8)
        ax.set_ylim(-0.1, 1.1)
    axes[0][0].legend(fontsize=6, frameon=False)
    fig.supxlabel(f"h w of the true token above the {V - 1:,} others', which are equal; grey: softmax")
    fig.supylabel("p, and -dL/dz over its largest value")
    return write(fig, path)


def trials_figure(path: Path) -> list[Path]:
    """The main table's trials, a line a row: where they lie in each setting that all rows have, and how far
    above the row's best trial each ends. A star is that best one, the rows are in its order."""
    settings = {"learning_rate": "learning rate", "readout_lr": "readout's learning rate", "gain": "gain"}
    trials = sorted(search("heads").items(), key=lambda entry: min(entry[1].ppl), reverse=True)
    norm, size = BoundaryNorm(OVER, 256, extend="max"), (9, 1.2 + 0.2 * len(trials))
    fig, axes = pyplot().subplots(1, len(settings), figsize=size, sharey=True, layout="constrained")
    for ax, (key, label) in zip(axes, settings.items()):
        for y, (_, at) in enumerate(trials):
            points = [(ppl / min(at.ppl), p[key]) for p, ppl in zip(at.points, at.ppl) if key in p]
            over, x = zip(*sorted(points, reverse=True))  # the best is drawn last
            drawn = ax.scatter(x, [y] * len(x), 18, over, norm=norm, cmap="cividis", lw=0)
            ax.plot(x[-1], y, color=UNTUNED, marker="*", ms=9, ls="")
        ax.set_xscale("log")
        plain_numbers(ax, "x")
        ax.set_xlabel(label)
    axes[0].set_yticks(range(len(trials)), [row for row, _ in trials], fontsize=8)
    axes[0].set_ylim(-0.7, len(trials) - 0.3)
    bar = fig.colorbar(drawn, ax=axes, aspect=60, format="%.2f")
    bar.set_label("validation perplexity over that of the row's best trial (star)")
    return write(fig, path)


def forest_figure(path: Path) -> list[Path]:
    """One line a row: its perplexity over softmax's, at its own best settings with the 95% interval of five
    seeds and of the search, and at the shared point of the search that is softmax's best."""
    tuned, base, shared = ratios("heads"), search("heads")["baseline"].ppl, shared_ratios("heads")
    best = min(range(len(shared["baseline"])), key=base.__getitem__)
    equal = {row: over[best] for row, over in shared.items()}
    order = sorted(tuned.keys() - {"baseline"}, key=lambda row: tuned[row].mean, reverse=True)
    fig, ax = pyplot().subplots(figsize=(8, 1.2 + 0.3 * len(order)), layout="constrained")
    ax.axvline(1, color="0.6", lw=1)
    edge = 1.1  # what lies further is an arrow there, or the rows that are near one another cannot be seen
    for y, row in enumerate(order):
        if equal.get(row, 0) > edge:
            ax.plot(edge - 0.005, y, color=UNTUNED, marker=">", ms=6, mfc="none")
            far = dict(textcoords="offset points", ha="right", va="center", fontsize=8, color=UNTUNED)
            ax.annotate(f"{equal[row]:.2f}", (edge - 0.005, y), (-8, 0), **far)
        elif row in equal:
            ax.plot(equal[row], y, color=UNTUNED, marker="D", ms=6, mfc="none")
        at, half = tuned[row].mean, tuned[row].half
        if at > edge:
            ax.plot(edge, y, color=TUNED, marker=">", ms=6)
        else:
            ax.errorbar(at, y, xerr=half, color=TUNED, marker="o", ms=5, capsize=3)
        in_margin = dict(xycoords=("axes fraction", "data"), va="center", fontsize=8, color=TUNED)
        ax.annotate(f"{tuned[row]:.3f}", (1, y), **in_margin)
    ax.set_xlabel("perplexity over softmax's")
    ax.tick_params(axis="y", length=0)
    ax.set_xlim(0.94, edge + 0.005)
    ax.set_ylim(-0.6, len(order) - 0.4)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_yticks(range(len(order)), order)
    ax.plot([], [], color=TUNED, marker="o", ms=5, label="tuned: test, five seeds, 95% interval")
    label = "at softmax's best shared point: validation, one seed"
    ax.plot([], [], color=UNTUNED, marker="D", mfc="none", ls="", label=label)
    fig.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return write(fig, path)


def vocabulary_figure(path: Path) -> list[Path]:
    """Seconds and megabytes of a forward and a backward over the vocabulary, of bench/vocabulary.json."""
    lines = {  # way and head -> label, colour, marker
        ("plain", "softmax"): ("F.cross_entropy", "0.5", "s"),
        ("linear_ce", "softmax"): ("F.linear_cross_entropy", "#E69F00", "^"),
        ("chunked", "softmax"): ("linear_loss, softmax", TUNED, "o"),
        ("chunked", "entmax15"): ("linear_loss, entmax15", UNTUNED, "D"),
    }
    fig, axes = pyplot().subplots(1, 2, figsize=(8, 3), layout="constrained")
    for ax, key, label in zip(axes, ("seconds", "peak_mb"), ("seconds", "MB above inputs and gradients")):
        for (way, head), (name, colour, marker) in lines.items():
            of = bench("vocabulary")["results"].where(way=way, head=head)
            at = [(r["vocab"], r[key]) for r in of.entries]
            ax.loglog(*zip(*at), color=colour, marker=marker, ms=4, lw=1, label=name)
        ax.set_xlabel("V")
        ax.set_ylabel(label)
        for which in "xy":
            plain_numbers(ax, which)
    axes[0].legend(frameon=False)
    return write(fig, path)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    made = heads_figure(ROOT / "docs" / "heads")
    made += trials_figure(ROOT / "results" / "heads.trials")
    made += forest_figure(ROOT / "results" / "heads.forest")
    made += vocabulary_figure(ROOT / "docs" / "linear_loss")
    print(*made, sep="\n")


if __name__ == "__main__":
    main()
