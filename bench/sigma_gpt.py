"""idiap/sigma-gpt's programs beside ours, on the known language: a step, what is learnt, and text at once.

    python bench/sigma_gpt.py --sigma_gpt=DIR [--steps=200] [--full=4000] [--texts=64] [--rounds=3]
                              [--out=bench/sigma_gpt.json]

DIR is a clone with its submodule text/nanoGPT, unchanged. Its train.py and sample.py run as its users start
them, in turn with ours: the same tokens, sizes, schedule, optimizer and random order, in float32, the dtype
that theirs has on a CPU; ours also in its own, `auto`. Nothing of theirs is imported. Texts begin with the
same word, and are judged by the exact truth; seconds a text are the difference of many texts and one, so that
no start of a program counts.

What stays different: theirs has no start token, so it predicts 31 of 32 places and needs a word to begin
with; its windows begin anywhere, ours on a grid; its sample.py writes one text at a time, ours all of them.
"""

import argparse
import json
import math
import pickle
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.common import median, write
from data.held_out import open_held_out
from data.prepared import tokenizer_of
from evaluation.two_sided import two_sided
from runtime import checkpoint

FIRST = 0x4E00  # of the characters that stand for words in their text files: none of them is a space
THEIRS = {  # config/orders.py and the defaults of train.py, in their words
    "batch_size": 64,
    "block_size": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 96,
    "dropout": 0.0,
    "bias": True,
    "learning_rate": 6e-3,
    "min_lr": 6e-4,
    "warmup_iters": 100,
    "weight_decay": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "grad_clip": 1.0,
    "gradient_accumulation_steps": 1,
    "device": "cpu",
    "dtype": "float32",
    "compile": False,
    "order_type": "random",
    "dataset": "nanoheads",
}


WAYS = {  # of ours
    "burst": ["--burst", "--orders=5"],  # as many as theirs has
    "sequential": [],
    "speculative": ["--speculative"],
}


class Said(NamedTuple):
    out: str
    err: str
    seconds: float


def said_by(arguments: list[str], folder: Path) -> Said:
    """What a program prints, and its seconds."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed in {folder}:\n{done.stderr[-2000:]}")
    return Said(done.stdout, done.stderr, time.perf_counter() - began)


def flags(settings: dict[str, Any]) -> list[str]:
    return [f"--{key}={value}" for key, value in settings.items()]


class Theirs:
    def __init__(self, clone: Path, data: Path, out: Path):
        self.folder, self.out = clone / "text", out / "theirs"
        corpus = self.folder / "nanoGPT/data/nanoheads"
        corpus.mkdir(exist_ok=True)
        for name in ("train", "validation"):
            ids = open_held_out(data / f"{name}.bin").ids
            ids.astype(np.uint16).tofile(corpus / f"{name.replace('validation', 'val')}.bin")
        self.vocab = int(open_held_out(data / "validation.bin").info["vocab_size"])
        words = {i: f"{i} " for i in range(self.vocab)}
        letters = {chr(FIRST + i): i for i in words}
        meta = {"vocab_size": self.vocab, "itos": words, "stoi": letters}
        (corpus / "meta.pkl").write_bytes(pickle.dumps(meta))  # the format that nanoGPT reads

    def train(self, steps: int, decay: int) -> tuple[list[float], dict[str, float]]:
        """Seconds of each step but the first, in which it evaluates; validation nats a token by order."""
        own = {"max_iters": steps, "lr_decay_iters": decay, "log_interval": 1, "eval_iters": 50}
        settings = THEIRS | own | {"eval_interval": steps, "out_dir": self.out}
        said = said_by(["train.py", *flags(settings)], self.folder).out
        ms = [float(x) for x in re.findall(r"^iter \d+: .*?time ([\d.]+)ms", said, re.M)]
        random, ltr = re.findall(r"^step \d+: .*?val loss ([\d.]+) .*?([\d.]+)$", said, re.M)[-1]
        return [x / 1000 for x in ms[1:-1]], {"random": float(random), "left_to_right": float(ltr)}

    def sample(self, count: int, first: int, way: str) -> tuple[np.ndarray, float, list[int]]:
        """Texts (count, 32), seconds, and its rounds of each text. `way`: burst, sequential or cached."""
        settings = {"out_dir": self.out, "device": "cpu", "dtype": "float32", "num_samples": count}
        settings |= {"max_tokens": 32, "verbose": False, "prompt": chr(FIRST + first)}
        if way != "burst":
            settings |= {"use_rejection_sampling": False, "use_kv": way == "cached"}
        said, _, seconds = said_by(["sample.py", *flags(settings)], self.folder)
        texts = re.findall(r"^((?:\d+ ){32})$", said, re.M)
        rounds = [int(x) for x in re.findall(r"^-+:(\d+)steps", said, re.M)]
        return np.array([[int(i) for i in text.split()] for text in texts]), seconds, rounds


class Drawn(NamedTuple):
    passes: int  # model evaluations
    seconds: float  # without the start of the program


class Ours:
    def __init__(self, out: Path, dtype: str):
        self.out, self.dtype = out / f"ours-{dtype}", dtype

    def train(self, steps: int, decay: int) -> tuple[list[float], dict[str, float]]:
        settings = {"dtype": self.dtype, "max_steps": steps, "lr_decay_steps": decay, "eval_interval": steps}
        settings |= {"out_dir": self.out, "name": "ours", "device": "cpu"}
        shutil.rmtree(self.out, ignore_errors=True)  # a run is not written over
        said_by(["train.py", "config/sigma_gpt_random.py", "config/orders.py", *flags(settings)], ROOT)
        log = [json.loads(line) for line in (self.out / "log.jsonl").read_text().splitlines()]
        config = checkpoint.load(checkpoint.find(self.out, "last"), weights=False).config
        tokens = config["batch_size"] * config["block_size"]
        seconds = [tokens / r["tokens_per_s"] for r in log if r.get("tokens_per_s")]
        nll = {order: math.log(log[-1][f"val_ppl_{order}"]) for order in ("random", "left_to_right")}
        return seconds[1:], nll

    def sample(self, count: int, text: str, way: str) -> tuple[list[str], float, Drawn]:
        """Texts, seconds with the start of the program, and what it says of the drawing."""
        settings = {"which": "last", "num_samples": count, "device": "cpu", "dtype": self.dtype}
        what = ["sample.py", str(self.out), f"--infill={text}", *flags(settings), *WAYS[way]]
        said, err, seconds = said_by(what, ROOT)
        passes, own = re.search(r"(\d+) model evaluations .*? ([\d.]+) s$", err, re.M).groups()
        texts = [text[:-1] for text in re.split(r"^--- sample \d+\n", said, flags=re.M)[1:]]
        return texts, seconds, Drawn(int(passes), float(own))


def compared(programs: dict[str, Theirs | Ours], steps: int, full: int, rounds: int) -> dict[str, Any]:
    """A step's seconds, in turn; then what each has learnt at the end of one whole training."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            seconds[name].append(median(program.train(steps, full)[0]))
            print(f"{name}: {seconds[name][-1]:.4f} s a step", file=sys.stderr, flush=True)
    ratio = {name: median([a / b for a, b in zip(seconds["theirs"], own)]) for name, own in seconds.items()}
    learnt = {name: program.train(full, full)[1] for name, program in programs.items()}
    return {"seconds_a_step": seconds, "theirs_over": ratio, "validation_nats_a_token": learnt}


