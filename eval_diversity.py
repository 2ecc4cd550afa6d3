"""The comparison table: checkpoints -> perplexity, calibration and diversity, beside human text, unigram noise and a loop.

    python eval_diversity.py out/baseline out/sig_gpt --out results/table
    python eval_diversity.py best=out/baseline last=out/baseline/last other=elsewhere/baseline

A row has its run's name, or the one given before "=".
For models of a corpus whose exact distributions are known (data/grammar) the table also says how well a model recovers them.

Honest protocol (default): perplexity of the sampled distribution on a whole held-out split; text metrics on continuations alone, of held-out
prompts, with a fixed token budget. Human text is the standard: for each column the distance to human is what is marked.
`--protocol paper` scores as the paper did, beside its published numbers: perplexity on training windows, prompts scored along.
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

import argparse
import csv
import io
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from data.grammar.machine import UNKNOWN
from data.held_out import Truth, open_truth
from data.prepared import found_path, tokenizer_of
from data.tokenizers import Tokenizer
from data.tokens import TokenFile, open_tokens
from evaluation import metrics
from evaluation.scoring import (
    EPSILON,
    described,
    document_blocks,
    document_windows,
    recover,
    score,
    truth_blocks,
)
from model import LanguageModel
from runtime.checkpoint import Checkpoint, Degenerate, find, load, load_model, weights_digest
from runtime.configurator import Parser, check_seed, cli
from runtime.configurator import path as path_of
from runtime.device import float64_device, get_device, get_dtype, settle_dtype
from runtime.errors import UserError
from runtime.files import check_writable, foreign, lock_of, locked, read_json, replacing
from runtime.logs import evaluations
from runtime.memory import check_fits
from runtime.names import REFERENCES, check_apart, check_row_name, file_stem
from sample import check_sampling, generate, truncate

# Shamula et al. 2024, table 1: perplexity, Self-BLEU, Distinct-4
PUBLISHED = {
    "baseline": (6.1855, 27.1660, 0.9709),
    "smooth_gpt": (6.6225, 26.6854, 0.9743),
    "smooth_gpt_10": (7.2704, 18.3164, 0.9901),
    "bayes_gpt": (10.0340, 28.3591, 0.9641),
    "sig_gpt": (2134.7043, 18.5969, 0.9907),
    "sig_gpt_as_published": (2134.7043, 18.5969, 0.9907),
    "sig_gpt_sum": (50259.5078, 16.4033, 0.9901),
    "sig_gpt_pw": (2028.1080, 18.2633, 0.9907),
    "bayes_sig_gpt": (2257.3240, 18.5297, 0.9907),
}


class Column(NamedTuple):
    key: str
    title: str
    form: str
    best: str  # "human": a text metric, nearest to human text is best; "low", "high": the lowest, highest is; "": none is
    what: str


HONEST = (
    Column(
        "step",
        "step",
        "d",
        "",
        "training steps of the checkpoint, the one with the best validation NLL (heads with exact zeros: PPL_eps)",
    ),
    Column("ppl_tok", "PPL_tok", ".2f", "low", "exp(NLL / tokens)"),
    Column("ppl_word", "PPL_word", ".2f", "low", "exp(NLL / (words + lines))"),
    Column("bits_per_byte", "bits/byte", ".3f", "low", "NLL / (ln 2 x bytes of the text)"),
    Column("ece", "ECE", ".4f", "low", "expected calibration error of the most probable token, 15 bins"),
    Column(
        "ppl_eps",
        "PPL_eps",
        ".2f",
        "low",
        f"exp(mean of -log((p + {EPSILON:g}) / (1 + {EPSILON:g} V))): perplexity for heads with exact zeros, too",
    ),
    Column("sparsemax_score", "sparsemax score", ".4f", "high", "mean of p_t + (1 - |p|^2) / 2, 0 to 1"),
    Column("self_bleu", "Self-BLEU", ".2f", "human", "mean sacreBLEU of each text against all others, 0-100"),
    Column("distinct_4", "Distinct-4", ".4f", "human", "unique 4-grams / words, all texts pooled"),
    Column("seq_rep_4", "seq-rep-4", ".4f", "human", "1 - unique / all 4-grams of a text, mean"),
    Column("zipf", "Zipf", ".3f", "human", "minus the slope of log frequency over log rank"),
)
NUCLEUS = 0.9  # top_p of the coverage column
TRUTH = (  # see metrics.Recovery
    Column(
        "ppl_floor",
        "PPL/floor",
        ".4f",
        "low",
        "perplexity / perplexity of the truth itself on the same tokens",
    ),
    Column(
        "kl_truth_model",
        "KL(p, m)",
        ".4f",
        "low",
        "KL(truth || model), nats a token; inf where the model rules out a valid token",
    ),
    Column(
        "kl_model_truth",
        "KL(m', p)",
        ".4f",
        "low",
        "KL(m' || truth), m' the model renormalised over the valid tokens (KL(model || truth) itself is inf)",
    ),
    Column("tv", "TV", ".4f", "low", "total variation distance of truth and model"),
    Column("mass_invalid", "invalid", ".4f", "low", "the model's mass on tokens that the grammar forbids"),
    Column(
        "alternatives",
        "alt.",
        ".4f",
        "human",
        "the model's mass on valid tokens other than the observed one / the truth's: below 1, over-penalised",
    ),
    Column(
        "alternatives_error",
        "alt. error",
        ".4f",
        "low",
        "sum over decades of the truth's probability of |model's - truth's mass| on these tokens",
    ),
    Column(
        "coverage",
        f"coverage({NUCLEUS:g})",
        ".4f",
        "human",
        f"the truth's mass on the tokens that sampling with top_p = {NUCLEUS:g} can reach",
    ),
    Column(
        "validity",
        "validity",
        ".4f",
        "human",
        "share of the sampled tokens that the grammar allows; of a document only those up to the first "
        "forbidden one count, and only if its start is in the text",
    ),
)
PAPER = (
    Column(
        "ppl_train",
        "PPL(train)",
        ".2f",
        "low",
        "exp(NLL / tokens) of the distribution that is sampled, on 200 random training windows (the paper scored a softmax over sigmoid logits)",
    ),
    Column("self_bleu", "Self-BLEU", ".2f", "human", "sacreBLEU, prompt included, mean of the loops"),
    Column("self_bleu_sd", "sd", ".2f", "", "standard deviation of Self-BLEU over the loops"),
    Column("distinct_4", "Distinct-4", ".4f", "human", "prompt included, mean of the loops"),
    Column("published_ppl", "publ. PPL", ".2f", "", "as published"),
    Column("published_self_bleu", "publ. Self-BLEU", ".2f", "", "as published"),
    Column("published_distinct_4", "publ. Distinct-4", ".4f", "", "as published"),
)
PLACES = ("data", "source", "out_dir")  # of a run's configuration: of one machine, nobody else's


@dataclass(frozen=True)
class Settings:
    """What two rows must share to stand in one table."""

    protocol: str
    tokenizer: str  # fingerprint
    train: str  # SHA-256 of the training text
    corpus: str  # SHA-256 of the split that is scored
    split: str
    texts: int  # in all
    loops: int  # groups they are scored in; their mean is reported
    prompt_tokens: int
    new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    samples: int  # weight draws of Bayesian rows
    block_size: int  # context of the models
    stride: int  # of the scoring windows
    seed: int
    dtype: str


# -----------------------------------------------------------------------------
# Texts


class Prompts(NamedTuple):
    """(n, prompt) ids, and (n, new) ids of the human continuation of each."""

    prompt: np.ndarray
    human: np.ndarray


def held_out_prompts(ids: np.ndarray, n: int, prompt: int, new: int, seed: int | None = None) -> Prompts:
    """`n` prompts with their continuations out of the token stream: spread evenly, without overlap; at random places with a seed.

    ValueError if the split is too short for them.
    """
    span = prompt + new
    if n * span > len(ids):
        raise UserError(
            f"texts = {n} of {prompt} + {new} tokens need {n * span} tokens, the split has {len(ids)}: ask for fewer or shorter texts"
        )
    places = len(ids) - span + 1
    starts = (
        np.linspace(0, places - 1, n).astype(int)
        if seed is None
        else np.random.default_rng(seed).choice(places, n, replace=False)
    )
    rows = np.stack([ids[s : s + span] for s in starts]).astype(np.int64)
    return Prompts(rows[:, :prompt], rows[:, prompt:])


def sample_texts(
    model: LanguageModel, prompts: np.ndarray, s: Settings, device: torch.device, title: str, batch: int = 50
) -> np.ndarray:
    """(n, new_tokens) ids sampled after each prompt."""
    draws = model.head.draws(s.samples, s.seed, get_dtype(s.dtype))
    generator = torch.Generator(float64_device(device)).manual_seed(s.seed)
    out = []
    with tqdm(
        total=len(prompts) * s.new_tokens, unit="tok", unit_scale=True, desc=f"{title}: sampling", leave=False
    ) as bar:
        for part in np.split(prompts, range(batch, len(prompts), batch)):
            columns = []
            for token, _ in generate(
                model,
                torch.from_numpy(part).to(device),
                s.new_tokens,
                draws,
                s.temperature,
                s.top_k,
                s.top_p,
                generator,
                dtype=s.dtype,
            ):
                columns.append(token)
                bar.update(len(part))
            out.append(torch.stack(columns, 1).cpu().numpy())
    return np.concatenate(out)


def reference_texts(name: str, prompts: Prompts, train: np.ndarray, s: Settings) -> np.ndarray:
    """Continuations that no model wrote: the human ones; tokens drawn from the training unigrams; the human's first 10 tokens again and again."""
    if name == "human":
        return prompts.human
    if name == "unigram noise":
        return np.random.default_rng(s.seed).choice(train, prompts.human.shape).astype(np.int64)
    return np.stack([np.resize(row[:10], s.new_tokens) for row in prompts.human])


