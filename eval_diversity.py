"""The comparison table: checkpoints -> perplexity, calibration and diversity, beside human text, unigram noise and a loop.

    python eval_diversity.py out/baseline out/sig_gpt --out results/table

Honest protocol (default): perplexity of the sampled distribution on a whole held-out split; text metrics on continuations alone, of held-out
prompts, with a fixed token budget. Human text is the standard: for each column the distance to human is what is marked.
`--protocol paper` scores as the paper did, beside its published numbers: perplexity on training windows, prompts scored along.
"""

import argparse
import csv
import hashlib
import io
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

import metrics
from checkpoint import Checkpoint, Model, find, load, load_model, tokenizer_of
from configurator import cli
from data.tokens import TokenFile, Tokenizer, open_tokens
from sample import check_sampling, generate
from scoring import autocast, score, windows

# Shamula et al. 2024, table 1: perplexity, Self-BLEU, Distinct-4
PUBLISHED = {
    "baseline": (6.1855, 27.1660, 0.9709), "smooth_gpt": (6.6225, 26.6854, 0.9743), "smooth_gpt_10": (7.2704, 18.3164, 0.9901),
    "bayes_gpt": (10.0340, 28.3591, 0.9641), "sig_gpt": (2134.7043, 18.5969, 0.9907), "sig_gpt_as_published": (2134.7043, 18.5969, 0.9907),
    "sig_gpt_sum": (50259.5078, 16.4033, 0.9901), "sig_gpt_pw": (2028.1080, 18.2633, 0.9907), "bayes_sig_gpt": (2257.3240, 18.5297, 0.9907),
}


class Column(NamedTuple):
    key: str
    title: str
    form: str
    text: bool  # a text metric: human text has a value, and the distance to it is what counts
    what: str


HONEST = (
    Column("ppl_tok", "PPL_tok", ".2f", False, "exp(NLL / tokens)"),
    Column("ppl_word", "PPL_word", ".2f", False, "exp(NLL / (words + lines))"),
    Column("bits_per_byte", "bits/byte", ".3f", False, "NLL / (ln 2 x bytes of the text)"),
    Column("ece", "ECE", ".4f", False, "expected calibration error of the most probable token, 15 bins"),
    Column("self_bleu", "Self-BLEU", ".2f", True, "mean sacreBLEU of each text against all others, 0-100"),
    Column("distinct_4", "Distinct-4", ".4f", True, "unique 4-grams / words, all texts pooled"),
    Column("seq_rep_4", "seq-rep-4", ".4f", True, "1 - unique / all 4-grams of a text, mean"),
    Column("zipf", "Zipf", ".3f", True, "minus the slope of log frequency over log rank"),
)
PAPER = (
    Column("ppl_train", "PPL(train)", ".2f", False, "exp(NLL / tokens) on training windows"),
    Column("self_bleu", "Self-BLEU", ".2f", True, "sacreBLEU, prompt included, mean of the loops"),
    Column("self_bleu_sd", "sd", ".2f", False, "standard deviation of Self-BLEU over the loops"),
    Column("distinct_4", "Distinct-4", ".4f", True, "prompt included, mean of the loops"),
    Column("published_ppl", "publ. PPL", ".2f", False, "as published"),
    Column("published_self_bleu", "publ. Self-BLEU", ".2f", False, "as published"),
    Column("published_distinct_4", "publ. Distinct-4", ".4f", False, "as published"),
)
REFERENCES = ("human", "unigram noise", "loop")


@dataclass(frozen=True)
class Settings:
    """What two rows must share to stand in one table."""
    protocol: str
    tokenizer: str        # fingerprint
    corpus: str           # SHA-256 of the split that is scored
    split: str
    texts: int            # in all
    loops: int            # groups they are scored in; their mean is reported
    prompt_tokens: int
    new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    samples: int          # weight draws of Bayesian rows
    stride: int           # 0: min(512, block_size)
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
        raise ValueError(f"texts = {n} of {prompt} + {new} tokens need {n * span} tokens, the split has {len(ids)}: ask for fewer or shorter texts")
    places = len(ids) - span + 1
    starts = np.linspace(0, places - 1, n).astype(int) if seed is None else np.random.default_rng(seed).choice(places, n, replace=False)
    rows = np.stack([ids[s:s + span] for s in starts]).astype(np.int64)
    return Prompts(rows[:, :prompt], rows[:, prompt:])


