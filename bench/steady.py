"""How steady a head's step is, quiet and beside busy processes: plain F.cross_entropy and chunked heads.

    python bench/steady.py [--heads softmax sigmoid] [--busy 0 1 2] [--runs 20] [--out bench/steady.json]

Each head has a process of its own; they take turns, a forward and backward each a round, so that only one
works at a time. The busy processes are single threads of Python arithmetic. Every run's seconds are kept:
beside other work it is the worst run that tells.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.common import Served, median, serve, serve_turns, write
from bench.heads import Case
from heads import HEADS

PLAIN = "F.cross_entropy"  # of softmax's logits, materialised
# Looks for its parent now and then, so that it ends even when the bench is killed
SPIN = """
import os, sys
x = 1
while os.getppid() == int(sys.argv[1]):
    for _ in range(10**6):
        x = x * 5 % 1000003
"""


@contextmanager
def busy(count: int) -> Iterator[None]:
    """`count` processes that keep a core each busy while the block runs."""
    spinning: list[subprocess.Popen] = []
    try:
        for _ in range(count):
            spinning.append(subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())]))
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


class Step:
    """One head's forward and backward, again and again."""

    def __init__(self, name: str, args: argparse.Namespace):
        self.way = "plain" if name == PLAIN else "chunked"
        self.case = Case("softmax" if name == PLAIN else name, args.dtype, args.rows, args.dim, args.vocab)

    def step(self) -> None:
        self.case.step(self.way)

    def report(self) -> None: ...


def measure(programs: dict[str, Served], count: int, runs: int) -> list[dict]:
    """The runs of each program beside `count` busy processes, and what they are of the first's, PLAIN's."""
    with busy(count):
        seconds = serve_turns(programs, runs, 1)
    results = []
    for name, times in seconds.items():
        r = {"busy": count, "program": name, "median": median(times), "worst": max(times)}
        plain = results[0] if results else r
        r |= {f"{key}_of_plain": r[key] / plain[key] for key in ("median", "worst")}
        results.append({**r, "seconds": times})
        print(
            f"{count} busy  {name:16} median {r['median']:.3f} s ({r['median_of_plain']:.2f}x of plain's), "
            f"worst {r['worst']:7.3f} s ({r['worst_of_plain']:.2f}x of plain's)",
            flush=True,
        )
    return results


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 2048), ("dim", 384), ("vocab", 50257), ("runs", 20)):
        p.add_argument(f"--{name}", type=int, default=default)
    p.add_argument("--heads", nargs="+", choices=HEADS, default=["softmax", "sigmoid", "gs_softmax_f2"])
    p.add_argument("--busy", type=int, nargs="+", default=[0, 1, 2], help="processes that are busy beside")
    p.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    p.add_argument("--out", type=Path)
    p.add_argument("--serve", help=argparse.SUPPRESS)
    return p.parse_args()


def main() -> None:
    args = parse()
    if args.serve:
        return serve(lambda: Step(args.serve, args))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # through `finally`, as Ctrl-C
    programs = {name: Served(name, [__file__, *sys.argv[1:]]) for name in (PLAIN, *args.heads)}
    results = [r for count in args.busy for r in measure(programs, count, args.runs)]
    for program in programs.values():
        program.close()
    settings = {key: getattr(args, key) for key in ("dtype", "rows", "dim", "vocab", "runs")}
    write(args.out, settings, results)


if __name__ == "__main__":
    main()