def text_metrics(texts: list[str], loops: int) -> dict[str, float]:
    """Diversity of decoded texts, a word being what stands between spaces; each metric is the mean over `loops` groups of the texts."""
    groups = [texts[i::loops] for i in range(loops)]
    words = [[t.split() for t in g] for g in groups]
    bleu = [metrics.self_bleu_sacre(g) for g in groups]
    mean = lambda f: float(np.mean([f(w) for w in words]))
    spread = {"self_bleu_sd": float(np.std(bleu, ddof=1))} if loops > 1 else {}
    return {
        "self_bleu": float(np.mean(bleu)),
        **spread,
        "self_bleu_nltk": mean(metrics.self_bleu),
        "distinct_4": mean(metrics.distinct_n),
        "seq_rep_4": mean(metrics.seq_rep_n),
        "zipf": mean(metrics.zipf_coefficient),
    }


# -----------------------------------------------------------------------------
# Rows


class Entry(NamedTuple):
    """A row that is asked for."""

    name: str
    path: Path  # as given: a run, or a checkpoint
    ckpt: Checkpoint  # without its weights


def entries(arguments: list[str]) -> list[Entry]:
    """Of PATH, under the name of its run, and NAME=PATH. ValueError for a name that no row can have."""
    out = []
    for argument in arguments:
        name, _, path = argument.partition("=")
        if not path or "/" in name or path_of(argument).exists():  # a path with a "=" in it
            name, path = "", argument
        if name:
            check_row_name(name)
        path = path_of(path)
        ckpt = load(find(path), weights=False, run=True)
        out.append(Entry(name or ckpt.config["name"], path, ckpt))
    return out


