"""Whole training steps: rows of the table, and nanoGPT.

    python bench/training.py [--data data/wikitext103/gpt2] [--nanogpt DIR] [--size 30M] [--device cpu]
                             [--rounds 7] [--out bench/training.json]

Each program has a process of its own. They take turns, a step each a round; two rounds warm up, medians
count. cpu_seconds is the median CPU time of a step, of all threads: other programs change it less. Our rows
are train.py's `train_step` with dtype = "auto": labels, logs and checks included.

nanoGPT (DIR is a checkout of karpathy/nanoGPT) starts from our weights, sees our windows in our order, and is
stepped as in its train.py, with the optimizer that it configures. On a CPU it runs uncompiled, as its README
advises, in float32 and, if the CPU computes it, once more under autocast to bfloat16. On a GPU it is
compiled, in bfloat16.

On a GPU one program runs after the other, because most have no memory for all ten. `--data random` needs no
prepared folder: it takes random tokens of GPT-2's vocabulary. Losses then mean nothing; a step takes as long.
"""

import argparse
import math
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

import train
import training.text
from bench.timing import Served, arguments, dtypes, memory_mb, nanogpt, serve, turns, write
from common.config import read
from common.device import autocast, flops_per_token, peak_flops
from common.manifest import write_manifest
from common.places import find
from data.batches import batch_indices
from data.tokenizers import GPT2Tokenizer
from data.tokens import open_tokens, read_made, write_tokens
from training.checkpoint import save
from training.distributed import Processes

SIZES = {
    "30M": dict(n_layer=6, n_head=6, n_embd=384, block_size=256, batch_size=8),
    "124M-1024": dict(n_layer=12, n_head=12, n_embd=768, block_size=1024, batch_size=12),
    "1.7M": dict(n_layer=2, n_head=3, n_embd=192, block_size=256, batch_size=4),  # the tables', see brief.py
    "0.5M": dict(n_layer=2, n_head=4, n_embd=96, block_size=128, batch_size=16),  # and grammar_muon.py
    "tiny": dict(n_layer=1, n_head=2, n_embd=32, block_size=32, batch_size=8),
}
ROWS = "smooth_gpt bayes_gpt gs_softmax_f1 gs_softmax_f2 sig_gpt sig_gpt_sum sig_gpt_pw".split()
LR = 3e-4
WINDOWS = 128  # of the train split that are used
PARTS = "train", "validation"  # splits of the folder that is trained on


class Ours:
    """A training on the first windows of a prepared folder."""

    def __init__(self, row: str, size: str, device: str, folder: Path):
        config = read(train.TrainConfig, [str(find(f"config/{row}.py"))])
        own = dict(name=row, out_dir=str(folder / "out"), teacher=str(folder / "teacher"), device=device)
        schedule = dict(learning_rate=LR, min_lr=LR, warmup_steps=0, max_steps=10**6)
        config = replace(config, **SIZES[size], **own, **schedule)
        self.training = train.initialise(config, Processes(device))
        self.training.model.train()
        self.losses: list[torch.Tensor] = []

    def step(self) -> None:
        self.losses.append(train.train_step(self.training))

    def report(self) -> dict:
        t = self.training
        tokens = t.config.batch_size * t.config.block_size
        return {
            "dtype": t.config.dtype,
            "tokens": tokens,
            "losses": [loss.item() for loss in self.losses],
            "peak_mb": memory_mb(t.config.device),
            "flops_per_token": flops_per_token(t.model.trunk.config),
            "peak": peak_flops(t.procs.device, t.config.dtype),
        }


class NanoGPT:
    """karpathy/nanoGPT's model, optimizer and step, on our windows."""

    def __init__(self, checkout: Path, ours: Ours, mode: str, device: str):
        self.ours, self.device, self.losses = ours, device, []
        c, trunk = ours.training.config, ours.training.model.trunk
        self.model = nanogpt(checkout, trunk.config).to(device)
        weights = {f"transformer.{k}": p for k, p in trunk.state_dict().items()}
        self.model.load_state_dict(weights, strict=False)  # lm_head.weight is tied to wte
        self.on_gpu = device.startswith("cuda")
        betas, kind = (c.beta1, c.beta2), "cuda" if self.on_gpu else "cpu"
        self.optimizer = self.model.configure_optimizers(c.weight_decay, LR, betas, kind)
        self.run = torch.compile(self.model) if mode == "compiled" else self.model
        self.dtype = dtypes(device)[-1] if mode == "compiled" else mode

    def step(self) -> None:
        c, windows = self.ours.training.config, self.ours.training.task.windows
        indices = batch_indices(len(windows), c.batch_size, len(self.losses), c.seed)
        x, y = (t.contiguous() for t in windows.get(indices))
        if self.on_gpu:
            x, y = (t.pin_memory().to(self.device, non_blocking=True) for t in (x, y))
        with autocast(self.device, self.dtype):
            _, loss = self.run(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), c.grad_clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.losses.append(loss.item())

    def report(self) -> dict:
        own = {"dtype": self.dtype, "losses": self.losses, "peak_mb": memory_mb(self.device)}
        peak = peak_flops(torch.device(self.device), self.dtype)
        return {**self.ours.report(), **own, "peak": peak}


