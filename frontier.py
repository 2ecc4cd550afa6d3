"""The quality-diversity frontier: checkpoints -> text quality against diversity over sampling temperatures.

    python frontier.py out/baseline out/sig_gpt --out results/mine.frontier

Writes the points as JSON, and their figure. A temperature trades quality for diversity, so two heads compare
by their curves, not by one point of each (Caccia et al. 2020, arXiv 1811.02549). Diversity is Self-BLEU.
Quality is BLEU against human texts of the other held-out split or, for the language whose truth is known
(data/grammar), the share of valid tokens. The human continuations of the same prompts are the standard.
Texts, prompts and their number are eval_diversity.py's. What is done is kept: the same command goes on.
"""

from dataclasses import dataclass, field

from evaluation.settings import TextsConfig
from runtime.door import Program
from runtime.errors import UserError


@dataclass
class FrontierConfig(TextsConfig):
    # fmt: off
    # the frontier
    temperatures: list[float] = field(default_factory=lambda: [0.5, 0.75, 1.0, 1.25, 1.5])
    out: str = ""                   # needed: writes OUT.json, OUT.png and OUT.svg
    #                                 points of unchanged checkpoints in it are kept
    # fmt: on

    def check(self) -> None:
        """UserError for what cannot work."""
        if not self.out:
            raise UserError("--out is missing: a name for the files, as in --out=results/mine.frontier")
        if not self.temperatures:
            raise UserError("temperatures = []: give at least one, as in --temperatures=0.5,1.0")


program = Program(__name__, __doc__, FrontierConfig, "scipy", "tabulate", "sacrebleu", "matplotlib")

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evaluation import diversity, figures
from evaluation.provenance import scoring_code, versions
from evaluation.rows import Data, open_all, other_texts, public, unchanged, validity
from evaluation.settings import Settings, check_settings, of_run, other_settings
from evaluation.tables import Row, beside, exit_code, json_table, scored_otherwise
from evaluation.texts import cut, decode, measured, sample_texts
from runtime.checkpoint import Degenerate, load_model, weights_digest
from runtime.configurator import cli
from runtime.device import get_dtype
from runtime.files import foreign, lock_of, locked, read_json, replacing

CODE = ("frontier.py",)  # what decides the points, beside what decides the numbers of eval_diversity.py


def quality(texts: list[str], references: list[str]) -> dict[str, float]:
    """Diversity of the texts, and their quality beside human ones."""
    words = [t.split() for t in texts]
    return {
        "self_bleu": diversity.self_bleu_sacre(texts),
        "bleu": diversity.bleu_sacre(texts, references),
        "distinct_4": diversity.distinct_n(words),
        "seq_rep_4": diversity.seq_rep_n(words),
    }


def point(data: Data, new: np.ndarray, references: list[str], s: Settings) -> dict[str, float]:
    """Diversity and quality of the sampled ids (n, new_tokens).

    What there is none of (validity, where no document starts) is left out.
    """
    texts = [cut(t, s.words) for t in decode(data.tokenizer, data.prompts.prompt, new, s)]
    values = measured(quality, texts, references) | validity(data, new)
    return {k: v for k, v in values.items() if math.isfinite(v)}


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
    found = []
    try:
        model, ckpt = load_model(checkpoint, device=device, dtype=get_dtype(s.dtype))
        for t in temperatures:
            warm = replace(of_run(s, ckpt.config), temperature=t)
            new = sample_texts(model, data.prompts.prompt, warm, device, f"{name} at {t:g}")
            found.append({"temperature": t, **point(data, new, references, s)})
    except Degenerate as e:
        return {"problem": e.what}
    return {"points": found}


def kept_rows(path: Path, settings: dict[str, Any]) -> dict[str, Row]:
    """Rows of an earlier file, by name. UserError if it had other settings."""
    if not path.is_file():
        return {}
    with foreign(path, "a file of this program: give another --out, or move it away"):
        table = read_json(path, strict=True)
        had, rows = dict(table["settings"]), {r["name"]: dict(r) for r in table["rows"]}
    if odd := other_settings(had, settings):
        raise UserError(
            f"{path} holds points of other settings ({'; '.join(odd)}): use those settings or another --out"
        )
    return rows


def update(path: Path, settings: dict[str, Any], new: dict[str, Row]) -> dict[str, Row]:
    """Writes the file with the rows `new` in it, beside those that it holds. All its rows.

    Another process may have added some since it was read.
    """
    head = {"settings": settings, "command": " ".join(sys.argv), "versions": versions()}
    with locked(lock_of(path)):
        rows = kept_rows(path, settings) | new
        with replacing(path) as f:
            f.write(json_table(head, list(rows.values())).encode())
    return rows


def described(row: Row) -> str:
    """A row's line in the terminal."""
    if "problem" in row:
        return f"{row['name']}: {row['problem']}"
    said = [
        f"T={q['temperature']:g} Self-BLEU {q['self_bleu']:.1f} BLEU {q['bleu']:.1f}" for q in row["points"]
    ]
    return f"{row['name']}: {', '.join(said)}"


@program
def main(c: FrontierConfig) -> int:
    asked, s, data, device = open_all(c)
    for t in c.temperatures:
        check_settings(replace(s, temperature=t))
    references = other_texts(data, s)
    settings = {k: v for k, v in vars(s).items() if k not in ("temperature", "stride")}
    settings["temperatures"] = c.temperatures
    out = Path(c.out)
    path = beside(out, ".json")
    rows = kept_rows(path, settings)
    human = {"name": "human", "reference": True, **point(data, data.prompts.human, references, s)}
    for name, checkpoint, ckpt in asked:
        digest = weights_digest(ckpt.path)
        if unchanged(rows.get(name), ckpt, digest, CODE):
            print(f"{name}: kept from {path}", file=sys.stderr)
            continue
        row: Row = {"name": name, "weights_sha256": digest, "code": scoring_code(*CODE)}
        row["training"] = public(ckpt.config)
        row |= points(checkpoint, name, c.temperatures, data, references, s, device)
        rows = update(path, settings, {"human": human, name: row})
        print(described(row), flush=True)
    with locked(lock_of(path)):  # who draws last has read all rows
        if any(r.get("points") for r in rows.values()):
            figures.draw(out)
    print(*scored_otherwise(rows.values(), CODE), sep="\n")
    return exit_code({e.name: rows[e.name] for e in asked})


if __name__ == "__main__":
    cli(main)()