def sample_texts(model: Model, prompts: np.ndarray, s: Settings, device: str, title: str, batch: int = 50) -> np.ndarray:
    """(n, new_tokens) ids sampled after each prompt."""
    draws = model.head.draws(s.samples, s.seed, torch.bfloat16 if s.dtype == "bfloat16" else torch.float32)
    generator = torch.Generator(device).manual_seed(s.seed)
    out = []
    with tqdm(total=len(prompts) * s.new_tokens, unit="tok", unit_scale=True, desc=f"{title}: sampling", leave=False) as bar:
        for part in np.split(prompts, range(batch, len(prompts), batch)):
            columns = []
            for token, _ in generate(model, torch.from_numpy(part).to(device), s.new_tokens, draws, s.temperature, s.top_k, s.top_p, generator, dtype=s.dtype):
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
    return {"self_bleu": float(np.mean(bleu)), **spread, "self_bleu_nltk": mean(metrics.self_bleu),
            "distinct_4": mean(metrics.distinct_n), "seq_rep_4": mean(metrics.seq_rep_n), "zipf": mean(metrics.zipf_coefficient)}


# -----------------------------------------------------------------------------
# Rows

class Data(NamedTuple):
    train: TokenFile
    split: TokenFile
    tokenizer: Tokenizer
    prompts: Prompts


def decode(tokenizer: Tokenizer, prompts: np.ndarray, new: np.ndarray, s: Settings) -> list[str]:
    """The texts that are scored: the continuation alone, or behind its prompt in the paper's protocol."""
    rows = np.concatenate((prompts, new), 1) if s.protocol == "paper" else new
    return [tokenizer.decode(r) for r in rows.tolist()]


