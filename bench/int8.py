"""What int8 weights (sample.py --int8) do to a model: perplexity, and how far next-token distributions move.

    python bench/int8.py --run out/RUN [--data DIR] [--windows 16] [--out int8.json]

score   the whole validation split, a batch of windows at once: as is scored (elsewhere without int8)
sample  WINDOWS windows of it, side by side and token by token through the cache: as text is sampled. Also
        KL(float32 || int8) in nats a token, and how often both have the same most probable token
All inputs of a layer in one call share a scale, so the rounding of the two differs.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import Tensor

from bench.common import write
from data.tokens import open_tokens
from evaluation.metrics import perplexity
from evaluation.scoring import score
from heads import Weights
from model import Cache, LanguageModel
from runtime.checkpoint import load_model


@torch.no_grad()
def hidden_states(model: LanguageModel, tokens: Tensor) -> Tensor:
    """Those after `tokens` (B, T), read one at a time: (B, T, C)."""
    cache = Cache(model.trunk, len(tokens))
    return torch.cat([model.trunk(token, cache=cache) for token in tokens.split(1, dim=1)], 1)


def log_p(model: LanguageModel, hidden: Tensor, draws: list[Weights]) -> Tensor:
    return torch.cat([lp for _, lp in model.head.log_prob_blocks(hidden, draws)])


@torch.no_grad()
def as_sampled(
    exact: LanguageModel, int8: LanguageModel, tokens: Tensor, draws: list[Weights]
) -> dict[str, float]:
    """Of `tokens` (B, T + 1), T predictions of each row."""
    nll, kl, same = torch.zeros(2, dtype=torch.float64), 0.0, 0
    hidden, hidden8 = hidden_states(exact, tokens[:, :-1]), hidden_states(int8, tokens[:, :-1])
    for h, h8, target in zip(hidden, hidden8, tokens[:, 1:]):  # row by row: (T, V) at a time
        p, q = log_p(exact, h, draws).double(), log_p(exact, h8, draws).double()
        nll -= torch.stack([lp.gather(1, target[:, None]).sum() for lp in (p, q)])
        kl += torch.where(p > -torch.inf, p.exp() * (p - q), 0).sum().item()
        same += int((p.argmax(1) == q.argmax(1)).sum())
    n = tokens[:, 1:].numel()
    ppl, ppl8 = (perplexity(x.item(), n) for x in nll)
    return {"float32": ppl, "int8": ppl8, "kl": kl / n, "same_top_token": same / n, "tokens": n}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--run", type=Path, required=True, help="the out folder of a training run")
    p.add_argument("--data", type=Path, help="its token files, where they are not where it was trained")
    p.add_argument("--windows", type=int, default=16)
    p.add_argument("--out", type=Path)
    args = p.parse_args()
    exact, ckpt = load_model(args.run)
    int8, _ = load_model(args.run)
    int8.quantize()
    ids = open_tokens(Path(args.data or ckpt.config["data"]) / "validation.bin").ids
    draws = exact.head.draws(4, 0)
    whole = {}
    for name, model in (("float32", exact), ("int8", int8)):
        s = score(model, ids, draws=draws)
        whole[name] = perplexity(s.nll, s.tokens)
    T = exact.trunk.config.block_size
    some = np.stack([ids[i : i + T + 1] for i in range(0, len(ids) - T, T)][: args.windows])
    sampled = as_sampled(exact, int8, torch.from_numpy(some.astype(np.int64)), draws)
    results = [{"as": "score", **whole}, {"as": "sample", **sampled}]
    for r in results:
        r["ratio"] = r["int8"] / r["float32"]
        both = f"{r['float32']:.4f} in float32, {r['int8']:.4f} in int8"
        print(f"{r['as']:6}  perplexity {both}: {r['ratio']:.5f}x")
    same = f"{r['same_top_token']:.2%} of {r['tokens']} have the same top token"
    print(f"KL(float32 || int8) {r['kl']:.2e} nats a token; {same}")
    size = {k: ckpt.config[k] for k in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "head")}
    write(args.out, {"run": args.run.name, "windows": len(some), "model": size}, results)


if __name__ == "__main__":
    main()
