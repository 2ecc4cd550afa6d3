"""How far the samplers of any order are from the exact law of a toy model.

    python bench/exactness.py [--texts=60000] [--models=5] [--out=bench/exactness.json]

A model of three tokens of three values, with random weights large enough that its tokens depend on each
other. Its law is the mean over the six orders of the product of its conditionals, by enumeration. Total
variation between that and the frequencies of the texts; `noise` is that of as many texts of the law itself.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import permutations, product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from bench.common import write
from evaluation.any_order import FREE, Reader
from evaluation.filling import Filled, burst, one_by_one, speculative
from model import LanguageModel, build

T = V = 3
SAMPLERS: dict[str, Callable[..., Filled]] = {
    "one token a pass": one_by_one,
    "speculative": speculative,
    "burst, one order": partial(burst, orders=1),
    "burst, five orders": partial(burst, orders=5),
}


def toy(seed: int) -> LanguageModel:
    torch.manual_seed(seed)
    size = {"vocab_size": V, "block_size": T, "n_layer": 2, "n_head": 2, "n_embd": 16, "dropout": 0.0}
    model = build({"head": "softmax", "head_args": {}, "order": "random", **size})
    with torch.no_grad():
        for p in model.trunk.parameters():
            if p.dim() == 2:
                p.mul_(12)
    return model.double().eval()


def reader(model: LanguageModel, count: int) -> Reader:
    return Reader(model, torch.full((count, T), FREE), model.head.draws(1, 0, torch.float64))


@torch.no_grad()
def law(model: LanguageModel) -> Tensor:
    """p (V ** T,) of each text, drawn token by token in a random order."""
    texts = torch.tensor(list(product(range(V), repeat=T)))
    p = torch.zeros(len(texts), dtype=torch.float64)
    orders = list(permutations(range(T)))
    for order in orders:
        places = torch.tensor(order).expand(len(texts), -1)
        tokens = texts.gather(1, places)
        p += reader(model, len(texts)).along(places, tokens).probs(tokens).prod(1) / len(orders)
    return p


def shares(texts: Tensor) -> Tensor:
    number = texts @ torch.tensor([V**i for i in reversed(range(T))])
    return torch.bincount(number, minlength=V**T) / len(texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--texts", type=int, default=60_000)
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in (*SAMPLERS, "noise")}
    for seed in range(args.models):
        model = toy(seed)
        want = law(model)
        for name, sampler in SAMPLERS.items():
            filled = sampler(reader(model, args.texts), generator=torch.Generator().manual_seed(seed))
            found[name].append(float((shares(filled.text) - want).abs().sum() / 2))
        drawn = torch.multinomial(want, args.texts, replacement=True)
        noise = torch.bincount(drawn, minlength=V**T) / args.texts
        found["noise"].append(float((noise - want).abs().sum() / 2))
    for name, values in found.items():
        print(f"{name}: {sum(values) / len(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    write(args.out, {"texts": args.texts, "models": args.models}, found)


if __name__ == "__main__":
    main()
