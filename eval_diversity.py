"""The comparison table: checkpoints -> perplexity, calibration and diversity, beside human text.

    python eval_diversity.py out/baseline out/sig_gpt --out results/table
    python eval_diversity.py best=out/baseline last=out/baseline/last other=elsewhere/baseline
    python eval_diversity.py out/baseline theirs=texts.jsonl --scorer out/large

A row has its run's name, or the one given before "=". Three rows that no model
wrote stand by: human text, unigram noise and a loop. For models of a corpus whose exact distributions are
known (data/grammar) the table also says how well a model recovers them.

A file of texts, of any other system, is a row of text metrics alone: a .txt has an empty line between two
texts, a .jsonl a text a line, {"text": ..., "prompt": ...}, with a prompt or without. The text is the
continuation alone.

Honest protocol (default): perplexity of the sampled distribution on a whole held-out split; text metrics on
continuations alone, of held-out prompts, with a fixed token budget, all cut to the same number of words.
Human text is the standard: beside each value stands its distance to human.

`--protocol paper` scores as the paper did, beside its published numbers: perplexity on training windows,
prompts scored along. Its own defaults are the last lines of the help.
"""

from dataclasses import dataclass
from typing import Any, Literal

from evaluation.settings import TextsConfig
from runtime.configurator import configure
from runtime.door import Program


@dataclass
class EvaluationConfig(TextsConfig):
    # fmt: off
    # the protocol
    protocol: Literal["honest", "paper"] = "honest"
    loops: int = 1                  # groups that the texts are measured in; their mean is reported
    temperature: float = 1.0        # 0 is greedy
    stride: int = 0                 # of the scoring windows; 0: min(512, block_size)
    # what the texts are judged by
    scorer: str = ""                # a run, or a folder of transformers: generative perplexity and,
    #                                 where the package mauve-text is installed, MAUVE by its hidden states
    # the table
    out: str = ""                   # writes OUT.md, OUT.csv, OUT.json and OUT.samples/
    #                                 rows of unchanged checkpoints in it are kept
    # fmt: on

    @property
    def of_protocol(self) -> dict[str, Any]:
        """The further arguments of `settings`."""
        same = {k: getattr(self, k) for k in ("protocol", "loops", "temperature", "stride")}
        return same | {"scorer": scorer_digest(self.scorer) if self.scorer else ""}


@dataclass
class PaperConfig(EvaluationConfig):
    # fmt: off
    # with --protocol paper
    split: Literal["train", "validation", "test"] = "train"
    loops: int = 10
    prompt_tokens: int = 0
    new_tokens: int = 500
    temperature: float = 0.8
    top_k: int = 200
    # fmt: on

    @classmethod
    def read(cls, argv: list[str]) -> EvaluationConfig:
        """The configuration of a command line: with these defaults if it asks for the paper's protocol."""
        c = configure(EvaluationConfig, argv)
        return configure(cls, argv) if c.protocol == "paper" else c


program = Program(__name__, __doc__, PaperConfig, "scipy", "tabulate", "sacrebleu")

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from evaluation.columns import columns_of, shown
from evaluation.rows import Data, Entry, model_row, open_all, other_texts, reference_row, renamed, unchanged
from evaluation.scorer import MAUVE, Judge, open_scorer, scorer_digest
from evaluation.settings import Settings, settings
from evaluation.tables import (
    Row,
    beside,
    cells,
    exit_code,
    explain,
    kept_rows,
    samples_file,
    scored_otherwise,
    terminal,
    update,
)
from evaluation.text_files import Texts, apart, fitting, text_row, unchanged_texts
from evaluation.texts import measured
from runtime.checkpoint import Degenerate, weights_digest
from runtime.configurator import cli
from runtime.errors import UserError
from runtime.files import check_writable
from runtime.names import REFERENCES, check_apart

# fmt: on


def settings_of(c: EvaluationConfig, block_size: int) -> Settings:
    """The settings of a table of models of this block_size, before there are any.

    UserError naming the one that cannot work.
    """
    return settings(c, block_size, **c.of_protocol)


