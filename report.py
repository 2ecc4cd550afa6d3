"""Tables and runs -> one HTML file that opens in any browser, without a network.

    python report.py two out/baseline-tiny out/entmax15-tiny --prompt_tokens=14 --new_tokens=50
    python report.py results/heads results/grammar --out report.html
    python report.py results/grammar out/baseline-grammar-1 other=out/sig_gpt-grammar-1 --out report.html

A table is the name of its store without its ending: results/NAME of table.py, or --out of eval_diversity.py.
A run is its out folder, and needs its checkpoint and its corpus. All runs continue the same held-out prompts,
each token shaded by -log p (of Bayesian rows also by epistemic uncertainty). A table follows with each of its
measures, its groups and seeds, the figures that its rows give, and other pictures that lie beside it
(NAME.*.png); without runs also texts of NAME.samples.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.config import Dtype, Natural, Positive, Seed, cli, read
from common.device import choose_dtype, get_device
from common.errors import UserError
from common.files import beside, check_writable, real_path, replacing
from common.places import as_installed_command
from data.open import tokenizer_of
from evaluate.sampling import held_out_prompts
from model import context
from tables.checks import check_comparable, check_text, open_split
from tables.measure import NamedRun, open_runs
from tables.report.page import render
from tables.report.runs import Drawing, ReportedRuns, examine
from tables.report.tables import open_table, table_path
from tables.store import Store
from tables.text import TextMeasure


@dataclass
class ReportConfig:
    # fmt: off
    shown: list[str]                # TABLE ... [NAME=]RUN ...: tables, and out folders of training runs
    out: str = "report.html"        # the file to write
    prompts: Positive = 3           # whose continuations are shown
    # of runs
    split: Literal["validation", "test"] = "test"
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    prompt_tokens: Natural = 0      # 0: those of the tables; without one 28, or a third of what the runs read
    new_tokens: Natural = 0         # 0: 60, or what the runs read beyond the prompt
    samples: Positive = 8           # weight draws of Bayesian rows
    seed: Seed = 1337               # of what is drawn
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "float32"        # of matrix products: float32, bfloat16, float16, or auto
    # fmt: on


def examine_runs(c: ReportConfig, runs: list[NamedRun], tables: list[Path]) -> ReportedRuns:
    """What the runs say. UserError for runs that cannot stand side by side."""
    check_comparable(runs)
    split = open_split(runs, c.data, c.split)
    for run in runs:
        check_text(run.path, run.ckpt.config.dataset, split.given)

    # Prompts as long as the tables'
    reads = min(context(run.ckpt.record) for run in runs)
    rows = [row for path in tables for row in Store(beside(path, ".jsonl")).rows(TextMeasure.name)]
    lengths = [c.prompt_tokens, *(row["settings"].get("prompt_tokens") for row in rows)]
    prompt = next(filter(None, lengths), min(28, reads // 3))
    new = c.new_tokens or max(1, min(60, reads - prompt))
    prompts = held_out_prompts(split.ids, c.prompts, prompt, new)

    device = get_device(c.device)
    how = Drawing(device, choose_dtype(c.dtype, device).name, c.samples, c.seed)
    return examine(runs, split, tokenizer_of(runs[0].ckpt), prompts, how)


def main(argv: list[str]) -> int:
    c = read(ReportConfig, argv, __doc__)
    out = real_path(c.out)  # a link stays one
    if out.exists() and not out.is_file():  # a device would become a file
        raise UserError(f"out = {c.out!r} is there, and no file")
    check_writable(out)
    paths = {argument: table_path(Path(argument).expanduser()) for argument in c.shown}
    names = [path for path in paths.values() if path]
    runs = open_runs([argument for argument, path in paths.items() if not path])
    shown = examine_runs(c, runs, names) if runs else None
    tables = [open_table(name, c.prompts) for name in names]
    configs = {run.name: run.ckpt.record for run in runs if run.ckpt.config.data}
    command = as_installed_command(f"python report.py {shlex.join(argv)}")
    page = render(tables, shown, configs, command).encode()
    with replacing(out) as file:
        file.write(page)
    print(f"wrote {out}, {len(page) / 1e6:.1f} MB: open it in a browser")
    return 0


if __name__ == "__main__":
    cli(main)
