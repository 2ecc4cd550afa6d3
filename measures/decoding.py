"""The decoding measure: what a temperature and the cuts of a next-token distribution do to its distance from
the truth, for models of a language whose truth is known.

At each position p is the truth, m the model's distribution at its temperature, and q what a cut leaves of m,
normalised. Each sampler, alone or after a temperature, is measured at all its VALUES: on the validation
split, where a value is chosen, and on the test split, where it is judged. The positions are some of those of
the text measure's distances.
"""

import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Tensor

from data.held_out import HeldOut, Truth
from data.prepared import tokenizer_of
from evaluation import figures
from evaluation.decoding import Decoding
from evaluation.sampling import weight_draws
from evaluation.scoring import document_blocks, spread, truth_blocks
from evaluation.settings import run_seed
from evaluation.truncation import truncate
from evaluation.two_sided import two_sided
from evaluation.windows import Window, document_windows
from measures.checks import check_comparable, check_planned, check_text, open_split
from measures.decoding_texts import TEXT_NUMBERS, LanguageJudge, Sampler, TextSizes
from measures.measure import Measure, NamedRun, Session, open_runs
from measures.store import Row
from measures.summary import grouped
from measures.views import Grid, View, mean, problems
from model import context
from runtime.checkpoint import Degenerate, load_model
from runtime.device import get_device, get_dtype, settle_dtype
from runtime.errors import UserError
from runtime.places import CODE
from runtime.progress import Progress
from runtime.values import AtLeast2, Dtype, Field, Positive, Seed

if TYPE_CHECKING:  # see figures.pyplot
    from matplotlib.figure import Figure

Temperature = Annotated[float, Field(gt=0)]
Blocks = Iterator[tuple[np.ndarray, Tensor]]
MASSES = [0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998]
# cut -> its values, the mildest last
VALUES: dict[str, list[float]] = {
    "top_k": [20, 50, 100, 200, 400, 800, 1600],
    "top_p": MASSES,
    "min_p": [0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002],
}
ALONE = [0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2]  # temperatures without a cut

# what a point's numbers are, in the order of a table: (key, title, what it is)
NUMBERS = (
    ("tv", "TV", "total variation distance of q from p"),
    ("js", "JS", "Jensen-Shannon divergence of q and p, nats; KL(p, q) is infinite once a valid word is cut"),
    ("brier", "Brier", "sum of (q - p)^2: how far q is above the truth's own Brier score"),
    ("forbidden", "forbidden", "q's mass on words that the language forbids"),
    ("removed", "removed", "share of m's mass on forbidden words that the cut takes away"),
    ("lost", "lost", "p's mass on words that q cannot draw"),
    ("entropy", "H", "entropy of q, nats"),
)


@dataclass
class DecodingConfig:
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    temperatures: list[Temperature] = field(default_factory=lambda: [1.0, 1.5])  # before each cut
    windows: Positive = 16          # of each split, evenly spread
    contexts: Positive = 512        # at most, whose next four tokens are BrierLM's
    texts: AtLeast2 = 100           # at most, of half a block, that each sampler writes at its best value
    samples: Positive = 8           # weight draws of Bayesian rows
    seed: Seed = 1337               # of these
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "float32"        # of matrix products: float32, bfloat16, float16, or auto
    out: str = ""                   # writes OUT.jsonl, OUT.md and OUT.png
    #                                 rows of unchanged checkpoints in it are kept
    # fmt: on


def grid(temperatures: list[float], alone: list[float], cuts: dict[str, list[float]]) -> list[dict[str, Any]]:
    """The settings of each point: temperatures alone, then each cut after each of `temperatures`."""
    out: list[dict[str, Any]] = [{"temperature": t} for t in sorted({*alone, *temperatures})]
    after = [(t, cut) for t in temperatures for cut in cuts]
    return out + [{"temperature": t, cut: value} for t, cut in after for value in cuts[cut]]


CHOSEN_BY = ("tv", "entropy")  # and compared by

# -----------------------------------------------------------------------------
# The numbers at some positions: of q against p, given m; (N, V) each -> (N,) each


