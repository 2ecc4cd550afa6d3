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
from functools import partial
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from torch import nn

from bench.timing import arguments, dtypes, median, resident_mb, turns, write
from common.device import DTYPES, autocast
from common.places import registered
from heads import OutputHead, Targets, chunked_loss, make_head, project

WAYS = ("plain", "materialised", "chunked", "linear_ce", "products")
LABELS = 51


def loss(way: str, oh: OutputHead, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
    weights = oh.projection.draw()
    if way == "chunked":
        return chunked_loss(hidden, weights, oh.head, targets)
    V = oh.head.vocab_size
    if way == "plain":
        logits = F.linear(hidden, weights.weight)[:, :V].float()
        return F.cross_entropy(logits, targets.token, reduction="sum")
    if way == "linear_ce":
        return F.linear_cross_entropy(
            hidden, weights.weight[:V], targets.token, reduction="sum", options=nn.LinearCrossEntropyOptions()
        )
    return oh.head.loss(project(hidden, weights, oh.head), targets).sum()


class Case:
    """Inputs, parameters and their gradients of one head; `step(way)` is a forward and a backward."""

    def __init__(self, head: str, dtype: str, rows: int, dim: int, vocab: int, device: str = "cpu"):
        torch.manual_seed(0)
        self.device, self.dtype = torch.device(device), dtype
        weight = nn.Parameter(0.02 * torch.randn(-(-vocab // 64) * 64, dim))
        self.oh = make_head(head, vocab, weight).to(self.device)
        if self.device.type == "cuda":
            torch.compiler.reset()  # which keeps 8 compilations of the function that all heads share
            self.oh.compile()
        self.hidden = torch.randn(rows, dim, device=self.device, requires_grad=True)
        ids = torch.randint(vocab, (rows, LABELS if self.oh.head.multi_label else 1), device=self.device)
        self.targets = Targets(ids, torch.ones(ids.shape, device=self.device))
        for p in (self.hidden, *self.oh.parameters()):
            p.grad = torch.ones_like(p)  # written: its pages count as taken before the run

    def step(self, way: str) -> None:
        with autocast(self.device, self.dtype):
            if way == "products":
                return self.products()
            total = loss(way, self.oh, self.hidden, self.targets)
        total.backward()

    @torch.no_grad()
    def products(self) -> None:
        weight = self.oh.projection.draw().weight[: self.oh.head.vocab_size]
        logits = self.hidden @ weight.t()
        logits @ weight, logits.t() @ self.hidden  # as their gradient, which has the same shape and dtype


def peak_mb(way: str, head: str, dtype: str, rows: int, dim: int, vocab: int, device: str = "cpu") -> float:
    """Memory that one step takes in this process at its peak, in MB, beyond what was in use before it."""
    # libraries allocate their own once; what a step of the real size frees might stay with the allocator
    Case(head, dtype, 8, 8, 64, device).step(way)
    case = Case(head, dtype, rows, dim, vocab, device)
    if case.device.type == "cuda":
        case.step(way)  # compiles for this size
        torch.cuda.reset_peak_memory_stats(case.device)
        before = torch.cuda.memory_allocated(case.device)
        case.step(way)
        return (torch.cuda.max_memory_allocated(case.device) - before) / 2**20
    before = resident_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    case.step(way)
    return resident_mb("VmHWM") - before


def peak_in_a_process(
    way: str, head: str, dtype: str, rows: int, dim: int, vocab: int, device: str = "cpu"
) -> float:
    size = [f"--rows={rows}", f"--dim={dim}", f"--vocab={vocab}", f"--device={device}"]
    command = [sys.executable, __file__, "--peak", way, head, dtype, *size]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def measure(head: str, dtype: str, ways: list[str], rounds: int, size: tuple) -> list[dict]:
    """Median seconds and peak memory of each way; the first step of each warms up."""
    vocab = size[2]
    case = Case(head, dtype, *size)
    cpu: dict[str, list[float]] = {way: [] for way in ways}

    def step(way: str, case: Case = case) -> None:
        start = time.process_time()
        case.step(way)
        cpu[way].append(time.process_time() - start)

    seconds = turns({way: partial(step, way) for way in ways}, rounds, 1, case.device)
    del case, step
    results = []
    for way in ways:
        r = {"dtype": dtype, "vocab": vocab, "head": head, "way": way, "seconds": median(seconds[way])}
        r["cpu_seconds"] = min(cpu[way])
        results.append({**r, "peak_mb": peak_in_a_process(way, head, dtype, *size)})
    return results


def show(r: dict, base: dict) -> None:
    """Prints a result, and what it is of `base`, plain softmax."""
    time_ratio, memory_ratio = r["seconds"] / base["seconds"], r["peak_mb"] / max(base["peak_mb"], 1)
    print(
        f"{r['dtype']:9} {r['vocab']:7,} {r['head']:16} {r['way']:13} "
        f"{r['seconds']:6.3f} s ({time_ratio:.2f}x of plain softmax), "
        f"{r['peak_mb']:6.0f} MB ({memory_ratio:.0%})",
        flush=True,
    )


def main() -> None:
    p = arguments(__doc__, rounds=5, device=True)
    for name, default in (("rows", 2048), ("dim", 384)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--vocab", type=int, nargs="+", default=[50257], help="each of them in turn")
    p.add_argument(
        "--heads",
        nargs="+",
        choices=registered("heads", "HEADS", "heads"),
        default=["softmax", "label_smoothing", "sigmoid", "gs_softmax_f1", "gs_softmax_f2"],
        help="softmax first: it is the base",
    )
    p.add_argument(
        "--dtypes", nargs="+", choices=DTYPES, help="default: float32, and what auto takes on the device"
    )
    p.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    p.add_argument("--peak", nargs=3, metavar=("WAY", "HEAD", "DTYPE"), help=argparse.SUPPRESS)
    args = p.parse_args()
    sizes = [(args.rows, args.dim, vocab, args.device) for vocab in args.vocab]
    if args.peak:
        print(peak_mb(args.peak[0], *args.peak[1:], *sizes[0]))
        return
    results = []
    for dtype, size in product(args.dtypes or dtypes(args.device), sizes):
        base = None  # plain softmax: the first of a dtype and size
        for head in args.heads:
            ways = [w for w in args.ways if head == "softmax" or w in ("materialised", "chunked")]
            if not hasattr(nn, "LinearCrossEntropyOptions"):
                ways = [w for w in ways if w != "linear_ce"]
            for r in measure(head, dtype, ways, args.rounds, size):
                base = base or r
                show(r, base)
                results.append(r)
    write(args, ["rounds", "rows", "dim", "vocab"], results, labels=LABELS)


if __name__ == "__main__":
    main()
