"""Training steps of this checkout against those of another one: has a change made anything slower?

    git worktree add ../before COMMIT
    python bench/versus.py ../before [--rows baseline sig_gpt] [--rounds 9] [--out bench/versus.json]

Both train the same rows on the same random tokens, with one label store. Each row of each checkout has a
process of its own, `bench/training.py` of that checkout. They take turns, a step each a round. Two rounds
warm up, medians count. Losses are compared, too: equal to the last bit or not.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(HERE))

from bench.common import Served, arguments, median, turns, write
from bench.training import SIZES, random_part

ROWS = ("baseline", "bayes_gpt", "gs_softmax_f1", "sig_gpt", "unlikelihood")


def parse() -> argparse.Namespace:
    p = arguments(__doc__, rounds=9)
    p.add_argument("other", type=Path, help="another checkout of this repository")
    p.add_argument("--rows", nargs="+", default=list(ROWS))
    p.add_argument("--size", choices=SIZES, default="30M")
    return p.parse_args()


def commit(checkout: Path) -> str:
    git = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()


def main() -> None:
    args = parse()
    checkouts = {"before": args.other.resolve(), "now": HERE}
    results = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = random_part(128, SIZES[args.size]["block_size"], Path(temporary))
        common = ["--folder", str(folder), "--size", args.size]

        def program(checkout: Path) -> list[str]:
            return [str(checkout / "bench" / "training.py"), *common]

        subprocess.run([sys.executable, *program(checkouts["before"]), "--serve", "teacher"], check=True)
        for row in args.rows:
            programs = {when: Served(row, program(checkout)) for when, checkout in checkouts.items()}
            seconds = turns(programs, args.rounds, 2)
            losses = {when: p.close()["losses"] for when, p in programs.items()}
            ratios = [now / before for before, now in zip(seconds["before"], seconds["now"])]
            result = {
                "row": row,
                "seconds_before": median(seconds["before"]),
                "seconds_now": median(seconds["now"]),
                "now_over_before": median(ratios),
                "same_losses": losses["before"] == losses["now"],
            }
            results.append(result)
            print(result, flush=True)
    commits = {when: commit(checkout) for when, checkout in checkouts.items()}
    write(args, ["size", "rounds"], results, **commits)


if __name__ == "__main__":
    main()