def written(theirs: Theirs, ours: Ours, data: Path, texts: int, rounds: int) -> list[dict[str, Any]]:
    """A row for each sampler: seconds a text, timed in turn, rounds or evaluations, the truth's judgement."""
    held = open_held_out(data / "validation.bin")
    truth, end = two_sided(held, "grammar", 32), held.truth.end
    tokenizer = tokenizer_of(checkpoint.load(checkpoint.find(ours.out, "last"), weights=False))
    begun = tokenizer.decode([end]) + "<31>"
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for _ in range(rounds):
        for way in ("burst", "sequential", "cached"):
            one, (ids, many, times) = theirs.sample(1, end, way)[1], theirs.sample(1 + texts, end, way)
            row = rows.setdefault(("theirs", way), {"seconds_a_text": [], "rounds": float(np.mean(times))})
            row["seconds_a_text"].append((many - one) / texts)
            row |= truth.judge(ids)
        for way in WAYS:
            _, one, alone = ours.sample(1, begun, way)
            said, many, drawn = ours.sample(1 + texts, begun, way)
            row = rows.setdefault(("ours", way), {"seconds_a_text": [], "seconds_alone": []})
            row["seconds_a_text"].append((many - one) / texts)
            row["seconds_alone"].append(alone.seconds)
            row |= {"evaluations_alone": alone.passes, "evaluations_of_all": drawn.passes}
            row |= truth.judge(np.array([tokenizer.encode(text) for text in said]))
    return [{"program": program, "sampler": way, **row} for (program, way), row in rows.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sigma_gpt", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--full", type=int, default=4000)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    c = parser.parse_args()
    if not (c.sigma_gpt / "text/nanoGPT/data").is_dir():
        parser.error(f"--sigma_gpt={c.sigma_gpt} has no text/nanoGPT/data: give a clone with its submodule")
    data = ROOT / "data/grammar/words"
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(Path(folder), "float32")
        ours.train(1, 1)  # prepares the corpus
        theirs = Theirs(c.sigma_gpt.resolve(), data, Path(folder))
        programs = {"theirs": theirs, "ours": ours, "ours, auto": Ours(Path(folder), "auto")}
        found = compared(programs, c.steps, c.full, c.rounds)
        found["samplers"] = written(theirs, ours, data, c.texts, c.rounds)
    print(json.dumps(found, indent=1))
    settings = {k: v for k, v in vars(c).items() if k not in ("sigma_gpt", "out")}
    write(c.out, settings, found)


if __name__ == "__main__":
    main()
