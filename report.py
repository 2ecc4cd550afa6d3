"""Tables and runs -> one HTML file that opens in any browser, without a network.

    python report.py two out/baseline-tiny out/entmax15-tiny --prompt_tokens=14 --new_tokens=50
    python report.py results/heads results/grammar --out report.html
    python report.py results/grammar out/baseline-grammar-1 other=out/sig_gpt-grammar-1 --out report.html

A table is the name of its store without its ending: results/NAME of table.py, or --out of eval_diversity.py.
A run is its out folder, and needs its checkpoint and its corpus. The page says what was trained on what, for
how long, and what each row does differently. Where the truth is known the runs' next-word distributions
stand beside it. All runs continue the same held-out prompts, each token shaded by -log p (of
Bayesian rows also by epistemic uncertainty). A table follows
with each of its measures, its groups and seeds, the figures that its rows give, and other pictures that lie
beside it (NAME.*.png); without runs also texts of NAME.samples.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from common.config import Dtype, Natural, Positive, Seed, cli, read
from common.device import get_device, settle_dtype
from common.errors import UserError
from common.files import beside, check_writable, replacing
from data.held_out import HeldOut
from data.prepared import tokenizer_of
from evaluate.checks import check_comparable, check_text, open_split
from evaluate.measure import NamedRun, open_runs
from evaluate.report.about import opening
from evaluate.report.page import render
from evaluate.report.runs import ReportedRuns, SamplingSettings, examine, spread_places
from evaluate.report.tables import open_table, table_path
from evaluate.store import Row, Store
from evaluate.text import TextMeasure
from evaluate.texts import held_out_prompts
from model import context


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
    contexts: Natural = 4           # places at which runs stand beside the truth, where it is known
    samples: Positive = 8           # weight draws of Bayesian rows
    seed: Seed = 1337               # of what is drawn
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "float32"        # of matrix products: float32, bfloat16, float16, or auto
    # fmt: on


def apart(shown: list[str]) -> tuple[list[Path], list[NamedRun]]:
    """(names of tables, runs). UserError for what is neither."""
    tables, runs = [], []
    for argument in shown:
        if table := table_path(Path(argument).expanduser()):
            tables.append(table)
            continue
        try:
            runs += open_runs([argument])
        except FileNotFoundError:
            raise UserError(
                f"{argument!r} is neither a table nor a run: there is no {argument}.jsonl, and no checkpoint "
                "in it; give results/NAME, or the out folder of a training run"
            ) from None
    return tables, runs


def opened(c: ReportConfig, runs: list[NamedRun], tables: list[Path]) -> tuple[ReportConfig, HeldOut]:
    """The configuration with its lengths of texts, and the split that all runs are asked about. UserError for
    runs that cannot stand side by side."""
    check_comparable(runs)
    split = open_split(runs, c.data, c.split)
    for run in runs:
        check_text(run.path, run.ckpt.config["dataset"], split.given)
    reads = min(context(run.ckpt.config) for run in runs)
    prompts = [row["settings"].get("prompt_tokens") for path in tables for row in text_rows(path)]
    prompt = c.prompt_tokens or next(filter(None, prompts), min(28, reads // 3))
    new = c.new_tokens or max(1, min(60, reads - prompt))
    if prompt + new > reads:
        raise UserError(
            f"prompt_tokens + new_tokens = {prompt + new}: these models read {reads} tokens; ask for fewer"
        )
    return replace(c, prompt_tokens=prompt, new_tokens=new), split


def text_rows(table: Path) -> list[Row]:
    return Store(beside(table, ".jsonl")).rows(TextMeasure.name)


def examined(c: ReportConfig, runs: list[NamedRun], split: HeldOut) -> ReportedRuns:
    device = get_device(c.device)
    settings = SamplingSettings(device, settle_dtype(c.dtype, device).name, c.samples, c.seed)
    prompts = held_out_prompts(split.ids, c.prompts, c.prompt_tokens, c.new_tokens)
    places = spread_places(split, min(context(run.ckpt.config) for run in runs), c.contexts)
    return examine(runs, split, tokenizer_of(runs[0].ckpt), prompts, places, settings)


def main(argv: list[str]) -> int:
    c = read(ReportConfig, argv, __doc__)
    check_writable(Path(c.out))
    names, runs = apart(c.shown)
    c, split = opened(c, runs, names) if runs else (c, None)
    tables = [open_table(name, c.prompts) for name in names]
    shown = examined(c, runs, split) if split else None
    judging = next((t.opening.judging for t in tables if t.opening), "")
    configs = [(run.name, run.ckpt.config) for run in runs if not run.ckpt.foreign]
    page = render(tables, shown, opening(configs, shown.parameters if shown else (), judging))
    out = Path(c.out)
    with replacing(out) as f:
        f.write(page.encode())
    print(f"wrote {out}, {len(page.encode()) / 1e6:.1f} MB: open it in a browser")
    return 0


if __name__ == "__main__":
    cli(main)
