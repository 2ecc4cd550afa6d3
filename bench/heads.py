"""The chunked head against materialised logits: seconds and peak memory of forward and backward.

    python bench/heads.py [--rows 2048] [--dim 384] [--vocab 50257] [--repeats 5] [--out bench/heads.json]

Each (head, way, dtype) runs in a process of its own, which reports the median time of its repeats and its peak memory above what inputs and
parameters took; ways alternate, so that a slow minute of the machine meets both. `linear_ce` is torch's own F.linear_cross_entropy, where it has one.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.nn.functional as F
from torch import nn

from heads import HEADS, OutputHead, Targets, chunked_loss, make_head

WAYS = ("materialised", "chunked", "linear_ce")
LABELS = 51


def loss(way: str, oh: OutputHead, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
    weights = oh.projection.draw()
    if way == "chunked":
        return chunked_loss(hidden, weights, oh.head, targets)
    V = oh.head.vocab_size
    if way == "linear_ce":
        return F.linear_cross_entropy(hidden, weights.weight[:V], targets.token, reduction="sum", chunking_strategy="auto") 
    logits = F.linear(hidden, weights.weight)[:, :V].float()
    return oh.head.loss(logits if weights.bias is None else logits + weights.bias, targets).sum()


def measure(way: str, head: str, dtype: str, rows: int, dim: int, vocab: int, repeats: int) -> dict:
    """In this process: median seconds of forward + backward, and the peak of resident memory above inputs, parameters and their gradients."""
    torch.manual_seed(0)
    oh = make_head(head, vocab, nn.Parameter(0.02 * torch.randn(-(-vocab // 64) * 64, dim)))
    hidden = torch.randn(rows, dim, requires_grad=True)
    multi = HEADS[head].multi_label
    ids = torch.stack([torch.randperm(vocab)[:LABELS if multi else 1] for _ in range(rows)])
    targets = Targets(ids, torch.ones(ids.shape))
    for p in (hidden, *oh.parameters()):
        p.grad = torch.zeros_like(p).add_(1)  # touched: its pages count as ours before the run
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            total = loss(way, oh, hidden, targets)
        total.backward()
        seconds.append(time.perf_counter() - start)
    return {"seconds": statistics.median(seconds[1:]), "peak_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, "loss": total.item() / rows}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 2048), ("dim", 384), ("vocab", 50257), ("repeats", 5)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--out", type=Path)
    p.add_argument("--one", nargs=3, metavar=("WAY", "HEAD", "DTYPE"), help=argparse.SUPPRESS)
    args = p.parse_args()
    size = (args.rows, args.dim, args.vocab, args.repeats)
    if args.one:
        print(json.dumps(measure(*args.one, *size)))
        return
    results = []
    for dtype in ("float32", "bfloat16"):
        for head in HEADS:
            for way in WAYS:
                if way == "linear_ce" and (head != "softmax" or not hasattr(F, "linear_cross_entropy")):
                    continue
                command = [sys.executable, __file__, "--one", way, head, dtype, *(f"--{n}={v}" for n, v in zip(("rows", "dim", "vocab", "repeats"), size))]
                done = subprocess.run(command, capture_output=True, text=True)
                if done.returncode:
                    print(f"{dtype} {head} {way}: skipped, {done.stderr.strip().splitlines()[-1]}")
                    continue
                results.append({"dtype": dtype, "head": head, "way": way, **json.loads(done.stdout)})
                r, base = results[-1], next(x for x in results if x["dtype"] == dtype)
                print(f"{dtype:9} {head:16} {way:13} {r['seconds']:6.3f} s ({r['seconds'] / base['seconds']:.2f}x of materialised softmax), {r['peak_mb']:6.0f} MB ({r['peak_mb'] / base['peak_mb']:.0%})", flush=True)
    if args.out:
        machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads(), "cpu": platform.processor() or platform.machine(), "torch": torch.__version__}
        args.out.write_text(json.dumps({"command": " ".join(sys.argv), "size": dict(zip(("rows", "dim", "vocab", "repeats"), size)), "machine": machine, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