def place(q: Tensor, p: Tensor, m: Tensor) -> dict[str, Tensor]:
    """What a value is chosen by."""
    return {"tv": (q - p).abs().sum(1) / 2, "entropy": entropy(q)}


def numbers(q: Tensor, p: Tensor, m: Tensor) -> dict[str, Tensor]:
    """All of NUMBERS; `removed` as mass, not yet as a share."""
    out = place(q, p, m)
    cut, forbidden = (q == 0).to(q), (p == 0).to(q)
    return out | {
        "js": (entropy((p + q) / 2) - (entropy(p) + out["entropy"]) / 2).clamp(min=0),  # but for rounding
        "brier": (q - p).square().sum(1),
        "forbidden": dot(q, forbidden),
        "removed": dot(m, cut * forbidden),
        "lost": dot(p, cut),
    }


def entropy(p: Tensor) -> Tensor:
    return torch.special.entr(p).sum(1)


def dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b)


@torch.no_grad()
def measured(
    blocks: Blocks, truth: Truth, points: list[dict[str, Any]], numbers: Callable, rows: int = 32
) -> dict[str, list[float]]:
    """The `numbers` of each point, means over the positions of `blocks` (evaluation.scoring). `rows` of them
    at a time stay in the cache of a core."""
    sums: dict[str, Tensor] = {}
    count, on_forbidden = 0, torch.zeros(len(points), dtype=torch.float64)
    for at, log_m in blocks:
        if log_m.isnan().any():
            raise Degenerate("its log-probabilities are not numbers")
        ps = torch.from_numpy(truth.probs(at)).to(log_m)
        for log_part, p in zip(log_m.split(rows), ps.split(rows)):
            uncut: dict[float, Tensor] = {}
            for i, c in enumerate(points):
                q, t = truncate(log_part, Decoding(**c)), c["temperature"]
                m = uncut.setdefault(t, q)  # the points without a cut come first
                on_forbidden[i] += dot(m, (p == 0).to(m)).sum().item()
                for key, value in numbers(q, p, m).items():
                    sums.setdefault(key, torch.zeros(len(points), dtype=torch.float64))[i] += (
                        value.sum().item()
                    )
        count += len(at)
    means = {key: total / count for key, total in sums.items()}
    if "removed" in means:
        means["removed"] = sums["removed"] / on_forbidden.clamp(min=1e-30)
    return {
        key: [float(f"{round(x, 9):.{5 if key in CHOSEN_BY else 3}g}") for x in means[key].tolist()]
        for key, _, _ in NUMBERS
        if key in means
    }


# -----------------------------------------------------------------------------
# The measure


