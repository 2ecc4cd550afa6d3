"""What a GPU that is lent for minutes is used for: an ordered list of parts, the most valuable first.

    python bench/gpu.py --minutes 25 [--nanogpt DIR] [--before DIR] [--parts tests training ...]
    python bench/gpu.py --size tiny --out DIR       goes through the same list on a CPU, in minutes

A part begins if its limit fits what is left of the minutes, and leaves its result at once. The same command
goes on: what ended well is not run again, a training resumes. Benchmarks go to bench/gpu/<GPU>/, tables to
results/; with --out, both go there. summary.json says how each part ended. The exit code is 0 if all that
was begun ended well.

tests       those marked gpu
training    softmax beside nanoGPT (--nanogpt: a checkout of karpathy/nanoGPT) and beside an earlier commit
            of ours (--before: a checkout of it)
trials      softmax, 124M, 800 steps with each of RECIPES: the best is the recipe of all rows of the table
124M, 12M   config/tables/heads_124M.py and sig_gpt_12M.py, row by row
heads, sampling     the benchmarks of these names

docs/reproduce_124M.md says how to prepare the text.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))


PARTS = ("tests", "training", "trials", "124M", "12M", "heads", "sampling")
# a step has 6,144 tokens: at beta2 = .999 AdamW's memory is that of .99 at brief.py's 1,024
RECIPES = {
    "adamw": "--learning_rate=1e-3 --min_lr=1e-4",
    "muon": "--optimizer=muon --learning_rate=2e-3 --min_lr=2e-4 --readout_lr=2e-3",
    "muon_twice": "--optimizer=muon --learning_rate=4e-3 --min_lr=4e-4 --readout_lr=4e-3",
}
TINY = (
    "--n_layer=1 --n_head=2 --n_embd=32 --block_size=32 --batch_size=8 --max_steps=3 --eval_interval=3 "
    "--warmup_steps=1 --device=cpu"
)
TEXTS = "--texts=1000 --halves=20"
TINY_TEXTS = "--texts=20 --halves=2 --prompt_tokens=4 --new_tokens=28 --device=cpu"


class Part(NamedTuple):
    group: str  # of PARTS
    name: str
    limit: int  # seconds
    command: list[Any]  # of Python
    run: Path | None = None  # the training whose last validation NLL is kept


class Lease:
    """The parts that have ended, and the minutes that are left."""

    def __init__(self, args: argparse.Namespace, machine: dict[str, Any]):
        self.args, self.tiny = args, args.size == "tiny"
        self.out = args.out or Path("bench/gpu") / machine["gpu"].replace(" ", "-")
        self.results = args.out or Path("results")
        self.ends = time.monotonic() + 60 * args.minutes
        self.path = self.out / "summary.json"
        self.parts = json.loads(self.path.read_text())["parts"] if self.path.is_file() else {}
        self.machine, self.failed = machine, False
        self.out.mkdir(parents=True, exist_ok=True)

    def run(self, part: Part) -> None:
        """Runs a part, unless it is done, or its limit is longer than what is left."""
        if self.ended_well(part.name) or part.group not in self.args.parts:
            return
        limit = 600 if self.tiny else part.limit  # a busy CPU takes as long as it takes
        if limit > self.ends - time.monotonic():
            return print(f"== {part.name}: not begun, it may take {limit} s", flush=True)
        print(f"== {part.name}: at most {limit} s", flush=True)
        begun, code = time.monotonic(), self.call(part.command, limit)
        self.failed = self.failed or code != 0
        self.parts[part.name] = {"exit_code": code, "seconds": round(time.monotonic() - begun, 1)}
        if part.run and not code:
            lines = [json.loads(line) for line in (part.run / "log.jsonl").read_text().splitlines()]
            self.parts[part.name]["val_nll"] = [line["val_nll"] for line in lines if "val_nll" in line][-1]
        self.path.write_text(json.dumps({"machine": self.machine, "parts": self.parts}, indent=1) + "\n")
        print(f"== {part.name}: {self.parts[part.name]}", flush=True)

    def call(self, command: list[Any], limit: float) -> int:
        """The exit code of a command; 124 if it did not end within its limit, and was told to."""
        process = subprocess.Popen([sys.executable, *map(str, command)])
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            return 124
        finally:  # also where this program itself is told to end: a training saves first
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()

    def ended_well(self, name: str) -> bool:
        return self.parts.get(name, {}).get("exit_code") == 0

    def recipe(self) -> str | None:
        """The flags of the trial with the lowest loss; None without a trial."""
        nll = {name: self.parts[name]["val_nll"] for name in RECIPES if self.ended_well(name)}
        return RECIPES[min(nll, key=nll.__getitem__)] if nll else None

    def plan(self) -> Iterator[Part]:
        """The parts in their order. What a later one asks for may hang on how an earlier one ended."""
        args, tiny, out = self.args, self.tiny, self.out
        device = ["--device", "cpu" if tiny else "cuda"]
        yield Part("tests", "tests", 180, ["-m", "pytest", "tests/test_gpu.py", "-m", "gpu", "-q"])

        size = ["--size=tiny", "--windows=16", "--rounds=1"] if tiny else ["--size=124M-1024", "--rounds=20"]
        timed = [*device, "--data=random", *size, "--rows"]
        beside = ["--nanogpt", args.nanogpt] if args.nanogpt else []
        command = ["bench/training.py", *timed, *beside, "--out", out / "training.json"]
        yield Part("training", "training", 150, command)
        if args.before:
            command = [args.before / "bench/training.py", *timed, "--out", out / "training_before.json"]
            yield Part("training", "training before", 90, command)

        common = f"{TINY if tiny else ''} {args.flags}".split()
        short = [] if tiny else ["--max_steps=800", "--eval_interval=800"]
        for name, recipe in RECIPES.items():
            run = self.runs("trials") / name
            flags = [*recipe.split(), *short, *common, f"--name={name}", f"--out_dir={run}"]
            resume = ["--resume"] * (run / "last").is_dir()
            command = ["train.py", "config/baseline.py", "config/brief_124M.py", *flags, *resume]
            yield Part("trials", name, 120, command, run)

        if (recipe := self.recipe()) is not None:
            both = {"": TEXTS, "_paper": f"{TEXTS} --protocol=paper"}
            yield from self.table("124M", "heads_124M", 300, recipe, both)
        elif "124M" in args.parts:
            print("== 124M: no trial has ended well, so it has no recipe", flush=True)
        yield from self.table("12M", "sig_gpt_12M", 150, "", {"": ""})

        small = "--rows=16 --dim=8 --vocab 70 --rounds=1 --heads sigmoid --dtypes float32"
        size = small if tiny else "--rows=8192 --dim=768"
        yield Part(
            "heads", "heads", 300, ["bench/heads.py", *device, *size.split(), "--out", out / "heads.json"]
        )
        size = ["--size=tiny", "--tokens=5", "--rounds=1"] if tiny else ["--batches", "1", "64"]
        command = ["bench/sampling.py", *device, *size, *beside, "--out", out / "sampling.json"]
        yield Part("sampling", "sampling", 300, command)

    def table(
        self, group: str, table: str, limit: int, recipe: str, evaluations: dict[str, str]
    ) -> Iterator[Part]:
        """A part for each row of a table and each evaluation, by what its name ends with: the first trains
        the row, each measures it beside those that ended well."""
        from common.config import read_config  # pydantic, which may be missing

        config, good = read_config(f"config/tables/{table}.py"), []
        flags = " ".join([config.get("flags", ""), recipe, TINY if self.tiny else "", self.args.flags])
        for row in config["rows"]:
            name = f"{group} {row.split()[0]}"
            asked = [f"--rows={[*good, row]}", f"--flags={flags}", f"--results={self.results}"]
            asked += [f"--runs={self.runs(table)}", *["--seeds=[1]"] * self.tiny]
            for end, texts in evaluations.items():
                measured = f"--evaluate={texts} {TINY_TEXTS if self.tiny else ''}"
                command = ["table.py", f"config/tables/{table}.py", *asked, f"--name={table}{end}"]
                if not end or self.ended_well(name):
                    yield Part(group, name + end, limit if not end else 120, [*command, measured])
            good += [row] if self.ended_well(name) else []

    def runs(self, name: str) -> Path:
        """The folder of a table's runs."""
        return (self.out / "runs" if self.tiny else Path("out")) / name


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--minutes", type=float, default=25)
    p.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    p.add_argument("--size", choices=("124M", "tiny"), default="124M")
    for name in ("--nanogpt", "--before", "--out"):
        p.add_argument(name, type=lambda path: Path(os.path.relpath(path, REPO)), metavar="DIR")
    p.add_argument("--flags", default="", help="of train.py, given to all trainings: --flags=--dataset=NAME")
    args = p.parse_args()
    tiny = args.size == "tiny"
    if tiny and not args.out:
        p.exit(2, "gpu.py: --size tiny leaves no results to keep: give --out DIR\n")
    import torch

    if not tiny and not torch.cuda.is_available():
        p.exit(2, "gpu.py: torch sees no CUDA GPU here: --size tiny goes through the list on a CPU\n")
    from bench.timing import machine

    os.chdir(REPO)  # rows have their command in them: no path of this machine
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lease = Lease(args, machine("cpu" if tiny else "cuda"))
    for part in lease.plan():
        lease.run(part)
    return int(lease.failed)


if __name__ == "__main__":
    sys.exit(main())
