"""The quality-diversity frontier: checkpoints -> text quality against diversity over sampling temperatures, as JSON and as a figure.

    python frontier.py out/baseline out/sig_gpt --out results/mine.frontier

A temperature trades quality for diversity, so two heads compare by their curves, not by one point of each (Caccia et al. 2020, arXiv 1811.02549). Diversity is
Self-BLEU; quality is BLEU against human texts of the other held-out split or, for the language whose truth is known (data/grammar), the share of valid
tokens. The human continuations of the same prompts are the standard. Texts, prompts and their number are eval_diversity.py's. What is done is kept: the
same command goes on.
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import eval_diversity
from data.tokens import open_tokens
from eval_diversity import (
    Data,
    Settings,
    decode,
    entries,
    held_out_prompts,
    json_table,
    said_problems,
    sample_texts,
    validity,
)
from evaluation import figures, metrics
from runtime.checkpoint import Degenerate, load_model, weights_digest
from runtime.configurator import Parser, cli
from runtime.configurator import path as path_of
from runtime.device import get_dtype
from runtime.errors import UserError
from runtime.files import foreign, lock_of, locked, read_json, replacing

TEMPERATURES = (0.5, 0.75, 1.0, 1.25, 1.5)


def other_texts(data: Data, s: Settings) -> list[str]:
    """As many human texts to compare with, of the same length: from the other held-out split, so that no document is on both sides."""
    other = open_tokens(data.split.path.with_name("validation.bin" if s.split == "test" else "test.bin"))
    if other.info["fingerprint"] != data.split.info["fingerprint"]:
        raise UserError(f"{other.path} was made with another tokenizer than {data.split.path}")
    return [
        data.tokenizer.decode(r)
        for r in held_out_prompts(other.ids, s.texts, s.prompt_tokens, s.new_tokens).human.tolist()
    ]


def point(data: Data, new: np.ndarray, references: list[str], s: Settings) -> dict[str, float]:
    """Diversity and quality of the sampled ids (n, new_tokens); what there is none of (validity, where no document starts) is left out."""
    texts = decode(data.tokenizer, data.prompts.prompt, new, s)
    words = [t.split() for t in texts]
    if not any(words):
        raise Degenerate("its texts are white space alone")
    try:
        values = {
            "self_bleu": metrics.self_bleu_sacre(texts),
            "bleu": metrics.bleu_sacre(texts, references),
            "distinct_4": metrics.distinct_n(words),
            "seq_rep_4": metrics.seq_rep_n(words),
            **validity(data, new),
        }
    except ValueError as e:
        raise Degenerate(f"its texts cannot be measured, {e}") from None
    return {k: v for k, v in values.items() if math.isfinite(v)}


def kept_rows(path: Path, settings: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Rows of an earlier file, by name. ValueError if it had other settings."""
    if not path.is_file():
        return {}
    with foreign(path, "a file of this program: give another --out, or move it away"):
        table = read_json(path, strict=True)
        had, rows = dict(table["settings"]), {r["name"]: dict(r) for r in table["rows"]}
    odd = [f"{k} {had.get(k)!r}, now {v!r}" for k, v in settings.items() if had.get(k) != v]
    if odd:
        raise UserError(
            f"{path} holds points of other settings ({'; '.join(odd)}): use those settings or another --out"
        )
    return rows


def parser() -> Parser:
    p = eval_diversity.shared_parser(__doc__)
    p.add_argument(
        "--temperatures",
        type=float,
        nargs="+",
        default=list(TEMPERATURES),
        help="default " + " ".join(map(str, TEMPERATURES)),
    )
    p.add_argument(
        "--out",
        type=path_of,
        required=True,
        help="writes OUT.json, OUT.png and OUT.svg; points of unchanged checkpoints in it are kept",
    )
    p.set_defaults(protocol="honest", temperature=None, stride=0)
    return p


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    s, data, device = eval_diversity.prepare(args)
    for t in args.temperatures:
        eval_diversity.check_settings(replace(s, temperature=t))
    references = other_texts(data, s)
    settings = {k: v for k, v in vars(s).items() if k not in ("temperature", "stride")} | {
        "temperatures": args.temperatures
    }
    path = args.out.with_name(args.out.name + ".json")
    rows = kept_rows(path, settings)
    human = {"name": "human", "reference": True, **point(data, data.prompts.human, references, s)}
    asked = entries(args.checkpoints)
    for name, checkpoint, ckpt in asked:
        digest = weights_digest(ckpt.path)
        if (
            rows.get(name, {}).get("weights_sha256") == digest
            and rows[name].get("head") == ckpt.config["head"]
        ):
            print(f"{name}: kept from {path}", file=sys.stderr)
        else:
            row = {
                "name": name,
                "head": ckpt.config["head"],
                "weights_sha256": digest,
                **points(checkpoint, name, args.temperatures, data, references, s, device),
            }
            rows = update(path, settings, {"human": human, name: row})
            print(
                f"{name}: "
                + (
                    row["problem"]
                    if "problem" in row
                    else ", ".join(
                        f"T={q['temperature']:g} Self-BLEU {q['self_bleu']:.1f} BLEU {q['bleu']:.1f}"
                        for q in row["points"]
                    )
                ),
                flush=True,
            )
    with locked(lock_of(path)):  # who draws last has read all rows
        if any(r.get("points") for r in rows.values()):
            figures.frontier(path)
    return said_problems({name: rows[name] for name, *_ in asked})


def points(
    checkpoint: Path,
    name: str,
    temperatures: list[float],
    data: Data,
    references: list[str],
    s: Settings,
    device: torch.device,
) -> dict[str, Any]:
    """ "points" of one model, one for each temperature; of a degenerate model its "problem"."""
    try:
        model, _ = load_model(checkpoint, device=device, dtype=get_dtype(s.dtype))
        sampled = (
            (
                t,
                sample_texts(
                    model, data.prompts.prompt, replace(s, temperature=t), device, f"{name} at {t:g}"
                ),
            )
            for t in temperatures
        )
        return {"points": [{"temperature": t, **point(data, new, references, s)} for t, new in sampled]}
    except Degenerate as e:
        return {"problem": e.what}


def update(path: Path, settings: dict[str, Any], new: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Writes the file with the rows `new` in it, beside those that it holds: another process may have added
    some since it was read. All its rows.
    """
    with locked(lock_of(path)):
        rows = kept_rows(path, settings) | new
        with replacing(path) as f:
            f.write(
                json_table(
                    {
                        "settings": settings,
                        "command": " ".join(sys.argv),
                        "versions": eval_diversity.versions(),
                    },
                    list(rows.values()),
                ).encode()
            )
    return rows


if __name__ == "__main__":
    cli(main)()