class DecodingSession(Session):
    """The runs that are asked for, and the truth of both splits."""

    reference_names = ("truth",)

    def __init__(self, c: DecodingConfig):
        """UserError for all that cannot be measured, before any work."""
        self.c, self.device = c, get_device(c.device)
        self.dtype = settle_dtype(c.dtype, self.device).name
        runs = open_runs(c.checkpoints)
        check_comparable(runs)
        for _, path, ckpt in runs:
            check_text(path, ckpt.config["dataset"])
        self.subjects: Sequence[NamedRun] = runs
        self.data = {split: open_split(runs, c.data, split) for split in ("validation", "test")}
        for data in self.data.values():
            truth_of(data)
        self.block_size = min(context(run.ckpt.config) for run in runs)
        self.points = grid(c.temperatures, ALONE, VALUES)
        hashes = {split: data.info["sha256"] for split, data in self.data.items()}
        sizes = TextSizes(c.contexts, c.texts, self.block_size)
        test, first = self.data["test"], runs[0].ckpt
        language = two_sided(test, first.config["dataset"], self.block_size)
        assert language is not None
        self.judge = LanguageJudge(test, language, tokenizer_of(first).decode, sizes)
        self.settings = settings_of(c) | {"block_size": self.block_size, "dtype": self.dtype, **hashes}

    def references(self) -> list[Row]:
        """The truth as a model: what a cut takes from it."""
        numbers = self._both(lambda data, plan: truth_blocks(truth_of(data), plan))
        return [{"name": "truth", **numbers, "texts": [{"temperature": 1.0, **self.judge.human()}]}]

    def numbers(self, subject: NamedRun) -> Row:
        """Of each split the numbers at each point of `grid`, and of the texts at the best ones."""
        model, ckpt = load_model(subject.path, device=self.device, dtype=get_dtype(self.dtype))
        draws = weight_draws(model, ckpt.config, self.c.samples, self.c.seed, self.dtype)

        def blocks(data: HeldOut, plan: list[Window]) -> Blocks:
            def bar(steps: Iterable) -> Iterable:
                return Progress(steps, desc=f"{subject.name}: {data.path.stem}", leave=False)

            return document_blocks(model, data.ids, plan, draws, self.device, self.dtype, progress=bar)

        out = self._both(blocks)
        texts = []
        for point in Points([{"settings": self.settings, **out}]).best_points():
            seed = run_seed(self.c.seed, ckpt.config)
            sampler = Sampler(model, draws, Decoding(**point), seed, self.device, self.dtype)
            texts.append(point | self.judge.numbers(sampler))
        return out | {"texts": texts}

    def _both(self, blocks: Callable[[HeldOut, list[Window]], Blocks]) -> Row:
        out: Row = {}
        for (split, data), kind in zip(self.data.items(), (place, numbers)):
            truth = truth_of(data)
            plan = document_windows(np.flatnonzero(data.ids == truth.end), self.block_size)
            out[split] = measured(blocks(data, spread(plan, self.c.windows)), truth, self.points, kind)
        return out


def truth_of(data: HeldOut) -> Truth:
    if data.truth is None:
        raise no_truth(str(data.path.parent))
    return data.truth


def no_truth(corpus: str) -> UserError:
    return UserError(
        f"the decoding measure needs a language whose truth is known (config/grammar.py), not {corpus}"
    )


def settings_of(c: DecodingConfig) -> dict[str, Any]:
    """What two rows must share to stand in one table, as far as the flags say it."""
    shared = {
        key: getattr(c, key) for key in ("temperatures", "windows", "contexts", "texts", "samples", "seed")
    }
    return shared | {"alone": ALONE, "cuts": VALUES}


