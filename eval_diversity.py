"""The comparison table: checkpoints -> perplexity, calibration and diversity, beside human text.

    python eval_diversity.py out/baseline out/sig_gpt --out results/table
    python eval_diversity.py best=out/baseline last=out/baseline/last other=elsewhere/baseline

A row has its run's name, or the one given before "=". Three rows that no model
wrote stand by: human text, unigram noise and a loop. For models of a corpus whose exact distributions are
known (data/grammar) the table also says how well a model recovers them.

Honest protocol (default): perplexity of the sampled distribution on a whole held-out split; text metrics on
continuations alone, of held-out prompts, with a fixed token budget, all cut to the same number of words.
Human text is the standard: beside each value stands its distance to human.

`--protocol paper` scores as the paper did, beside its published numbers: perplexity on training windows,
prompts scored along. Its own defaults are the last lines of the help.
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports("scipy", "tabulate", "sacrebleu")

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from evaluation.columns import columns_of
from evaluation.rows import Data, Entry, model_row, open_all, reference_row, renamed, unchanged
from evaluation.settings import Settings, TextsConfig, settings
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
from runtime.checkpoint import weights_digest
from runtime.configurator import cli, configure, help_text, wants_help
from runtime.files import check_writable
from runtime.names import REFERENCES, check_apart


@dataclass
class EvaluationConfig(TextsConfig):
    # fmt: off
    # the protocol
    protocol: Literal["honest", "paper"] = "honest"
    loops: int = 1                  # groups that the texts are measured in; their mean is reported
    temperature: float = 1.0        # 0 is greedy
    stride: int = 0                 # of the scoring windows; 0: min(512, block_size)
    # the table
    out: str = ""                   # writes OUT.md, OUT.csv, OUT.json and OUT.samples/
    #                                 rows of unchanged checkpoints in it are kept
    # fmt: on

    @property
    def of_protocol(self) -> dict[str, Any]:
        """The further arguments of `settings`."""
        return {k: getattr(self, k) for k in ("protocol", "loops", "temperature", "stride")}


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


def read_arguments(argv: list[str]) -> EvaluationConfig:
    c = configure(EvaluationConfig, argv)
    return configure(PaperConfig, argv) if c.protocol == "paper" else c


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


def main(argv: list[str]) -> int:
    if wants_help(argv):
        print(__doc__, help_text(PaperConfig), sep="\n")
        return 0
    c = read_arguments(argv)
    asked, s, data, device = prepare(c)
    out = Path(c.out) if c.out else None
    columns = columns_of(s.protocol, data.truth is not None)
    kept, notes = kept_rows(out, s), explain(s, columns, data)
    if added := [e for e in asked if e.name not in kept]:
        check_apart([*REFERENCES, *kept, *(e.name for e in added)], renamed(added[-1]))
    references, texts = [], {}
    rows: dict[str, Row] = {}
    for name in REFERENCES:
        row, texts[name] = reference_row(name, data, s)
        references.append(row)

    def tabulated(new: dict[str, list[str]]) -> list[Row]:
        """All rows, written after each of them: a run that is stopped goes on from here."""
        if out is None:
            return [*rows.values(), *references]
        return update(out, s, rows, references, new, columns, notes)

    table = tabulated(texts)  # before any model: its settings now stand there
    for name, path, ckpt in asked:
        digest = weights_digest(ckpt.path)
        if unchanged(kept.get(name), ckpt, digest):
            print(f"{name}: kept from {out}.json", file=sys.stderr)
            rows[name], sampled = kept[name], None
        else:
            rows[name], sampled = model_row(path, digest, data, s, device, name)
        table = tabulated({name: sampled} if sampled else {})
    print(terminal(columns, cells(table, columns)), "", *notes, *scored_otherwise(table), sep="\n")
    return exit_code(rows)


if __name__ == "__main__":
    cli(main)()
