"""What scoring and labelling cost beside the bare forward pass, and how the chunked head's memory grows with its rows.

    python bench/scaling.py [--data data/wikitext103/gpt2] [--size 30M] [--tokens 0] [--rounds 5] [--out bench/scaling.json]

Programs take turns; medians count. The bare forward pass is the trunk and the product with the whole vocabulary of every position, in the same windows
and dtype, its logits thrown away. `evaluation`: scoring.score of the validation split (--tokens of it; 0: all). `store`: augment.build_store, k = 50 at half
of the positions, of as many training tokens, in the dtype that
"auto" takes. `memory`, in the same: peak above inputs, parameters and gradients of one chunked loss, forward
and backward.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

import augment
from bench.common import dtypes, median, turns, write
from bench.heads import peak_in_a_process
from bench.training import SIZES, prepared_part
from data.batches import Windows
from data.prepared import load_tokenizer
from data.tokens import open_tokens
from evaluation.scoring import score, windows
from heads import chunk_rows
from model import LanguageModel
from runtime import checkpoint
from runtime.device import DTYPES, autocast


def make_model(size: str, vocab_size: int) -> tuple[LanguageModel, dict]:
    c = {k: v for k, v in SIZES[size].items() if k != "batch_size"}
    config = dict(
        c, vocab_size=vocab_size, dropout=0.0, head="softmax", head_args={}, bayesian=False, prior_sigma=0.02
    )
    torch.manual_seed(0)
    return checkpoint.build(config).eval().requires_grad_(False), config


@torch.no_grad()
def forward(model: LanguageModel, tokens: torch.Tensor, dtype: str, batch: int = 16) -> None:
    """Logits of all positions of `tokens` (W, T), a batch of windows at a time, each chunk of rows overwritten by the next."""
    weight = model.head.draws(1, 0, getattr(torch, dtype))[0].weight
    rows = chunk_rows(model.trunk.config.vocab_size, "cpu")
    for part in tokens.split(batch):
        with autocast("cpu", dtype):
            for h in model.trunk(part).flatten(0, 1).split(rows):
                h.to(weight.dtype) @ weight.t()


def measure_evaluation(args: argparse.Namespace) -> list[dict]:
    ids = open_tokens(args.data / "validation.bin").ids
    ids = ids[: args.tokens] if args.tokens else ids
    results = []
    for dtype in args.dtypes:
        model, config = make_model(args.size, load_tokenizer(args.data).vocab_size)
        model.lower(getattr(torch, dtype))
        T = config["block_size"]
        plan = windows(len(ids), T, T)
        tokens = torch.stack([torch.from_numpy(ids[s : s + T].astype("int64")) for s, _ in plan])
        draws = model.head.draws(1, 0, getattr(torch, dtype))
        seconds = turns(
            {
                "forward": lambda: forward(model, tokens, dtype),
                "evaluation": lambda: score(model, ids, T, draws, "cpu", dtype),
            },
            args.rounds,
        )
        results.append(
            {
                "what": "evaluation",
                "dtype": dtype,
                "tokens": len(ids),
                **{k: median(v) for k, v in seconds.items()},
            }
        )
        print(
            f"evaluation, {dtype}: {results[-1]['evaluation']:.2f} s, forward pass {results[-1]['forward']:.2f} s: {results[-1]['evaluation'] / results[-1]['forward']:.2f}x",
            flush=True,
        )
    return results


def measure_store(args: argparse.Namespace) -> list[dict]:
    T, dtype = SIZES[args.size]["block_size"], dtypes()[-1]
    count = max(1, (args.tokens or 32768) // T)
    with tempfile.TemporaryDirectory() as folder:
        folder = prepared_part(args.data, count, T, Path(folder))
        tokens, tokenizer = open_tokens(folder / "train.bin"), load_tokenizer(args.data)
        model, config = make_model(args.size, tokenizer.vocab_size)
        info = {
            "name": "teacher",
            "tokenizer": tokenizer.name,
            "tokenizer_fingerprint": tokenizer.fingerprint,
        }
        checkpoint.save(folder / "teacher" / "best", model, {**config, **info}, {"step": 0}, None, tokenizer)
        teacher = augment.Teacher(
            str(folder / "teacher"),
            tokenizer.name,
            tokenizer.fingerprint,
            tokenizer.vocab_size,
            T,
            "cpu",
            dtype,
        )
        x, _ = Windows(tokens, T).get(range(count))

        def store() -> None:
            for old in folder.glob("*.labels-*"):
                old.unlink()
            augment.build_store(tokens, teacher, T, augment.Settings())

        seconds = turns({"forward": lambda: forward(teacher.model, x, dtype), "store": store}, args.rounds)
    r = {"what": "store", "dtype": dtype, "tokens": count * T, **{k: median(v) for k, v in seconds.items()}}
    print(
        f"store: {r['store']:.2f} s, forward pass {r['forward']:.2f} s: {r['forward'] / r['store']:.0%} of its throughput",
        flush=True,
    )
    return [r]


def measure_memory(args: argparse.Namespace) -> list[dict]:
    results, dtype = [], dtypes()[-1]
    for rows in args.rows:
        peak = peak_in_a_process("chunked", "softmax", dtype, rows, args.dim, args.vocab)
        r = {"what": "memory", "dtype": dtype, "rows": rows, "peak_mb": peak}
        print(f"chunked loss of {rows:6} rows: {r['peak_mb']:.0f} MB", flush=True)
        results.append(r)
    return results


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", type=Path, default=Path("data/wikitext103/gpt2"), help="a prepared folder")
    p.add_argument("--size", choices=SIZES, default="30M")
    p.add_argument("--tokens", type=int, default=0)
    p.add_argument(
        "--dtypes",
        nargs="+",
        choices=DTYPES,
        default=dtypes(),
        help="of the evaluation (default: float32, and bfloat16 where this CPU computes it)",
    )
    p.add_argument("--rows", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    p.add_argument("--dim", type=int, default=384)
    p.add_argument("--vocab", type=int, default=50257)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    results = measure_memory(args) + measure_store(args) + measure_evaluation(args)
    write(args.out, {"size": args.size, "rounds": args.rounds}, results)


if __name__ == "__main__":
    main()
