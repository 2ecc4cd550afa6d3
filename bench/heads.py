"""The chunked head against materialised logits: seconds and peak memory of forward and backward.

    python bench/heads.py [--heads softmax sigmoid] [--dtypes bfloat16] [--rows 2048] [--dim 384]
                          [--vocab 50257 ...] [--rounds 5] [--device cpu] [--out bench/heads.json]

plain         F.cross_entropy of logits, what everybody does: the base of all ratios
materialised  the head's own loss, of all logits at once
chunked       ours
linear_ce     torch's own F.linear_cross_entropy with chunking, if this torch has it
products      the three bare products alone, of the logits and of both gradients: the floor of all ways

Time: the ways of a head take turns in one process, so that a slow minute of the machine hits all of them. The
median counts. cpu_seconds is the least CPU time of a step, of all its threads: other programs change it less.
Memory: each has a process, which reports its peak above inputs, parameters and gradients.
On a GPU the head's loss is compiled, as in train.py, and memory is what torch's allocator gave out.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from torch import nn

from bench.timing import arguments, dtypes, memory_mb, timed, turns, write
from common.device import DTYPES, autocast
from heads import Targets, chunked_loss, make_head, project

WAYS = ["plain", "materialised", "chunked", "linear_ce", "products"]
if not hasattr(nn, "LinearCrossEntropyOptions"):
    WAYS.remove("linear_ce")
LABELS = 51


def make_step(head: str, dtype: str, rows: int, dim: int, vocab: int, device: str) -> Callable[[str], None]:
    """A head with its inputs, parameters and gradients: what is returned does a forward and a backward by
    one of the WAYS."""
    torch.manual_seed(0)
    weight = nn.Parameter(0.02 * torch.randn(-(-vocab // 64) * 64, dim))
    oh = make_head(head, vocab, weight).to(device)
    if device.startswith("cuda"):
        torch.compiler.reset()  # which keeps 8 compilations of the function that all heads share
        oh.compile()
    hidden = torch.randn(rows, dim, device=device, requires_grad=True)
    ids = torch.randint(vocab, (rows, LABELS if oh.head.multi_label else 1), device=device)
    targets = Targets(ids, torch.ones(ids.shape, device=device))
    for p in (hidden, *oh.parameters()):
        p.grad = torch.ones_like(p)  # written: its pages count as taken before the run

    def step(way: str) -> None:
        weights = oh.projection.draw()
        with autocast(device, dtype):
            if way == "products":
                with torch.no_grad():
                    z = hidden @ weights.weight[:vocab].t()
                    # z as its gradient, of the same shape and dtype
                    _ = z @ weights.weight[:vocab], z.t() @ hidden
                return
            if way == "plain":
                logits = F.linear(hidden, weights.weight)[:, :vocab].float()
                total = F.cross_entropy(logits, targets.token, reduction="sum")
            elif way == "linear_ce":
                how = dict(reduction="sum", options=nn.LinearCrossEntropyOptions())
                total = F.linear_cross_entropy(hidden, weights.weight[:vocab], targets.token, **how)
            elif way == "chunked":
                total = chunked_loss(hidden, weights, oh.head, targets)
            else:
                total = oh.head.loss(project(hidden, weights, oh.head), targets).sum()
        total.backward()

    return step


def step_mb(way: str, head: str, dtype: str, rows: int, dim: int, vocab: int, device: str) -> float:
    """Memory that one step takes in this process at its peak, in MB, beyond what was in use before it."""
    # libraries allocate their own once; what a step of the real size frees might stay with the allocator
    make_step(head, dtype, 8, 8, 64, device)(way)
    step = make_step(head, dtype, rows, dim, vocab, device)
    if device.startswith("cuda"):
        step(way)  # compiles for this size
        torch.cuda.reset_peak_memory_stats(device)
    before = memory_mb(device, peak=False)
    if device == "cpu":
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again here
    step(way)
    return memory_mb(device) - before


def compare(head: str, dtype: str, ways: list[str], args: argparse.Namespace, vocab: int) -> list[dict]:
    """Median seconds and peak memory of each way; the first step of each warms up."""
    step = make_step(head, dtype, args.rows, args.dim, vocab, args.device)
    cpu: dict[str, list[float]] = {way: [] for way in ways}

    def clock(way: str) -> float:
        start = time.process_time()
        seconds = timed(partial(step, way), args.device)
        cpu[way].append(time.process_time() - start)
        return seconds

    seconds = turns({way: partial(clock, way) for way in ways}, args.rounds)
    size = f"--rows={args.rows} --dim={args.dim} --vocab={vocab} --device={args.device}".split()
    results = []
    for way in ways:
        r = {"dtype": dtype, "vocab": vocab, "head": head, "way": way, "seconds": seconds[way]}
        command = [sys.executable, __file__, *size, "--peak", way, head, dtype]
        peak = float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        results.append({**r, "cpu_seconds": min(cpu[way]), "peak_mb": peak})
    return results


def main() -> None:
    p = arguments(__doc__, rounds=5)
    p.add_argument("--device", default="cpu")
    p.add_argument("--rows", type=int, default=2048)
    p.add_argument("--dim", type=int, default=384)
    p.add_argument("--vocab", type=int, nargs="+", default=[50257], help="each of them in turn")
    usual = ["softmax", "label_smoothing", "sigmoid", "gs_softmax_f1", "gs_softmax_f2"]
    p.add_argument("--heads", nargs="+", default=usual, help="softmax first: the base")
    p.add_argument("--dtypes", nargs="+", choices=DTYPES, help="default: float32, and auto's")
    p.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    p.add_argument("--peak", nargs=3, metavar=("WAY", "HEAD", "DTYPE"), help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.peak:
        return print(step_mb(*args.peak, args.rows, args.dim, args.vocab[0], args.device))
    results: list[dict] = []
    for dtype, vocab in product(args.dtypes or dtypes(args.device), args.vocab):
        base = None  # plain softmax: the first of a dtype and size
        for head in args.heads:
            ways = [w for w in args.ways if head == "softmax" or w in ("materialised", "chunked")]
            for r in compare(head, dtype, ways, args, vocab):
                base = base or r
                results.append(r)
                ratio, memory = r["seconds"] / base["seconds"], r["peak_mb"] / max(base["peak_mb"], 1)
                row = f"{dtype:9} {vocab:7,} {head:16} {r['way']:13} {r['seconds']:6.3f} s ({ratio:.2f}x of"
                print(f"{row} plain softmax), {r['peak_mb']:6.0f} MB ({memory:.0%})", flush=True)
    write(args, ["rounds", "rows", "dim", "vocab"], results, args.device, labels=LABELS)


if __name__ == "__main__":
    main()