def model_row(path: Path, data: Data, s: Settings, device: str) -> tuple[dict[str, Any], list[str]]:
    """The row of one checkpoint and its texts."""
    model, ckpt = load_model(path, device=device)
    name = ckpt.config["name"]
    block = model.trunk.config.block_size
    draws = model.head.draws(s.samples, s.seed)
    bar = lambda it: tqdm(it, desc=f"{name}: scoring", leave=False)
    row: dict[str, Any] = {"name": name, "checkpoint": str(path), "weights_sha256": sha256(ckpt), "step": ckpt.progress["step"]}
    if s.protocol == "paper":
        seen = held_out_prompts(data.train.ids, min(200, len(data.train.ids) // (block + 1)), 1, block, seed=s.seed)
        parts = [score(model, np.concatenate((p, h)), block, draws, device, s.dtype) for p, h in bar(list(zip(seen.prompt, seen.human)))]
        row["ppl_train"] = metrics.perplexity(sum(p.nll for p in parts), sum(p.count for p in parts))
        published = PUBLISHED.get(name.split("-")[0], (math.nan,) * 3)
        row |= dict(zip(("published_ppl", "published_self_bleu", "published_distinct_4"), published))
    else:
        r, info = score(model, data.split.ids, s.stride, draws, device, s.dtype, calibration=True, progress=bar), data.split.info
        row |= {"ppl_tok": metrics.perplexity(r.nll, r.count), "ppl_word": metrics.perplexity(r.nll, info["words"] + info["lines"]),
                "bits_per_byte": metrics.bits_per_byte(r.nll, info["bytes"]), "ece": r.ece, "nll": r.nll, "tokens": r.count, "zero_probability_tokens": r.zeros}
    texts = decode(data.tokenizer, data.prompts.prompt, sample_texts(model, data.prompts.prompt, s, device, name), s)
    return row | text_metrics(texts, s.loops), texts


def reference_row(name: str, data: Data, s: Settings) -> tuple[dict[str, Any], list[str]]:
    texts = decode(data.tokenizer, data.prompts.prompt, reference_texts(name, data.prompts, data.train.ids, s), s)
    return {"name": name, "reference": True, **text_metrics(texts, s.loops)}, texts


def sha256(ckpt: Checkpoint) -> str:
    return hashlib.sha256((ckpt.path / "model.safetensors").read_bytes()).hexdigest()


# -----------------------------------------------------------------------------
# The table

def cells(rows: list[dict[str, Any]], columns: tuple[Column, ...]) -> list[list[str]]:
    """The table's cells. A text metric shows its distance to human; the model row nearest to human in a column has a star, and so has the lowest PPL."""
    human = next((r for r in rows if r["name"] == "human"), {})
    distance = lambda r, c: abs(r[c.key] - human[c.key]) if c.text else r[c.key]
    best = {}
    for c in columns:
        have = [r for r in rows if not r.get("reference") and math.isfinite(r.get(c.key, math.nan))]
        if have and not c.key.startswith(("published", "self_bleu_sd")):
            best[c.key] = min(distance(r, c) for r in have)
    out = []
    for r in rows:
        line = [r["name"]]
        for c in columns:
            v = r.get(c.key, math.nan)
            cell = "-" if math.isnan(v) else "inf" if math.isinf(v) else format(v, c.form)
            if c.text and human and not math.isnan(v) and r is not human:
                cell += f" ({format(v - human[c.key], '+' + c.form)})"
            if not r.get("reference") and c.key in best and math.isfinite(v) and distance(r, c) == best[c.key]:
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
    return [f"Protocol {s.protocol}: {s.split} split{complete}, tokenizer {data.tokenizer.name}; {budget}, {s.prompt_tokens} prompt + {s.new_tokens} new tokens, "
            f"temperature {s.temperature:g}, top_k {s.top_k}, top_p {s.top_p:g}, seed {s.seed}; Bayesian rows: {s.samples} weight samples; {s.dtype}.",
            "(+x) is the distance to human text; * is nearest to human, for PPL, bits/byte and ECE the lowest. Up or down alone is not better.",
            *(f"{c.title}: {c.what}." for c in columns)]


def write_files(out: Path, s: Settings, rows: list[dict[str, Any]], texts: dict[str, list[str]], columns: tuple[Column, ...], notes: list[str]) -> None:
    """out.json, .md, .csv and the samples, one JSON string a line, in the folder out.samples; each whole or not at all."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.with_name(out.name + ".samples")
    folder.mkdir(exist_ok=True)
    header, table = ["", *(c.title for c in columns)], io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([["name", *(c.key for c in columns)], *([r["name"], *(r.get(c.key, "") for c in columns)] for r in rows)])
    # JSON has no nan and no inf: as strings
    strict = [{k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in r.items()} for r in rows]
    content = {out.with_name(out.name + ".json"): json.dumps({"settings": vars(s), "command": " ".join(sys.argv), "versions": versions(), "rows": strict}, indent=1, allow_nan=False) + "\n",
               out.with_name(out.name + ".md"): as_text(header, cells(rows, columns), True) + "\n\n" + "\n".join(notes[:2]) + "\n\n" + "\n".join("- " + n for n in notes[2:]) + "\n",
               out.with_name(out.name + ".csv"): table.getvalue(),
               **{folder / f"{name.replace(' ', '_')}.jsonl": "".join(json.dumps(t, ensure_ascii=False) + "\n" for t in list_) for name, list_ in texts.items()}}
    for path, text in content.items():
        aside = path.with_name(path.name + ".new")
        aside.write_text(text, encoding="utf-8")
        aside.replace(path)


def versions() -> dict[str, str]:
    from importlib.metadata import version
    return {"python": sys.version.split()[0], **{p: version(p) for p in ("torch", "numpy", "sacrebleu", "tokenizers", "tiktoken")}}


def kept_rows(out: Path | None, s: Settings) -> list[dict[str, Any]]:
    """Rows of an earlier table of this name. ValueError if it had other settings: such rows cannot stand side by side."""
    path = out and out.with_name(out.name + ".json")
    if not path or not path.is_file():
        return []
    table = json.loads(path.read_text(encoding="utf-8"))
    odd = [f"{k} {table['settings'].get(k)!r}, now {v!r}" for k, v in vars(s).items() if table["settings"].get(k) != v]
    if odd:
        raise ValueError(f"{path} holds rows of other settings ({'; '.join(odd)}): they cannot stand in one table; use those settings or another --out")
    return [{k: float(v) if v in ("inf", "nan") else v for k, v in row.items()} for row in table["rows"]]


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("checkpoints", nargs="+", help="out folders of training runs")
    p.add_argument("--protocol", choices=("honest", "paper"), default="honest")
    p.add_argument("--split", choices=("validation", "test"), default="test", help="the held-out split of the honest protocol (the paper's uses train)")
    p.add_argument("--data", help="the prepared data folder (default: the one the first checkpoint was trained on)")
    p.add_argument("--texts", type=int, help="texts of each row (default 100; paper: 10 loops of 10)")
    p.add_argument("--prompt_tokens", type=int, help="default 50; paper: the block")
    p.add_argument("--new_tokens", type=int, help="default 200; paper: 500")
    p.add_argument("--temperature", type=float, help="default 1; paper: 0.8")
    p.add_argument("--top_k", type=int, help="default 0, all; paper: 200")
    p.add_argument("--top_p", type=float, default=1.0)
    p.add_argument("--samples", type=int, default=8, help="weight draws of Bayesian rows")
    p.add_argument("--stride", type=int, default=0, help="of the scoring windows (default min(512, block_size))")
    p.add_argument("--seed", type=int, default=1337)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--dtype", default="float32", help="float32 or bfloat16, of matrix products")
    p.add_argument("--out", type=Path, help="writes OUT.md, OUT.csv, OUT.json and OUT.samples/; rows of unchanged checkpoints in it are kept")
    return p


def prepare(args: argparse.Namespace) -> tuple[Settings, Data]:
    """Everything that can be wrong is found here, before any work."""
    configs = [load(find(c)).config for c in args.checkpoints]
    first = configs[0]
    for path, c in zip(args.checkpoints, configs):
        if c["tokenizer_fingerprint"] != first["tokenizer_fingerprint"] or c["data_sha256"] != first["data_sha256"]:
            raise ValueError(f"{path} ({c['dataset']}, {c['tokenizer']}) and {args.checkpoints[0]} ({first['dataset']}, {first['tokenizer']}) were trained on different token files: "
                             f"their rows cannot stand in one table")
    names = [c["name"] for c in configs]
    if taken := set(names) & set(REFERENCES):
        raise ValueError(f"a run has the name of the reference row {taken.pop()!r}: give it another --name")
    if len(set(names)) < len(names):
        raise ValueError(f"two checkpoints have the name {max(names, key=names.count)!r}: give each run its own --name")
    folder, paper = Path(args.data or first["data"]), args.protocol == "paper"
    train, split = open_tokens(folder / "train.bin"), open_tokens(folder / ("train.bin" if paper else f"{args.split}.bin"))
    tokenizer = tokenizer_of(load(find(args.checkpoints[0])))
    if split.info["fingerprint"] != tokenizer.fingerprint:
        raise ValueError(f"{split.path} was made with another tokenizer ({split.info['tokenizer']}) than the checkpoints' ({tokenizer.name})")
    choose = lambda given, honest, paper_: given if given is not None else paper_ if paper else honest
    loops = 10 if paper else 1
    s = Settings(args.protocol, tokenizer.fingerprint, split.info["sha256"], "train" if paper else args.split, choose(args.texts, 100, 100), loops,
                 choose(args.prompt_tokens, 50, min(c["block_size"] for c in configs)), choose(args.new_tokens, 200, 500), choose(args.temperature, 1.0, 0.8),
                 choose(args.top_k, 0, 200), args.top_p, args.samples, args.stride, args.seed, args.dtype)
    check_sampling(s.temperature, s.top_k, s.top_p)
    autocast("cpu", s.dtype)
    if min(s.texts // loops, s.prompt_tokens, s.new_tokens, s.samples) < 1 or s.texts // loops < 2:
        raise ValueError(f"texts = {s.texts}, prompt_tokens = {s.prompt_tokens}, new_tokens = {s.new_tokens}, samples = {s.samples}: at least 2 texts a loop, and 1 of the others")
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device = {args.device!r}: no CUDA GPU is available here; use --device cpu")
    for path, c in zip(args.checkpoints, configs):
        needs = s.prompt_tokens if paper else s.prompt_tokens + s.new_tokens  # the paper's texts go on beyond the block
        if needs > c["block_size"]:
            raise ValueError(f"{'prompt_tokens' if paper else 'prompt_tokens + new_tokens'} = {needs} do not fit the block_size = {c['block_size']} of {path}: ask for shorter texts")
        windows(len(split.ids), c["block_size"], s.stride or 1)  # raises for a stride that does not fit
    return s, Data(train, split, tokenizer, held_out_prompts(split.ids, s.texts, s.prompt_tokens, s.new_tokens, s.seed if paper else None))


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    s, data = prepare(args)
    columns = PAPER if s.protocol == "paper" else HONEST
    old = {r["name"]: r for r in kept_rows(args.out, s)}
    notes, texts, rows = explain(s, columns, data), {}, {}
    for name in REFERENCES:
        rows[name], texts[name] = reference_row(name, data, s)
    for path in map(Path, args.checkpoints):
        ckpt = load(find(path))
        name = ckpt.config["name"]
        if old.get(name, {}).get("weights_sha256") == sha256(ckpt):
            print(f"{name}: kept from {args.out}.json", file=sys.stderr)
            rows[name] = old[name]
        else:
            rows[name], texts[name] = model_row(path, data, s, args.device)
        if args.out:  # after each row: a run that is stopped goes on from here
            everything = [*(r for n, r in rows.items() if n not in REFERENCES), *(r for n, r in old.items() if n not in rows), *(rows[n] for n in REFERENCES)]
            write_files(args.out, s, everything, texts, columns, notes)
    body = cells([*(r for n, r in rows.items() if n not in REFERENCES), *(rows[n] for n in REFERENCES)], columns)
    print(as_text(["", *(c.title for c in columns)], body, False), "", *notes, sep="\n")
    return 0


if __name__ == "__main__":
    cli(main)()