class DecodingMeasure(Measure):
    definition = 2
    name, config, session = "decoding", DecodingConfig, DecodingSession

    def check(self, c: DecodingConfig, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        check_planned(wanted)
        for config in wanted:
            check_text(Path(config["out_dir"]), config["dataset"])
            if not (CODE / "data" / config["dataset"] / "truth.py").is_file():
                raise no_truth(config["dataset"])
        return settings_of(c)

    def view(self, rows: list[Row]) -> View:
        return view(rows)

    def draw(self, rows: list[Row], out: Path) -> list[Path]:
        groups, truth = points_of(rows)
        return figures.write(figure(groups, truth), out) if groups else []


# -----------------------------------------------------------------------------
# What the rows of a training say


class Points:
    """The runs of one training: what each sampler does, a number of each seed."""

    def __init__(self, runs: list[Row]):
        self.runs = runs
        self.seeds = [run.get("seed") for run in runs]
        self.settings = runs[0]["settings"]
        self.points = grid(*(self.settings[key] for key in ("temperatures", "alone", "cuts")))

    def values(self, point: int, key: str = "tv", split: str = "test") -> list[float]:
        """One of NUMBERS at a point."""
        return [run[split][key][point] for run in self.runs]

    def uncut(self, temperature: float) -> int:
        return self.points.index({"temperature": temperature})

    def of(self, sampler: str, temperature: float) -> list[int]:
        """The points of a cut after a temperature, without any first; or of temperatures alone."""
        if sampler == "temperature":
            return [i for i, c in enumerate(self.points) if len(c) == 1]
        cut = [i for i, c in enumerate(self.points) if sampler in c and c["temperature"] == temperature]
        return [self.uncut(temperature), *cut]

    def best(self, sampler: str, temperature: float = 1.0) -> int:
        """The point of least TV on the validation split, mean over the runs."""
        tv = {i: statistics.fmean(self.values(i, "tv", "validation")) for i in self.of(sampler, temperature)}
        return min(tv, key=tv.__getitem__)

    def samplers(self, temperature: float) -> list[str]:
        """Whose best values a table shows after a temperature."""
        return ["temperature"] * (temperature == 1) + [*self.settings["cuts"]]

    def best_points(self) -> list[dict[str, Any]]:
        """The settings without a cut and at each sampler's best value, each once."""
        temperatures = self.settings["temperatures"]
        each = [self.best(s, t) for t in temperatures for s in self.samplers(t)]
        return [self.points[i] for i in dict.fromkeys([*map(self.uncut, temperatures), *each])]

    def texts(self, sampler: str, temperature: float, key: str) -> list[float]:
        """One of TEXT_NUMBERS of the texts that each run writes at its own best value of a sampler; "none":
        without a cut."""
        out = []
        for run in self.runs:
            alone = Points([run])
            i = alone.uncut(temperature) if sampler == "none" else alone.best(sampler, temperature)
            out += [text[key] for text in run["texts"] if alone.points[i].items() <= text.items()][:1]
        return out

    def nearest(self, temperature: float = 1.0) -> str:
        """The cut whose best value has the least TV on the validation split."""
        cuts = self.settings["cuts"]
        return min(
            cuts, key=lambda c: statistics.fmean(self.values(self.best(c, temperature), "tv", "validation"))
        )

    def nearest_at(self, entropy: float, temperature: float = 1.0) -> str:
        """The cut of least TV on the validation split where it leaves this entropy; "" if none can."""
        tv = {c: self.at_entropy(c, temperature, entropy, "tv", "validation") for c in self.settings["cuts"]}
        return min((c for c in tv if tv[c]), key=lambda c: statistics.fmean(tv[c]), default="")

    def setting(self, point: int, sampler: str) -> str:
        """The sampler's value at a point; - where it is off."""
        c = self.points[point]
        return f"{c[sampler]:g}" if sampler in c else "-"

    def at_entropy(
        self, sampler: str, temperature: float, entropy: float, key: str = "tv", split: str = "test"
    ) -> list[float]:
        """One of NUMBERS where the sampler leaves this entropy, interpolated between its points; [] if a run
        cannot have it."""
        at, out = self.of(sampler, temperature), []
        for run in self.runs:
            pairs = sorted((run[split]["entropy"][i], run[split][key][i]) for i in at)
            h, x = zip(*pairs)
            if not h[0] <= entropy <= h[-1]:
                return []
            out.append(float(np.interp(entropy, h, x)))
        return out

    def entropy(self, split: str = "test") -> float:
        """Of the scored distribution; mean over the runs."""
        return statistics.fmean(self.values(self.uncut(1.0), "entropy", split))


def points_of(rows: list[Row]) -> tuple[dict[str, Points], Points | None]:
    """Those of each training that has numbers, and of the truth."""
    sound = [row for row in rows if "test" in row]
    truth = [row for row in sound if row.get("reference")]
    groups = {name: Points(runs) for name, runs in grouped(sound).items()}
    return groups, Points(truth) if truth else None


# -----------------------------------------------------------------------------
# Views


def best_lines(name: str, g: Points, temperature: float) -> list[list[str]]:
    """No cut, then each sampler at the value that is best for the row."""
    chosen = [("none", g.uncut(temperature))]
    chosen += [(s, g.best(s, temperature)) for s in g.samplers(temperature)]
    return [
        [name, sampler, g.setting(i, sampler), *(mean(g.values(i, key)) for key, _, _ in NUMBERS)]
        for sampler, i in chosen
    ]


def text_lines(name: str, g: Points, temperature: float) -> list[list[str]]:
    """What is written without a cut, and by each sampler at each run's best value."""
    each = {
        sampler: [g.texts(sampler, temperature, key) for key, _, _ in TEXT_NUMBERS]
        for sampler in ("none", *g.samplers(temperature))
    }
    shown = {s: values for s, values in each.items() if s == "none" or values != each["none"]}
    return [[name, sampler, *map(mean, values)] for sampler, values in shown.items() if values[0]]


def level_lines(groups: dict[str, Points], temperatures: list[float], entropy: float) -> list[list[str]]:
    """TV of each cut where it leaves this entropy."""
    after = [(s, t) for t in temperatures for s in VALUES]
    return [
        [f"{sampler} after {t:g}", *(mean(g.at_entropy(sampler, t, entropy)) for g in groups.values())]
        for sampler, t in [("temperature", 1.0), *after]
    ]


def view(rows: list[Row]) -> View:
    """Each row's samplers at their best values, and TV at equal entropy."""
    groups, truth = points_of(rows)
    parts: list[Grid | str | list[str]] = []
    if groups:
        temperatures = rows[0]["settings"]["temperatures"]
        head = ["", "sampler", "value", *(title for _, title, _ in NUMBERS)]
        every = groups | ({"truth": truth} if truth else {})
        for t in temperatures:
            lines = [line for name, g in every.items() for line in best_lines(name, g, t)]
            parts += [f"### After temperature {t:g}", Grid(head, lines, "numbers")]
        text_head = ["", "sampler", *(title for _, title, _ in TEXT_NUMBERS)]
        for t in temperatures:
            lines = [line for name, g in every.items() for line in text_lines(name, g, t)]
            parts += [f"### What is written after temperature {t:g}", Grid(text_head, lines, "numbers")]
        for h, share in [(share * truth.entropy(), share) for share in SHARES] if truth else []:
            parts += [
                f"### TV where {share:.0%} of the truth's entropy is left, {h:.3f} nats",
                Grid(["", *groups], level_lines(groups, temperatures, h), "numbers"),
            ]
    notes = [f"- {title}: {meaning}." for _, title, meaning in NUMBERS + TEXT_NUMBERS]
    return View([*parts, NOTE, notes, problems(rows)])


SHARES = (1.0, 0.9)  # of the truth's entropy, at which samplers are compared
NOTE = (
    "p: the truth; m: the model's distribution at its temperature; q: what the cut leaves. Test split, mean "
    "over the seeds ± half of its 95% interval (Student's t), at positions that are the same for all rows. "
    "The value of each sampler is the one of least TV on the validation split of those "
    "in measures/decoding.py; - where none of them is better there than no cut. What is written is at the "
    "value of least TV of each run alone; a sampler without one that is better than no cut is left out. At "
    "equal entropy the values are interpolated; - where a run cannot have it."
)


def figure(groups: dict[str, Points], truth: Points | None) -> "Figure":
    """A panel a row: TV against entropy over the values of each cut after temperature 1, as far as
    temperatures alone go; mean over the seeds. The line is the truth's entropy."""
    fig, axes = figures.panels(list(groups), 2.2)
    for ax, name in axes:
        g = groups[name]
        for sampler in ("temperature", *VALUES):
            at = sorted((statistics.fmean(g.values(i, "entropy")), i) for i in g.of(sampler, 1.0))
            tv = [statistics.fmean(g.values(i)) for _, i in at]
            alone = {"color": "black", "lw": 1.6} if sampler == "temperature" else {"lw": 0.9}
            ax.plot([h for h, _ in at], tv, label=sampler, **alone)
        if truth:
            ax.axvline(truth.entropy(), color="0.2", lw=0.8, ls=":")
    uncut = [(g, i) for g in groups.values() for i in g.of("temperature", 1.0)]  # panels share their limits
    axes[0][0].set_xlim(left=min(min(g.values(i, "entropy")) for g, i in uncut))
    axes[0][0].set_ylim(top=max(max(g.values(i)) for g, i in uncut))
    axes[-1][0].legend(fontsize=5, frameon=False)
    fig.supxlabel("entropy of what is drawn from, nats; dotted: the truth's")
    fig.supylabel("total variation distance to the truth")
    return fig