def renamed(entry: Entry) -> str:
    """What to do where two rows have one name."""
    return f"give one another, as in other={entry.path}"


class Data(NamedTuple):
    train: TokenFile
    split: TokenFile
    tokenizer: Tokenizer
    prompts: Prompts
    truth: Truth | None  # the split's exact distributions, where they are known


def decode(tokenizer: Tokenizer, prompts: np.ndarray, new: np.ndarray, s: Settings) -> list[str]:
    """The texts that are scored: the continuation alone, or behind its prompt in the paper's protocol."""
    rows = np.concatenate((prompts, new), 1) if s.protocol == "paper" else new
    return [tokenizer.decode(r) for r in rows.tolist()]


def recovery(
    data: Data,
    s: Settings,
    model: LanguageModel | None,
    draws: list | None = None,
    device: torch.device | str = "cpu",
    progress=iter,
) -> dict[str, Any]:
    """The columns TRUTH but the validity, and what else metrics.Recovery says; of a perfect model without `model`. {} where the truth is not known."""
    if data.truth is None:
        return {}
    ids = data.split.ids
    plan = document_windows(np.flatnonzero(ids == data.truth.machine.end), s.block_size)
    blocks = (
        document_blocks(model, ids, plan, draws, device, s.dtype, progress=progress)
        if model
        else truth_blocks(data.truth, plan)
    )
    r = recover(blocks, ids, data.truth, lambda log_p: truncate(log_p, top_p=NUCLEUS) > 0)
    return described(r)


