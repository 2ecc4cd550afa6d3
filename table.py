"""A whole table: rows x seeds, trained, evaluated, and summarised with intervals; what is done already is kept.

    python table.py config/tables/heads.py [--key=value ...]

Trains each row with each seed (train.py; a stopped one resumes), evaluates all runs (eval_diversity.py), and writes results/NAME.md, .csv and .json: per row
the mean over seeds, with a 95% interval: of Student's t over the seeds for what training decides, of half-sampling over texts (the bootstrap without
replacement: Politis, Romano & Wolf 1999) for the metrics of texts. Hours of work: stop it with Ctrl-C or SIGTERM, its trainings save; run it again to go on.
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

import json
import math
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import eval_diversity
import train
from data.prepared import DATA
from data.tokens import open_tokens
from eval_diversity import HONEST, TRUTH, Column, as_text, cells, csv_text, samples_file
from evaluation import metrics
from runtime import checkpoint
from runtime.configurator import cli, configure, help_text, wants_help
from runtime.errors import UserError
from runtime.files import check_writable, foreign, lock_of, locked, read_json, replacing
from runtime.names import check_row_name
from runtime.processes import on_stop

# 0.975 quantiles of Student's t with 1, 2, ... degrees of freedom
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
TEXT_METRICS = {
    "self_bleu": metrics.self_bleu_sacre,
    "distinct_4": lambda texts: metrics.distinct_n([t.split() for t in texts]),
    "seq_rep_4": lambda texts: metrics.seq_rep_n([t.split() for t in texts]),
    "zipf": lambda texts: metrics.zipf_coefficient([t.split() for t in texts]),
}


@dataclass
class TableConfig:
    # fmt: off
    name: str = ""                                  # of the table; empty: the config file's
    rows: list = field(default_factory=list)        # config files without folder and .py, each with flags if it needs some; the first is done first (teacher)
    overlay: str = "small"                          # a config file laid over each row
    seeds: list = field(default_factory=lambda: [1, 2, 3])
    partial: bool = False                           # trains nothing: a table of the runs that are finished
    jobs: int = 1                                   # trainings at a time, each with its share of the cores
    evaluate: str = ""                              # flags of eval_diversity.py
    runs: str = "out"                               # folder of the runs
    results: str = "results"                        # folder of the table
    halves: int = 200                               # random halves of the texts
    # fmt: on


@dataclass(frozen=True)
class Run:
    """One training: `arguments` of train.py. In a row's flags {runs}, {overlay} and {seed} are the run's, as in --init_from={runs}/baseline-{overlay}-{seed}."""

    row: str
    seed: int
    out: Path
    arguments: tuple[str, ...]

    @classmethod
    def make(cls, row: str, seed: int, c: TableConfig) -> "Run":
        if not isinstance(row, str) or not split(row) or type(seed) is not int:
            raise UserError(
                f"rows = [{row!r}], seeds = [{seed!r}]: a row is text, the name of a config "
                f"file with flags, a seed a whole number"
            )
        name, *flags = split(row)
        out = Path(c.runs) / check_row_name(f"{name}-{c.overlay}-{seed}")
        for key, value in (("runs", Path(c.runs)), ("overlay", c.overlay), ("seed", seed)):
            flags = [f.replace(f"{{{key}}}", str(value)) for f in flags]
        if odd := [k for k in re.findall(r"\{\w+\}", row) if k not in ("{runs}", "{overlay}", "{seed}")]:
            raise UserError(
                f"rows: {row!r} has {odd[0]}, of which nothing is known: {{runs}}, {{overlay}} "
                f"and {{seed}} are filled in"
            )
        return cls(
            name,
            seed,
            out,
            (
                f"config/{name}.py",
                f"config/{c.overlay}.py",
                *flags,
                f"--seed={seed}",
                f"--name={out.name}",
                f"--out_dir={out}",
            ),
        )

    @property
    def started(self) -> bool:
        return any((self.out / which).is_dir() for which in ("last", "last.old", "best", "best.old"))

    @property
    def finished(self) -> bool:
        """ValueError if the run has another configuration than the table asks for, or was trained on other
        data or from other weights.
        """
        if not self.started:
            return False
        ckpt = checkpoint.load(checkpoint.find(self.out, "last"), weights=False, run=True)
        if odd := self.differs(ckpt.config):
            raise UserError(
                f"{self.out} was trained with another {odd}: move it away, or give another --runs folder"
            )
        return ckpt.progress["step"] >= self.wanted["max_steps"]

    @property
    def wanted(self) -> dict[str, Any]:
        return vars(train.TrainConfig.read(list(self.arguments)))

    def differs(self, config: dict[str, Any], rows: dict[str, dict[str, Any]] | None = None) -> str:
        """The first key in which a run's configuration is not what the table asks for, with both values; "" if there is none.

        What another run gave it counts by the hash of that run's weights, as far as it is known: from its folder or its row among `rows`; else by its name.
        """
        want = self.wanted
        value = lambda c, k: Path(c[k]).name if k in ("teacher", "init_from") else c[k]
        # a run may have taken whatever "auto" was where it was begun
        asked = [k for k in want if k in config and k not in train.RESUMABLE and want[k] != "auto"]
        odd = [k for k in asked if value(config, k) != value(want, k)]
        if odd:
            return f"{odd[0]} ({config[odd[0]]!r}, not {want[odd[0]]!r})"
        for key, recorded in (("teacher", "teacher_weights"), ("init_from", "init_weights")):
            had, now = config.get(recorded), weights_of(want[key], rows or {})
            if had and now and had != now:
                return f"{key} (one with the weights {had[:12]}, {want[key]} now has {now[:12]})"
        had, now = config.get("data_sha256"), data_of(want)
        return f"data (text {had[:12]}, now {now[:12]})" if had and now and had != now else ""


def weights_of(run: str, rows: dict[str, dict[str, Any]]) -> str | None:
    """SHA-256 of the weights that start or teach others from `run`: of its folder, or of its row where the
    folder is gone; None if neither is there.
    """
    if not run:
        return None
    try:
        found = checkpoint.find(run)
        return _digest(found, (found / "model.safetensors").stat().st_mtime_ns)
    except OSError:
        return rows.get(Path(run).name, {}).get("weights_sha256")


@cache
def _digest(path: Path, changed: int) -> str:
    return checkpoint.weights_digest(path)  # once for all the runs that start from these weights


def data_of(config: dict[str, Any], folder: str | None = None) -> str | None:
    """SHA-256 of the training text in `folder`, or that a configuration would be trained on; None as long
    as it is not prepared.
    """
    try:
        return open_tokens(
            (Path(folder) if folder else DATA / config["dataset"] / config["tokenizer"]) / "train.bin"
        ).info["sha256"]
    except (OSError, ValueError, KeyError):
        return None


def split(text: str) -> list[str]:
    """The words of `text`, as a shell reads them. ValueError naming it if a quotation has no end."""
    try:
        return shlex.split(text)
    except ValueError as e:
        raise UserError(f"{text!r} cannot be split into words: {e}") from None


def per_run_table(c: TableConfig) -> Path:
    """Name, without ending, of the table of all runs."""
    return Path(c.results) / f"{c.name}.runs"


def evaluated(runs: list[Run], c: TableConfig) -> set[str]:
    """Names of the runs that need no folder any more: an earlier table of the same settings has their row, and no run that is still to do starts from them."""
    summary, per_run = (Path(c.results) / f"{c.name}{end}.json" for end in ("", ".runs"))
    if not (summary.is_file() and per_run.is_file()):
        return set()
    with foreign(summary, "a table of this program: give another --name or --results, or move it away"):
        if read_json(summary)["settings"]["table"]["evaluate"] != c.evaluate:
            return set()
    with foreign(per_run, "a table of this program: give another --name or --results, or move it away"):
        return _evaluated(runs, c, {r["name"]: r for r in read_json(per_run)["rows"]})


def _evaluated(runs: list[Run], c: TableConfig, rows: dict[str, dict[str, Any]]) -> set[str]:
    done = {
        r.out.name
        for r in runs
        if not r.started
        and "training" in rows.get(r.out.name, {})
        and "problem" not in rows[r.out.name]
        and not r.differs(rows[r.out.name]["training"], rows)
        and rows[r.out.name]["training"]["max_steps"] == r.wanted["max_steps"]
        and samples_file(per_run_table(c), r.out.name).is_file()
    }
    while True:
        used = {
            a.partition("=")[2]
            for r in runs
            if r.out.name not in done and not r.finished
            for a in r.arguments
        }
        needed = {r.out.name for r in runs if r.out.name in done and str(r.out) in used}
        if not needed:
            return done
        done -= needed


class Stopped(Exception):
    """A signal, its number in args, ended the trainings."""


class Trainings:
    """The processes that train now, and the signal that stopped them."""

    def __init__(self):
        self.running: set[subprocess.Popen] = set()
        self.stopped = 0

    def run(self, command: list[str], environment: dict[str, str]) -> int:
        """The exit code of `command`."""
        process = subprocess.Popen(command, env=environment)
        self.running.add(process)
        if self.stopped:  # by a signal that came just before
            process.terminate()
        code = process.wait()
        self.running.discard(process)
        return code

    def stop(self, number: int, frame) -> None:
        """Answers a signal: every training saves and ends."""
        self.stopped = self.stopped or number
        for process in list(self.running):
            process.terminate()


@contextmanager
def stopping(trainings: Trainings) -> Iterator[Trainings]:
    """Within it a signal to stop goes to the trainings, too: SIGTERM reaches this process alone."""
    before = on_stop(trainings.stop)
    try:
        yield trainings
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train_all(runs: list[Run], c: TableConfig) -> None:
    """The runs that are not finished, `jobs` at a time.

    ChildProcessError naming those that failed, once the others are done; Stopped at a signal.
    """
    todo, failed = [r for r in runs if not r.finished], []
    threads = max(1, (os.cpu_count() or 1) // c.jobs)
    environment = os.environ | ({"OMP_NUM_THREADS": str(threads)} if c.jobs > 1 else {})

    def one(run: Run) -> None:
        if trainings.stopped:
            return
        command = [
            sys.executable,
            "train.py",
            *run.arguments,
            *(["--resume"] if run.started else []),
            "--log_interval=50",
        ]
        print(f"{run.out.name} ({todo.index(run) + 1} of {len(todo)} to do)", flush=True)
        code = trainings.run(command, environment)
        by_signal = -code if code < 0 else code - 128
        if by_signal in (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)):
            trainings.stopped = trainings.stopped or by_signal
        elif code:
            failed.append(run.out.name)

    with stopping(Trainings()) as trainings:
        if c.jobs == 1:
            for run in todo:
                one(run)
        else:
            with ThreadPoolExecutor(c.jobs) as pool:
                list(pool.map(one, todo))
    if trainings.stopped:
        raise Stopped(trainings.stopped)
    if failed:
        raise ChildProcessError(
            f"{', '.join(failed)} failed, see the messages above; the other runs are kept"
        )


# ---- summary --------------------------------------------------------------------------------------------------------


def student_interval(values: list[float]) -> float:
    """Half of the 95% interval of the mean, from the spread of `values`; nan for a single one."""
    n = len(values)
    if n < 2 or not all(map(math.isfinite, values)):
        return math.nan
    return STUDENT[min(n - 2, len(STUDENT) - 1)] * statistics.stdev(values) / math.sqrt(n)


def half_sampling_interval(texts: list[list[str]], metric, halves: int, seed: int = 0) -> float:
    """Half of the 95% interval of the mean of `metric` over several lists of texts, which stand for all texts that could have been sampled.

    The spread of a statistic over random halves, drawn without replacement, is that of the statistic of the whole over new samples: (m/n) / (1 - m/n) = 1
    at m = n/2. A text is never drawn twice, which would be a repetition that Self-BLEU punishes and no model wrote.
    """
    rng, means = np.random.default_rng(seed), []
    for _ in range(halves):
        picks = [rng.permutation(len(t))[: len(t) // 2] for t in texts]
        means.append(np.mean([metric([t[i] for i in pick]) for t, pick in zip(texts, picks)]))
    return 1.96 * float(np.std(means, ddof=1))


def summarise(
    name: str, rows: list[dict[str, Any]], texts: list[list[str]], columns: tuple[Column, ...], halves: int
) -> dict[str, Any]:
    """One row of the table: for each column the mean over `rows`, the runs of one configuration, and `<key>_ci`, half of its 95% interval."""
    out: dict[str, Any] = {
        "name": name,
        "reference": bool(rows[0].get("reference")),
        "runs": [r["name"] for r in rows],
    }
    for c in columns:
        values = [r[c.key] for r in rows if c.key in r]
        if values:
            out[c.key] = float(np.mean(values))
            out[c.key + "_ci"] = (
                half_sampling_interval(texts, TEXT_METRICS[c.key], halves)
                if c.key in TEXT_METRICS
                else student_interval(values)
            )
    return out


def differences(
    runs: dict[int, dict[str, Any]], base: dict[int, dict[str, Any]], columns: tuple[Column, ...]
) -> dict[str, float]:
    """For each column that training decides `<key>_diff`, the mean difference of a row's runs to the table's first row, by seed, and `<key>_diff_ci`, half
    of its 95% interval (Student's t of the pairs): one seed is the same start and the same batches, so a pair differs by less than two runs do."""
    out, seeds = {}, [s for s in runs if s in base]
    for c in columns:
        if c.key not in TEXT_METRICS and seeds and all(c.key in r[s] for r in (runs, base) for s in seeds):
            values = [runs[s][c.key] - base[s][c.key] for s in seeds]
            out |= {c.key + "_diff": float(np.mean(values)), c.key + "_diff_ci": student_interval(values)}
    return out


def with_intervals(summary: list[dict[str, Any]], columns: tuple[Column, ...]) -> list[list[str]]:
    """The cells of eval_diversity's table, an interval behind each mean."""
    body = cells(summary, columns)
    for line, row in zip(body, summary):
        for i, c in enumerate(columns, 1):
            ci = row.get(c.key + "_ci", math.nan)
            if math.isfinite(ci):
                number, *rest = line[i].split(" ")
                line[i] = " ".join([number, "±", format(ci, c.form), *rest])
    return body


def read_texts(path: Path) -> list[str]:
    """The texts of a file of samples. A line ends at a newline alone: str.splitlines would also split a text at its U+2028."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_summary(c: TableConfig, per_run: Path) -> str:
    """results/NAME.md, .csv and .json from the table of all runs; its text."""
    table = json.loads(per_run.with_name(per_run.name + ".json").read_text(encoding="utf-8"))
    rows = {
        r["name"]: {k: float(v) if v in ("inf", "nan", "-inf") else v for k, v in r.items()}
        for r in table["rows"]
    }
    columns = tuple(
        col for col in HONEST + TRUTH if col.key != "step" and any(col.key in r for r in rows.values())
    )
    groups = {
        shlex.split(row)[0]: {
            seed: rows[name]
            for seed in c.seeds
            if (name := Run.make(row, seed, c).out.name) in rows and "problem" not in rows[name]
        }
        for row in c.rows
    }
    groups = {row: runs for row, runs in groups.items() if runs}
    if not groups:
        raise UserError(f"no run of this table could be evaluated, see {per_run}.md")
    seeds, base = max(map(len, groups.values())), next(iter(groups.values()))
    fewer = ", ".join(f"{row}: {len(runs)}" for row, runs in groups.items() if len(runs) < seeds)
    summary = [
        summarise(
            row,
            list(runs.values()),
            [read_texts(samples_file(per_run, r["name"])) for r in runs.values()],
            columns,
            c.halves,
        )
        | differences(runs, base, columns)
        for row, runs in groups.items()
    ]
    summary += [
        summarise(name, [rows[name]], [read_texts(samples_file(per_run, name))], columns, c.halves)
        for name in eval_diversity.REFERENCES
    ]
    note = (
        f"Mean of {seeds} seed{'s' * (seeds > 1)}{f' ({fewer})' * bool(fewer)} ± half of its 95% interval: Student's t over the seeds; for the metrics of texts ({', '.join(TEXT_METRICS)}) over {c.halves} random halves of the texts. "
        "The CSV and the JSON also have the differences to the first row, paired by seed (_diff). (+x) is the distance to human text; * is nearest to human, or lowest; for the sparsemax score, highest."
    )
    header, body = ["", *(col.title for col in columns)], with_intervals(summary, columns)
    each = lambda key: sorted({json.dumps(r[key], sort_keys=True) for r in rows.values() if key in r})
    head = {
        "settings": {"table": vars(c), "evaluation": table["settings"]},
        "commits": [json.loads(x) for x in each("commit")],
        "versions": [json.loads(x) for x in each("versions")],
    }
    _, _, notes = (
        per_run.with_name(per_run.name + ".md").read_text(encoding="utf-8").partition("\n\n")
    )  # of the columns, behind the table
    strict = [
        {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in r.items()}
        for r in summary
    ]
    out = Path(c.results) / c.name
    keys = [
        k
        for col in columns
        for k in (
            col.key,
            col.key + "_ci",
            *([col.key + "_diff", col.key + "_diff_ci"] if col.key not in TEXT_METRICS else []),
        )
    ]
    sheet = csv_text([["name", *keys], *([r["name"], *(r.get(k, "") for k in keys)] for r in summary)])
    shown = as_text(header, body, True) + "\n\n" + note + "\n\n" + notes
    for end, text in ((".md", shown), (".csv", sheet), (".json", eval_diversity.json_table(head, strict))):
        with replacing(out.with_name(out.name + end)) as f:
            f.write(text.encode())
    return as_text(header, body, False) + "\n\n" + note


def check(c: TableConfig) -> list[Run]:
    """The table's runs. ValueError for what cannot work, of any row."""
    for key, least in (("jobs", 1), ("halves", 2)):
        if getattr(c, key) < least:
            raise UserError(f"{key} = {getattr(c, key)}: must be at least {least}")
    if not c.rows or not c.seeds:
        raise UserError(
            "rows and seeds: a table needs at least one of each; give the file that has them first: table.py config/tables/heads.py config/tables/grammar.py"
        )
    runs = [Run.make(row, seed, c) for seed in c.seeds for row in c.rows]
    if len({r.out for r in runs}) < len(runs):
        raise UserError("rows or seeds hold one twice: each row and each seed is to be there once")
    for run in runs:
        train.TrainConfig.read(list(run.arguments))
    args = eval_diversity.parser().parse_args([*map(str, (r.out for r in runs)), *split(c.evaluate)])
    blocks = {run.wanted["block_size"]: run for run in runs}
    if len(blocks) > 1:
        raise UserError(
            "; ".join(f"{run.out.name} has block_size = {block}" for block, run in blocks.items())
            + ": contexts of different length cannot stand in one table"
        )
    settings = eval_diversity.settings(args, *blocks)
    for path in (
        per_run_table(c).with_name(f"{c.name}.runs.json"),
        samples_file(per_run_table(c), "human"),
        per_run_table(c).with_name(f"{c.name}.json"),
    ):
        check_writable(path)
    check_kept(c, settings, data_of(runs[0].wanted, args.data))
    return runs


def check_kept(c: TableConfig, settings: eval_diversity.Settings, text: str | None) -> None:
    """ValueError if the results hold rows of other settings, or of another training `text` (SHA-256), as
    far as they are known before the data are prepared: found now, not after the trainings.
    """
    path = per_run_table(c).with_name(f"{c.name}.runs.json")
    if not path.is_file():
        return
    with foreign(path, "a table of this program: move it away, or give another --name or --results"):
        had = dict(read_json(path)["settings"])
    odd = [f"{k} {had.get(k)!r}, now {v!r}" for k, v in vars(settings).items() if v != "" and had.get(k) != v]
    if text and had.get("train") != text:
        odd.append(f"training text {str(had.get('train'))[:12]}, now {text[:12]}")
    if odd:
        raise UserError(
            f"{path} holds rows of other settings ({'; '.join(odd)}): they cannot stand in one table; use those settings, or another --results"
        )


def main(argv: list[str]) -> int:
    if wants_help(argv):
        print(__doc__, help_text(TableConfig, __file__), sep="\n")
        return 0
    c = configure(TableConfig, argv)
    runs, per_run = check(c), per_run_table(c)
    done = evaluated(runs, c)
    if done:
        print(
            f"{len(done)} of {len(runs)} runs are kept from {per_run}.json, their folders are not there; --results=DIR starts anew",
            flush=True,
        )
    todo = [r for r in runs if r.out.name not in done]
    if c.partial:
        todo = [r for r in todo if r.finished]
        if not todo and not done:
            raise UserError("partial = True: no run of this table is finished")
    else:
        first = shlex.split(c.rows[0])[0]
        try:
            # others may have it as their teacher, or start from it
            train_all([r for r in todo if r.row == first], c)
            done &= evaluated(runs, c)  # which, trained anew, may have become another
            todo = [r for r in runs if r.out.name not in done]
            train_all([r for r in todo if r.row != first], c)
        except Stopped as e:
            print("stopped; what is trained is saved: run it again to go on", file=sys.stderr)
            return 128 + e.args[0]
    per_run.parent.mkdir(parents=True, exist_ok=True)
    code = (
        eval_diversity.main([*(str(r.out) for r in todo), *shlex.split(c.evaluate), "--out", str(per_run)])
        if todo
        else 0
    )
    if code in (0, 1):  # 1: some models could not be evaluated, see their rows
        with locked(lock_of(Path(c.results) / c.name)):
            print("", write_summary(c, per_run), sep="\n")
    return code


if __name__ == "__main__":
    cli(main)()
