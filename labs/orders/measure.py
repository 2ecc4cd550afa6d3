"""The orders measure: how well models know a text in any order.

ppl          from left to right, each token given one at least: what the text measure scores. Synthetic
             sequences have none, for they stand apart from each other
ppl random   in a random order, whole windows from the start token; for masked diffusion a bound
ppl own      in the order that it was trained in
ppl sure     --exact: the place first of which the model is surest (confidence), or from left to right, a
             place a pass; exact for masked diffusion, too
bits, left   a token of the middle 1, 4, 16, 64 of a window, given what stands to the left
bits, both   given both sides; for masked diffusion a bound
KL           KL(truth || model) in nats of the place after the first 10, 50, 90% of a window (next), of places
             in a gap with 10, 50, 90% around it (middle), and with as many known anywhere (random)

Where sequences begin with tokens that are given, all of this is about the rest, and nll (ltr, random, own),
nats a sequence, takes the place of the perplexities. `--samplers`: what each sampler writes from
nothing, or from what is given, against the truth, and the model evaluations it takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import torch

from common.config import Draws, Dtype, Field, Natural, Positive, Seed
from common.device import choose_dtype, get_device, get_dtype
from common.errors import UserError, checking
from common.log import progress_bar
from data.open import corpus_of
from data.tokens import TokenFile
from evaluate.metrics import perplexity
from evaluate.sampling import weight_draws
from evaluate.scoring import in_sequences, score
from evaluate.settings import run_seed
from labs.orders.asking import Asker, divergence, middle_bits
from labs.orders.filling import surest_first
from labs.orders.readers import reader_of
from labs.orders.samplers import sampler_points
from labs.orders.task import plan
from labs.orders.trunk import MASKED
from labs.sequences.exact import Sequences
from labs.sequences.questions import KINDS, Questions, questions, spread, templates
from labs.sequences.two_sided import is_known, two_sided
from tables.checks import check_comparable, check_planned, open_split
from tables.measure import Measure, NamedRun, Session, open_runs
from tables.store import Row
from tables.summary import grouped
from tables.views import View, mean, problems, table
from training.run import Degenerate, load_model

Between = Annotated[float, Field(gt=0, lt=1)]


@dataclass
class OrdersConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them
    split: Literal["validation", "test"] = "validation"
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    windows: Positive = 512         # of which middles are asked
    gaps: list[Positive] = field(default_factory=list)  # tokens of a middle; empty: 1, 4, 16, 64 as they fit
    truth_windows: Positive = 256   # in which a distribution is compared with the truth
    known: list[Between] = field(default_factory=lambda: [0.1, 0.5, 0.9])  # shares of a window
    samplers: bool = False          # also what each sampler writes; for a corpus whose truth is known
    texts: Positive = 500           # of each sampler
    exact: Natural = 0              # windows that are scored in the orders of a sampler that is surest first
    samples: Draws = 8              # weight draws of Bayesian rows
    seed: Seed = 1337               # of what is sampled
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "float32"        # of matrix products: float32, bfloat16, float16, or auto
    out: str = ""                   # writes OUT.jsonl and OUT.md
    #                                 rows of other runs, and of unchanged ones, in it are kept
    # fmt: on


def perplexities(asker: Asker, data: TokenFile, title: str, apart: bool) -> dict[str, float]:
    """Perplexities in all orders or, for sequences that begin with what is given, nats a sequence. `apart`:
    windows are sequences that have nothing to do with each other."""
    kind, given, length = "nll" if data.given else "ppl", data.given, asker.model.trunk.config.block_size
    ids = data.ids[: len(data.ids) // length * length] if apart else data.ids  # one more begins no sequence

    def in_order(order: str) -> float:
        bar = partial(progress_bar, desc=f"{title}: {order or 'left to right'}", leave=False)
        from_left = in_sequences(ids, length, given) if given else ids
        text = plan(asker.model.trunk.config, ids, order, given) if order else from_left
        s = score(asker.model, text, 0, asker.draws, asker.device, asker.dtype, progress=bar)
        if math.isnan(s.nll):
            raise Degenerate("its log-probabilities are not numbers")
        if given:
            return s.nll / s.tokens * (length - given)
        return perplexity(s.nll, s.tokens)

    if asker.order == MASKED:
        bound = in_order(MASKED)
        return {f"{kind}_random": bound, f"{kind}_own": bound}
    forwards = {} if apart and not given else {kind: in_order("")}
    if asker.order == "left_to_right":
        return forwards
    random, own = in_order("random"), asker.fills
    return forwards | {f"{kind}_random": random, f"{kind}_own": random if own == "random" else in_order(own)}


def surest_perplexities(asker: Asker, windows: np.ndarray, given: int, batch: int = 64) -> dict[str, float]:
    """Perplexity of windows (n, T) or, where sequences begin with what is given, nats a sequence, as
    `surest_first` writes them, and from left to right, one place a pass."""
    kind, free = "nll" if given else "ppl", windows.shape[1] - given
    out = {}
    for rule in ("confidence", "left_to_right"):
        nll = 0.0
        for i in range(0, len(windows), batch):
            target = torch.from_numpy(windows[i : i + batch])
            text = torch.from_numpy(templates(windows[i : i + batch], given))
            reader = reader_of(asker.model, text, asker.draws, dtype=asker.dtype)
            filled = surest_first(reader, target=target, leftmost=rule == "left_to_right")
            assert filled.log_p is not None
            nll -= filled.log_p.sum().item()
        out[f"{kind}_sure_{rule}"] = nll / len(windows) if given else perplexity(nll, len(windows) * free)
    return out


class OrdersSession(Session):
    """The runs that are asked for, and what they are asked about."""

    def __init__(self, c: OrdersConfig):
        """UserError for all that cannot be measured, before any work."""
        self.c, self.device = c, get_device(c.device)
        self.dtype = choose_dtype(c.dtype, self.device).name
        runs = open_runs(c.checkpoints)
        check_comparable(runs, any_order=True)
        self.subjects: Sequence[NamedRun] = runs
        self.data = open_split(runs, c.data, c.split)
        self.length = runs[0].ckpt.config.block_size  # of windows
        check_gaps(c, self.length - self.data.given)
        self.gaps = c.gaps or [g for g in (1, 4, 16, 64) if g <= self.length - self.data.given - 2]
        self.truth = two_sided(self.data, runs[0].ckpt.config.dataset, self.length)
        with checking():
            spread(self.data.ids, 1, self.length)
        if c.samplers and self.truth is None:
            raise no_truth(str(self.data.path.parent), self.length)
        corpus = {"block_size": self.length, "corpus": self.data.info["sha256"]}
        self.settings = orders_settings(c) | {"gaps": self.gaps, "dtype": self.dtype} | corpus
        self.reference_names = ("truth",) if self.truth else ()

    @cached_property
    def truths(self) -> dict[tuple[str, float], Questions]:
        """The places at which a distribution is compared with the truth; {} where it is not known."""
        asked = product(KINDS, self.c.known if self.truth else [])
        windows, given = spread(self.data.ids, self.c.truth_windows, self.length), self.data.given
        return {(k, s): questions(self.truth.log_probs, windows, s, k, given) for k, s in asked if self.truth}

    def references(self) -> list[Row]:
        """What the truth has itself: the judgement of real texts and, of sequences that begin with what is
        given, its `nll` over the whole split."""
        assert self.truth is not None  # else there are none
        judged = self.truth.judge(spread(self.data.ids, self.c.texts, self.length))
        if self.data.given and isinstance(self.truth, Sequences):
            # no order changes it, and no model has less on average
            whole = spread(self.data.ids, len(self.data.ids), self.length)
            judged["nll"] = float(self.truth.nats(whole).mean())
        return [{"name": "truth", "judgements": judged}]

    def numbers(self, subject: NamedRun) -> Row:
        """All that is measured of one run."""
        c, data = self.c, self.data
        model, ckpt = load_model(subject.path, device=self.device, dtype=get_dtype(self.dtype))
        draws = weight_draws(model, ckpt.record, c.samples, c.seed, self.dtype)
        asker = Asker(model, draws, self.device, self.dtype)
        row: Row = perplexities(asker, data, subject.name, isinstance(self.truth, Sequences))
        windows = spread(data.ids, c.windows, self.length)
        for gap in self.gaps:
            for side, bits in middle_bits(asker, windows, gap, data.given).items():
                row[f"{side}_{gap}"] = bits
        if c.exact and asker.order != "left_to_right":
            row |= surest_perplexities(asker, spread(data.ids, c.exact, self.length), data.given)
        for (kind, share), q in self.truths.items():
            if kind == "next" or asker.order != "left_to_right":
                row[f"kl_{kind}_{share:.0%}"] = divergence(asker, q)["kl"]
        if c.samplers and self.truth and (asker.order != "left_to_right" or data.given):
            begun = templates(spread(data.ids, c.texts, self.length), data.given)
            row["samplers"] = sampler_points(asker, self.truth, begun, run_seed(c.seed, ckpt.record))
        return row


def orders_settings(c: OrdersConfig) -> dict[str, Any]:
    """What two rows must share to stand in one table, as far as the flags say it."""
    unsettled = {k for k in ("gaps", "dtype", "exact") if getattr(c, k) in ([], "auto", 0)}
    ignored = {"checkpoints", "data", "device", "out"} | unsettled
    return {k: v for k, v in vars(c).items() if k not in ignored}


class OrdersMeasure(Measure):
    name, config, session = "orders", OrdersConfig, OrdersSession

    def check(self, c: OrdersConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        check_planned(wanted, any_order=True)
        for run in wanted:
            corpus = run["dataset"], run["source"]
            check_gaps(c, run["block_size"] - corpus_of(run["dataset"]).given(run["source"]))
            if c.samplers and not is_known(*corpus, run["block_size"]):
                raise no_truth(" ".join(corpus).strip(), run["block_size"])
        return orders_settings(c)

    def view(self, rows: list[Row]) -> View:
        truth, sound = judgements(rows), [r for r in rows if "problem" not in r]
        samplers = [sampler_table(sound, truth)] if any("samplers" in r for r in sound) else []
        note = ["Mean ± half of the 95% interval: Student's t over the runs."]
        return View([*tables(sound, truth), *samplers, *note, problems(rows)])


def check_gaps(c: OrdersConfig, length: int) -> None:
    """`length`: of what is predicted of a window."""
    if max(c.gaps, default=0) > length - 2:
        raise UserError(f"gaps = {c.gaps}: at most {length - 2} here")


def no_truth(corpus: str, length: int) -> UserError:
    return UserError(f"--samplers: nobody knows the truth of {corpus} in windows of {length} tokens")


def tables(rows: list[Row], truth: dict[str, float]) -> list[pd.DataFrame]:
    """Perplexities and middles, then the distances to the truth: a line for each training, and one for the
    truth's own nll."""
    beginnings = ("ppl", "nll", "left_", "both_", "kl_")
    keys = list(dict.fromkeys(k for r in rows for k in r if k.startswith(beginnings)))
    out = []
    for part in ([k for k in keys if not k.startswith("kl_")], [k for k in keys if k.startswith("kl_")]):
        lines = [
            [name, str(len(runs)), *(mean([r[k] for r in runs if k in r]) for k in part)]
            for name, runs in grouped(rows).items()
        ]
        # nll_sure_ is of --exact windows, the truth's nll of the whole split
        whole = [k for k in part if k.startswith("nll") and "_sure_" not in k]
        if "nll" in truth and whole:
            lines.append(["truth", "", *(mean([truth["nll"]]) if k in whole else "" for k in part)])
        if part:
            out.append(table(["", "runs", *(k.replace("_", " ") for k in part)], lines))
    return out


def judgements(rows: list[Row]) -> dict[str, float]:
    """What the truth's own texts are judged as (TwoSided.judge); {} where it is not known."""
    return next((r["judgements"] for r in rows if r.get("reference")), {})


def sampler_table(rows: list[Row], truth: dict[str, float]) -> pd.DataFrame:
    judged, lines = [k for k in truth if k not in ("judged", "nll")], []
    keys = ["rounds", "evaluations", "tokens_a_pass", "ms_a_token", *judged, "judged"]
    for name, runs in grouped(rows).items():
        for same in zip(*(r["samplers"] for r in runs if "samplers" in r)):
            timed = [p | {"ms_a_token": 1000 * p["seconds_a_token"]} for p in same]
            lines.append([name, same[0]["sampler"], *(mean([p[k] for p in timed if k in p]) for k in keys)])
    lines.append(["truth", "", "", "", "", "", *(f"{truth[k]:.4g}" for k in (*judged, "judged"))])
    return table(["", "sampler", *(k.replace("_", " ") for k in keys)], lines)


MEASURE = OrdersMeasure()