def validity(data: Data, new: np.ndarray) -> dict[str, float]:
    """The column of that name for the sampled ids (n, new) after the prompts; nan if no document starts in the texts. {} where the truth is not known."""
    if data.truth is None:
        return {}
    machine, prompts = data.truth.machine, data.prompts.prompt
    states = machine.parse(np.concatenate((prompts, new), 1), UNKNOWN)[:, prompts.shape[1] :]
    judged = states != UNKNOWN
    return {
        "validity": float(machine.allows(states[judged], new[judged]).mean()) if judged.any() else math.nan,
        "judged_tokens": int(judged.sum()),
    }


def public(config: dict[str, Any]) -> dict[str, Any]:
    """A run's configuration without the places of one machine: what a row says of its training."""
    return {k: v for k, v in config.items() if k not in PLACES}


def model_row(
    path: Path, digest: str, data: Data, s: Settings, device: torch.device, name: str = ""
) -> tuple[dict[str, Any], list[str] | None]:
    """The row of one checkpoint, whose weights have the SHA-256 `digest`, and its texts. Of a degenerate model "problem" says what is wrong with it,
    and the numbers are not there that it has none of."""
    ckpt = load(find(path), weights=False)
    row = {
        "name": name or ckpt.config["name"],
        "checkpoint": str(path),
        "weights_sha256": digest,
        "step": ckpt.progress["step"],
        "command": " ".join(sys.argv),
        "commit": commit(),
        "versions": versions(),
        "training": public(ckpt.config),
        "curve": evaluations(ckpt.path.parent),
    }
    texts = None
    try:
        numbers, new = model_numbers(path, row["name"], data, s, device)
        row |= numbers
        texts = decode(data.tokenizer, data.prompts.prompt, new, s)
        row |= validity(data, new) | measured(texts, s.loops)
    except Degenerate as e:
        row["problem"] = e.what
    return row, texts


def measured(texts: list[str], loops: int) -> dict[str, float]:
    """text_metrics of a model's texts; Degenerate where there is nothing to measure."""
    if not any(text.split() for text in texts):
        raise Degenerate("its texts are white space alone")
    try:
        return text_metrics(texts, loops)
    except ValueError as e:
        raise Degenerate(f"its texts cannot be measured, {e}") from None