def make_part(data: Path, windows: int, block_size: int, folder: Path) -> Path:
    """A prepared folder with the first `windows` windows of `data`'s splits, whose labels are soon stored; or
    of random tokens of GPT-2's vocabulary, for which no hub and no text are needed."""
    size = windows * block_size + 1
    if data == Path("random"):
        rng, V = np.random.default_rng(0), GPT2Tokenizer.vocab_size
        made = {"tokenizer": GPT2Tokenizer.name, "fingerprint": GPT2Tokenizer.fingerprint, "vocab_size": V}
        made |= {
            "source": "random",
            "splits": {name: {"sha256": "random", "complete": True} for name in PARTS},
        }
        ids = {split: rng.integers(V, size=size) for split in PARTS}
    else:
        made = read_made(data)
        made["splits"] = {split: made["splits"][split] for split in PARTS}
        ids = {split: np.asarray(open_tokens(data / f"{split}.bin").ids[:size]) for split in PARTS}
        for name in {"tokenizer.json"} & made["files"].keys():
            shutil.copy(data / name, folder)
    for split in PARTS:
        write_tokens(folder / f"{split}.bin", [ids[split]], made["vocab_size"])
    write_manifest(folder, made, [path.name for path in folder.iterdir()])
    return folder


def make_program(name: str, args: argparse.Namespace) -> Ours | NanoGPT:
    """The program called `name`: a row of the table, or "nanoGPT, MODE"."""
    base, _, how = name.partition(", ")
    make = partial(Ours, size=args.size, folder=args.folder)
    if base == "nanoGPT":
        # our weights and windows, on the CPU: the peak memory of a GPU is to be nanoGPT's alone
        return NanoGPT(args.nanogpt, make("baseline", device="cpu"), how, args.device)
    return make(base, device=args.device)


def main() -> None:
    p = arguments(__doc__, rounds=7)
    corpus = Path("data/wikitext103/gpt2")
    p.add_argument("--data", type=Path, default=corpus, help="a prepared folder, or: random")
    p.add_argument("--device", default="cpu")
    p.add_argument("--nanogpt", type=Path)
    p.add_argument("--size", choices=SIZES, default="30M")
    p.add_argument("--rows", nargs="*", default=ROWS, help="beside the baseline and nanoGPT")
    p.add_argument("--serve", help=argparse.SUPPRESS)
    p.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = p.parse_args()

    # -- In a process of its own: the teacher, a model of the student's size as initialised; or a program
    training.text.prepared = lambda *_: args.folder
    if args.serve == "teacher":
        t = Ours("baseline", args.size, args.device, args.folder).training
        return save(args.folder / "teacher/best", t.model, t.config, t.progress, None, t.task.tokenizer)
    if args.serve:
        return serve(lambda: make_program(args.serve, args), args.device)

    # -- In turns
    on_gpu = args.device.startswith("cuda")
    modes = ["compiled"] if on_gpu else dtypes()
    names = ["baseline", *(f"nanoGPT, {mode}" for mode in modes if args.nanogpt), *args.rows]
    seconds, reports = {}, {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = make_part(args.data, WINDOWS, SIZES[args.size]["block_size"], Path(temporary))
        again = [__file__, "--folder", str(folder), *sys.argv[1:]]
        subprocess.run([sys.executable, *again, "--serve", "teacher"], check=True)
        # together on a CPU, a step each a round; on a GPU one after the other
        for group in [[name] for name in names] if on_gpu else [names]:
            # train.py asks for huge pages before it imports torch. nanoGPT is to run as its users start it
            theirs = {"THP_MEM_ALLOC_ENABLE": "0"}
            programs = {n: Served(n, again, **(theirs if n.startswith("nanoGPT") else {})) for n in group}
            seconds |= turns({name: program.ask for name, program in programs.items()}, args.rounds, 2)
            reports |= {name: program.ask("report") for name, program in programs.items()}

    # -- What they did
    results: list[dict] = []
    for name in names:
        r = {"program": name, "seconds": seconds[name], **reports[name]}
        r["tokens_per_s"] = r["tokens"] / r["seconds"]
        r["speed_of_baseline"] = r["tokens_per_s"] / (results[0] if results else r)["tokens_per_s"]
        if r["peak"]:
            r["mfu"] = r["tokens_per_s"] * r["flops_per_token"] / r["peak"]
        results.append(r)
        print(
            f"{name:28} {r['seconds'] * 1e3:9.1f} ms  {r['tokens_per_s']:10,.0f} tok/s  "
            f"{r['speed_of_baseline']:.2f}x of our baseline's speed  loss {r['losses'][-1]:.3f}  "
            f"peak {r['peak_mb']:,.0f} MB  MFU {r.get('mfu', math.nan):.1%}",
            flush=True,
        )
    write(args, ["size", "rounds", "data"], results, args.device)


if __name__ == "__main__":
    main()