def prepare(c: EvaluationConfig) -> tuple[list[Entry], Settings, Data, torch.device]:
    """What is asked for, opened. Everything that can be wrong is found here, before any work."""
    asked, s, data, device = open_all(c, **c.of_protocol)
    if c.out:
        out = Path(c.out)
        for path in (beside(out, ".json"), samples_file(out, "human")):
            check_writable(path)
    return asked, s, data, device


class Task(NamedTuple):
    """A row that is asked for."""

    name: str
    kept: bool  # whether the table has it as it is
    prompts: list[str]  # of its texts; [] where they are not known
    make: Callable[[], tuple[Row, list[str] | None]]  # the row and its texts


def tasks(
    asked: list[Entry],
    files: list[Texts],
    kept: dict[str, Row],
    data: Data,
    s: Settings,
    device: torch.device,
) -> Iterator[Task]:
    for name, path, ckpt in asked:
        digest = weights_digest(ckpt.path)
        make = partial(model_row, path, digest, data, s, device, name)
        yield Task(name, unchanged(kept.get(name), ckpt, digest), data.prompt_texts, make)
    for file in files:
        same = unchanged_texts(kept.get(file.name), file)
        yield Task(file.name, same, file.prompts, partial(text_row, file, s))


def open_judge(c: EvaluationConfig, s: Settings, data: Data, device: torch.device) -> Judge | None:
    if not c.scorer:
        return None
    judge = Judge(open_scorer(c.scorer, device), s.scorer, s.words, partial(other_texts, data, s))
    if judge.human is None:
        print(f"MAUVE is left out: pip install {MAUVE}, and run this again", file=sys.stderr)
    return judge


def judged(judge: Judge | None, row: Row, texts: list[str] | None, prompts: list[str]) -> Row:
    """`row` with what the scorer says of its texts. UserError if it cannot read those of a reference."""
    if judge is None or texts is None or "problem" in row:
        return row
    if row.get("reference"):
        return row | judge.numbers(texts, prompts, interval=True)
    try:
        return row | measured(judge.numbers, texts, prompts)
    except Degenerate as e:
        return row | {"problem": e.what}


@program
def main(c: EvaluationConfig) -> int:
    files, runs = apart(c.checkpoints)
    if not runs:
        raise UserError("files of texts stand beside a run, whose corpus and prompts the table has: give one")
    asked, s, data, device = prepare(replace(c, checkpoints=runs))
    files = [fitting(file, s) for file in files]
    out = Path(c.out) if c.out else None
    columns = columns_of(s.protocol, data.truth is not None, bool(c.scorer))
    kept = kept_rows(out, s)
    named = [(e.name, e.path) for e in asked] + [(f.name, f.path) for f in files]
    others = [name for name in kept if name not in dict(named)]
    check_apart([*REFERENCES, *others, *(name for name, _ in named)], renamed(named[-1][1]))
    judge = open_judge(c, s, data, device)
    notes = [*explain(s, columns, data), *([judge.note] if judge else [])]
    references, texts = [], {}
    rows: dict[str, Row] = {}
    for name in REFERENCES:
        row, texts[name] = reference_row(name, data, s)
        references.append(judged(judge, row, texts[name], data.prompt_texts))

    def tabulated(new: dict[str, list[str]]) -> list[Row]:
        """All rows, written after each of them: a run that is stopped goes on from here."""
        if out is None:
            return [*rows.values(), *references]
        return update(out, s, rows, references, new, columns, notes)

    table = tabulated(texts)  # before any model: its settings now stand there
    for task in tasks(asked, files, kept, data, s, device):
        name = task.name
        if task.kept and not (judge and judge.lacks(kept[name])):
            print(f"{name}: kept from {out}.json", file=sys.stderr)
            rows[name], sampled = kept[name], None
        else:
            row, sampled = task.make()
            rows[name] = judged(judge, row, sampled, task.prompts)
        table = tabulated({name: sampled} if sampled else {})
    seen = shown(columns, table)
    print(terminal(seen, cells(table, seen)), "", *notes, *scored_otherwise(table), sep="\n")
    return exit_code(rows)


if __name__ == "__main__":
    cli(main)()