def model_numbers(
    path: Path, name: str, data: Data, s: Settings, device: torch.device
) -> tuple[dict[str, Any], np.ndarray]:
    """The columns that need the model of one checkpoint, and what was sampled from it (n, new_tokens).

    Degenerate if its probabilities are not numbers.
    """
    model, ckpt = load_model(path, device=device, dtype=get_dtype(s.dtype))
    block = model.trunk.config.block_size
    draws = model.head.draws(s.samples, s.seed)
    bar = lambda it: tqdm(it, desc=f"{name}: scoring", leave=False)
    row: dict[str, Any] = {}
    if s.protocol == "paper":
        seen = held_out_prompts(
            data.train.ids, min(200, len(data.train.ids) // (block + 1)), 1, block, seed=s.seed
        )
        parts = [
            score(model, np.concatenate((p, h)), block, draws, device, s.dtype)
            for p, h in bar(list(zip(seen.prompt, seen.human)))
        ]
        nll = sum(p.nll for p in parts)
        if math.isnan(nll):
            raise Degenerate("its log-probabilities are not numbers")
        row["ppl_train"] = metrics.perplexity(nll, sum(p.count for p in parts))
        published = PUBLISHED.get(ckpt.config["name"].split("-")[0], (math.nan,) * 3)
        row |= dict(zip(("published_ppl", "published_self_bleu", "published_distinct_4"), published))
    else:
        r, info = (
            score(model, data.split.ids, s.stride, draws, device, s.dtype, details=True, progress=bar),
            data.split.info,
        )
        row |= {
            "ppl_tok": metrics.perplexity(r.nll, r.count),
            "ppl_word": metrics.perplexity(r.nll, info["words"] + info["lines"]),
            "bits_per_byte": metrics.bits_per_byte(r.nll, info["bytes"]),
            "ece": r.ece,
            "ppl_eps": metrics.perplexity(r.eps_nll, r.count),
            "sparsemax_score": r.sparsemax,
            "nll": r.nll,
            "tokens": r.count,
            "zero_probability_tokens": r.zeros,
        }
        row |= recovery(data, s, model, draws, device, bar)
    return row, sample_texts(model, data.prompts.prompt, s, device, name)


def reference_row(name: str, data: Data, s: Settings) -> tuple[dict[str, Any], list[str]]:
    new = reference_texts(name, data.prompts, data.train.ids, s)
    texts = decode(data.tokenizer, data.prompts.prompt, new, s)
    perfect = recovery(data, s, None) if name == "human" else {}
    return {
        "name": name,
        "reference": True,
        **text_metrics(texts, s.loops),
        **validity(data, new),
        **perfect,
    }, texts


# -----------------------------------------------------------------------------
# The table


def cells(rows: list[dict[str, Any]], columns: tuple[Column, ...]) -> list[list[str]]:
    """The table's cells.

    A text metric shows its distance to human; the best model row of a column has a star: see Column.best. A
    row with a problem says so.
    """
    human = next((r for r in rows if r["name"] == "human"), {})
    distance = lambda r, c: (
        abs(r[c.key] - human[c.key]) if c.best == "human" else -r[c.key] if c.best == "high" else r[c.key]
    )
    models = [r for r in rows if not r.get("reference")]
    best = {
        c.key: min((distance(r, c) for r in models if math.isfinite(r.get(c.key, math.nan))), default=None)
        for c in columns
        if c.best
    }
    out = []
    for r in rows:
        line = [r["name"] + (f" ({r['problem']})" if "problem" in r else "")]
        for c in columns:
            v = r.get(c.key, math.nan)
            cell = format(v, c.form) if math.isfinite(v) else "-" if math.isnan(v) else "inf"
            if c.best == "human" and r is not human and not math.isnan(v):
                cell += f" ({format(v - human[c.key], '+' + c.form)})"
            if not r.get("reference") and math.isfinite(v) and c.best and distance(r, c) == best[c.key]:
                cell += " *"
            line.append(cell)
        out.append(line)
    return out


def as_text(header: list[str], body: list[list[str]], markdown: bool) -> str:
    """Aligned columns; as Markdown with bars."""
    width = [max(len(line[i]) for line in [header, *body]) for i in range(len(header))]
    pad = lambda line: [line[0].ljust(width[0])] + [cell.rjust(w) for cell, w in zip(line[1:], width[1:])]
    if markdown:
        rule = ["-" * width[0]] + ["-" * (w - 1) + ":" for w in width[1:]]
        return "\n".join("| " + " | ".join(line) + " |" for line in [pad(header), rule, *map(pad, body)])
    return "\n".join("  ".join(line) for line in [pad(header), ["-" * w for w in width], *map(pad, body)])


def explain(s: Settings, columns: tuple[Column, ...], data: Data) -> list[str]:
    """The lines under the table: its settings and what the columns are."""
    complete = " (not the whole official split)" if data.split.info["complete"] is False else ""
    budget = f"{s.texts} texts" + (f" in {s.loops} loops" if s.loops > 1 else "")
    return [
        f"Protocol {s.protocol}: {s.split} split{complete}, tokenizer {data.tokenizer.name}; {budget}, {s.prompt_tokens} prompt + {s.new_tokens} new tokens, "
        f"temperature {s.temperature:g}, top_k {s.top_k}, top_p {s.top_p:g}, seed {s.seed}; block {s.block_size}, stride {s.stride}; Bayesian rows: {s.samples} weight samples; {s.dtype}.",
        "(+x) is the distance to human text; * is nearest to human, for PPL, bits/byte and ECE the lowest, for the sparsemax score the highest. Up or down alone is not better.",
        *(f"{c.title}: {c.what}." for c in columns),
        *([known_truth(data.truth)] if data.truth else []),
    ]


def known_truth(truth: Truth) -> str:
    """The line about the columns TRUTH."""
    i = truth.info
    return (
        f"The truth p is known exactly: {i['entropy_rate']:.4f} nats a token in closed form (perplexity {math.exp(i['entropy_rate']):.2f}), "
        f"{i['entropy']:.4f} over this split. "
        "PPL/floor to coverage are means over every token but those of the first document, each scored with its whole document in the model's window (coverage at one of eight of them); "
        "the human row is a perfect model there."
    )


def samples_file(out: Path, name: str) -> Path:
    return out.with_name(out.name + ".samples") / f"{file_stem(name)}.jsonl"


def write_files(
    out: Path,
    s: Settings,
    rows: list[dict[str, Any]],
    texts: dict[str, list[str]],
    columns: tuple[Column, ...],
    notes: list[str],
) -> None:
    """The samples, one JSON string a line, in the folder out.samples; then out.md, .csv and .json. Each whole or not at all, the JSON last."""
    samples_file(out, "").parent.mkdir(parents=True, exist_ok=True)
    header = ["", *(c.title for c in columns)]
    keys = [c.key for c in columns]
    sheet = [["name", *keys], *([r["name"], *(r.get(k, "") for k in keys)] for r in rows)]
    # JSON has no nan and no inf: as strings
    strict = [
        {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in r.items()}
        for r in rows
    ]
    content = {
        **{
            samples_file(out, name): "".join(json.dumps(t, ensure_ascii=False) + "\n" for t in list_)
            for name, list_ in texts.items()
        },
        out.with_name(out.name + ".md"): as_text(header, cells(rows, columns), True)
        + "\n\n"
        + "\n".join(notes[:2])
        + "\n\n"
        + "\n".join("- " + n for n in notes[2:])
        + "\n",
        out.with_name(out.name + ".csv"): csv_text(sheet),
        out.with_name(out.name + ".json"): json_table({"settings": vars(s)}, strict),
    }
    for path, text in content.items():
        with replacing(path) as f:
            f.write(text.encode())


def csv_text(rows: list[list[Any]]) -> str:
    """CSV of `rows`. Text that a spreadsheet would run as a formula gets a ' in front; numbers stay as they
    are."""
    text = io.StringIO()
    safe = lambda v: "'" + v if isinstance(v, str) and v.startswith(("=", "+", "-", "@", "\t", "\r")) else v
    csv.writer(text, lineterminator="\n").writerows([safe(v) for v in row] for row in rows)
    return text.getvalue()


def json_table(head: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """JSON of {**head, "rows": rows}, a line a row: what a changed row changes."""
    start = "".join(f"{json.dumps(k)}: {json.dumps(v, allow_nan=False)},\n" for k, v in head.items())
    return "{" + start + '"rows": [\n' + ",\n".join(json.dumps(r, allow_nan=False) for r in rows) + "\n]}\n"


def commit() -> str:
    """The repository's commit, "+" behind it if files other than results/ have changed since; "" where there is none."""
    git = lambda *a: subprocess.run(["git", *a], cwd=Path(__file__).parent, capture_output=True, text=True)
    head = git("rev-parse", "HEAD")
    return (
        ""
        if head.returncode
        else head.stdout.strip()
        + (
            "+"
            if git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/results").stdout
            else ""
        )
    )


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "python": sys.version.split()[0],
        **{p: version(p) for p in ("torch", "numpy", "sacrebleu", "tokenizers", "tiktoken")},
    }


def kept_rows(out: Path | None, s: Settings) -> dict[str, dict[str, Any]]:
    """Rows of an earlier table of this name, whose samples are there too. ValueError if it had other settings: such rows cannot stand side by side."""
    path = out and out.with_name(out.name + ".json")
    if not path or not path.is_file():
        return {}
    with foreign(path, "a table of this program: give another --out, or move it away"):
        table = read_json(path, strict=True)
        had, rows = dict(table["settings"]), {r["name"]: number_strings(r) for r in table["rows"]}
        for name, r in rows.items():
            if name not in REFERENCES:
                check_row_name(name)  # a file of its name is written
            keys = [c.key for c in (*HONEST, *TRUTH, *PAPER)]
            odd = [k for k in keys if not isinstance(r.get(k, 0.0), (int, float))]
            if odd:
                raise TypeError(f"{odd[0]} of {name} is no number")
    odd = [f"{k} {had.get(k)!r}, now {v!r}" for k, v in vars(s).items() if had.get(k) != v]
    if odd:
        raise UserError(
            f"{path} holds rows of other settings ({'; '.join(odd)}): they cannot stand in one table; use those settings or another --out"
        )
    return {
        name: r
        for name, r in rows.items()
        if not r.get("reference")
        and "training" in r
        and (samples_file(out, name).is_file() or "problem" in r)
    }  # not an older version's


def update(
    out: Path,
    s: Settings,
    rows: dict[str, dict[str, Any]],
    references: list[dict[str, Any]],
    texts: dict[str, list[str]],
    columns: tuple[Column, ...],
    notes: list[str],
) -> list[dict[str, Any]]:
    """Writes the table with `rows` in it, before those that it holds: another process may have added some
    since it was read. All its rows.
    """
    with locked(lock_of(out)):
        table = [
            *(rows | {n: r for n, r in kept_rows(out, s).items() if n not in rows}).values(),
            *references,
        ]
        write_files(out, s, table, texts, columns, notes)
    return table


def unchanged(row: dict[str, Any] | None, ckpt: Checkpoint, digest: str) -> bool:
    """Whether `row` is this checkpoint's: the same weights, by their hash, and the same configuration."""
    return (
        row is not None
        and row.get("weights_sha256") == digest
        and row["training"] == json.loads(json.dumps(public(ckpt.config)))
    )


def number_strings(row: dict[str, Any]) -> dict[str, Any]:
    """`row` as it was before it became JSON, which has no inf and no nan."""
    return {k: float(v) if v in ("inf", "nan") else v for k, v in row.items()}


def parser() -> Parser:
    p = shared_parser(__doc__)
    p.add_argument("--protocol", choices=("honest", "paper"), default="honest")
    p.add_argument("--temperature", type=float, help="default 1; paper: 0.8")
    p.add_argument(
        "--stride", type=int, default=0, help="of the scoring windows (default min(512, block_size))"
    )
    p.add_argument(
        "--out",
        type=path_of,
        help="writes OUT.md, OUT.csv, OUT.json and OUT.samples/; rows of "
        "unchanged checkpoints in it are kept",
    )
    return p


def shared_parser(doc: str) -> Parser:
    """The arguments that frontier.py takes, too."""
    p = Parser(doc)
    p.add_argument(
        "checkpoints",
        nargs="+",
        metavar="[NAME=]RUN",
        help="out folders of training runs, or single checkpoints in them, and the names of their rows",
    )
    p.add_argument(
        "--split",
        choices=("validation", "test"),
        default="test",
        help="the held-out split of the honest protocol (the paper's uses train)",
    )
    p.add_argument(
        "--data",
        type=path_of,
        help="the prepared data folder (default: the one the first checkpoint was trained on)",
    )
    p.add_argument("--texts", type=int, help="texts of each row (default 100; paper: 10 loops of 10)")
    p.add_argument("--prompt_tokens", type=int, help="default 50; paper: the block")
    p.add_argument("--new_tokens", type=int, help="default 200; paper: 500")
    p.add_argument("--top_k", type=int, help="default 0, all; paper: 200")
    p.add_argument("--top_p", type=float, default=1.0)
    p.add_argument("--samples", type=int, default=8, help="weight draws of Bayesian rows")
    p.add_argument("--seed", type=int, default=1337)
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    p.add_argument(
        "--dtype",
        default="float32",
        help="of matrix products: float32, bfloat16, float16; auto: bfloat16 if the device has it",
    )
    return p


def prepare(args: argparse.Namespace) -> tuple[Settings, Data, torch.device]:
    """Everything that can be wrong is found here, before any work."""
    device = get_device(args.device)
    args.dtype = settle_dtype(args.dtype, device).name
    asked = entries(args.checkpoints)
    ckpts = [e.ckpt for e in asked]
    configs = [c.config for c in ckpts]
    first, paper = configs[0], args.protocol == "paper"
    for path, c in zip(args.checkpoints, configs):
        if (c["tokenizer_fingerprint"], c["data_sha256"]) != (
            first["tokenizer_fingerprint"],
            first["data_sha256"],
        ):
            raise UserError(
                f"{path} ({c['dataset']}, {c['tokenizer']}) and {args.checkpoints[0]} ({first['dataset']}, {first['tokenizer']}) were trained on different token files: "
                f"their rows cannot stand in one table"
            )
        if c["block_size"] != first["block_size"]:
            raise UserError(
                f"{path} has block_size = {c['block_size']}, {args.checkpoints[0]} has {first['block_size']}: contexts of different length cannot stand in one table"
            )
        if c["bayesian"]:
            drawn = 4 * args.samples * c["vocab_size"] * c["n_embd"]
            check_fits(drawn, device, f"{args.samples} draws of the weights of {path}", "samples")
    check_apart([*REFERENCES, *(e.name for e in asked)], renamed(asked[-1]))
    folder = args.data or found_path(first["data"], asked[0].path)
    train, split = (
        open_tokens(folder / "train.bin"),
        open_tokens(folder / ("train.bin" if paper else f"{args.split}.bin")),
    )
    tokenizer = tokenizer_of(ckpts[0])
    if split.info["fingerprint"] != tokenizer.fingerprint:
        raise UserError(
            f"{split.path} was made with another tokenizer ({split.info['tokenizer']}) than the checkpoints' ({tokenizer.name})"
        )
    if paper and train.info["sha256"] != first["data_sha256"]:
        raise UserError(
            f"{train.path} is not what {args.checkpoints[0]} was trained on, and the paper's protocol scores training text: leave out --data"
        )
    s = settings(args, first["block_size"], tokenizer.fingerprint, train.info["sha256"], split.info["sha256"])
    if args.out:
        for path in (args.out.with_name(args.out.name + ".json"), samples_file(args.out, "human")):
            check_writable(path)
    prompts = held_out_prompts(split.ids, s.texts, s.prompt_tokens, s.new_tokens, s.seed if paper else None)
    return s, Data(train, split, tokenizer, prompts, None if paper else open_truth(split)), device


def settings(
    args: argparse.Namespace, block: int, tokenizer: str = "", train: str = "", corpus: str = ""
) -> Settings:
    """What `args` ask for of models of this block_size. ValueError naming the setting that cannot work."""
    paper = args.protocol == "paper"
    choose = lambda given, honest, paper_: given if given is not None else paper_ if paper else honest
    s = Settings(
        args.protocol,
        tokenizer,
        train,
        corpus,
        "train" if paper else args.split,
        choose(args.texts, 100, 100),
        10 if paper else 1,
        choose(args.prompt_tokens, 50, block),
        choose(args.new_tokens, 200, 500),
        choose(args.temperature, 1.0, 0.8),
        choose(args.top_k, 0, 200),
        args.top_p,
        args.samples,
        block,
        args.stride or min(512, block),
        args.seed,
        args.dtype,
    )
    check_settings(s)
    return s


def check_settings(s: Settings) -> None:
    """ValueError naming the setting that cannot work."""
    check_sampling(s.temperature, s.top_k, s.top_p)
    check_seed(s.seed)
    if min(s.texts // s.loops // 2, s.prompt_tokens, s.new_tokens, s.samples) < 1:
        raise UserError(
            f"texts = {s.texts}, prompt_tokens = {s.prompt_tokens}, new_tokens = {s.new_tokens}, samples = {s.samples}: at least 2 texts a loop, and 1 of the others"
        )
    needs = (
        s.prompt_tokens if s.protocol == "paper" else s.prompt_tokens + s.new_tokens
    )  # the paper's texts go on beyond the block
    if needs > s.block_size:
        raise UserError(
            f"{'prompt_tokens' if s.protocol == 'paper' else 'prompt_tokens + new_tokens'} = {needs} do not fit block_size = {s.block_size}: ask for shorter texts"
        )
    if not 1 <= s.stride <= s.block_size:
        raise UserError(f"stride = {s.stride}: must lie between 1 and block_size = {s.block_size}")


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    s, data, device = prepare(args)
    columns = PAPER if s.protocol == "paper" else HONEST + (TRUTH if data.truth else ())
    kept, notes = kept_rows(args.out, s), explain(s, columns, data)
    asked = entries(args.checkpoints)
    added = [e for e in asked if e.name not in kept]
    if added:
        check_apart([*REFERENCES, *kept, *(e.name for e in added)], renamed(added[-1]))
    references, texts, rows = [], {}, {}
    for name in REFERENCES:
        row, texts[name] = reference_row(name, data, s)
        references.append(row)
    # before any model: its settings now stand there
    table = update(args.out, s, rows, references, texts, columns, notes) if args.out else []
    for name, path, ckpt in asked:
        digest = weights_digest(ckpt.path)
        if unchanged(kept.get(name), ckpt, digest):
            print(f"{name}: kept from {args.out}.json", file=sys.stderr)
            rows[name], new = kept[name], {}
        else:
            rows[name], sampled = model_row(path, digest, data, s, device, name)
            new = {name: sampled} if sampled else {}
        # after each row: a run that is stopped goes on from here
        table = (
            update(args.out, s, rows, references, new, columns, notes)
            if args.out
            else [*rows.values(), *references]
        )
    print(as_text(["", *(c.title for c in columns)], cells(table, columns), False), "", *notes, sep="\n")
    return said_problems(rows)


def said_problems(rows: dict[str, dict[str, Any]]) -> int:
    """The exit code: 1, with a line that names them, if some models could not be evaluated."""
    bad = [f"{name} ({r['problem']})" for name, r in rows.items() if "problem" in r]
    if bad:
        print(f"{len(bad)} of {len(rows)} models could not be evaluated: {'; '.join(bad)}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    cli(main)()
