"""Fills in gaps with a run of any order, or of masked diffusion.

    python labs/orders/sample.py out/sigma_gpt --infill "The river <5> through the <3> of the city"
    python labs/orders/sample.py out/sigma_gpt --prompt "The river" --length 20 --order speculative
    python labs/orders/sample.py out/sigma_gpt --infill "The river <5>" --density     what may stand there

<5> is a gap of five tokens. One token a pass, as the run was trained or in --order; or many at a time:
`speculative` has the distribution of one a pass, `burst`, the rule of the sigma-GPT paper, has not. A masked
diffusion model fills in many at a time with --steps, which is not exact.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from common.config import Draws, Dtype, Natural, Positive, Seed, Text, cli, read
from common.device import choose_dtype, float64_device, get_device, get_dtype
from common.errors import UserError
from common.files import for_screen
from data.open import tokenizer_of
from data.tokenizers import Tokenizer
from evaluate.decoding import Decoding, decoding_flags, truncate
from evaluate.sampling import weight_draws
from labs.orders.asking import Asker
from labs.orders.filling import Filled, burst, diffusion, in_order, speculative, surest_first
from labs.orders.readers import MaskedReader, Reader, reader_of
from labs.sequences.gaps import with_gaps
from labs.sequences.questions import FREE
from training.run import load_model


@dataclass(frozen=True)
class FillConfig(Decoding):
    # fmt: off
    checkpoint: str                 # the out folder of a training run, or one checkpoint in it
    infill: Text = ""               # a text with gaps: "The river <5> of the city"
    prompt: Text = "\n"             # without --infill: a text to continue
    length: Positive = 20           # new tokens after the prompt
    num_samples: Positive = 1
    order: Literal["", "random", "left_to_right", "fractal", "confidence", "speculative", "burst"] = ""
    #                                 confidence: the surest place first; empty: as the run was trained
    steps: Natural = 0              # rounds of masked diffusion; 0: a token a pass
    density: bool = False           # of all gaps at once, instead of text
    top: Positive = 5               # candidates of a place that --density shows
    seed: Seed = 1337               # of the text; with the run's own, of Bayesian weights
    samples: Draws = 8              # weight draws of a Bayesian projection, kept for the whole run
    # machine
    which: Literal["best", "last"] = "best"  # checkpoint of the run
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "auto"           # of matrix products: float32, bfloat16, float16, or auto
    # fmt: on


def filler(c: FillConfig, kind: str, fills: str) -> Callable[..., Filled]:
    """The sampler that is asked for, for a trunk that is `any` or `masked` and `fills` in this order."""
    if (kind == "masked" and c.order in ("burst", "speculative")) or (c.steps and kind != "masked"):
        raise UserError(f"order = {c.order!r} is for a model of any order, --steps for masked diffusion")
    if c.steps:
        return partial(diffusion, steps=c.steps)
    if c.order == "speculative":
        return partial(speculative, order=fills)
    others = {"confidence": surest_first, "burst": burst}
    return others.get(c.order, partial(in_order, order=c.order or fills))


def density_table(reader: Reader | MaskedReader, tokenizer: Tokenizer, top: int) -> str:
    """The entropy (nats) of each free place of one text and its most probable tokens: one pass for all."""
    from tabulate import tabulate  # here: sampling needs it for nothing else

    places = (reader.text[0] == FREE).nonzero().T  # (1, F)
    distributions, rows = reader.each(places), []
    for n, place in enumerate(places[0].tolist()):
        p = distributions.row(torch.tensor([n]))[0]
        best = p.topk(min(top, len(p)))
        tokens = (repr(tokenizer.decode([i])) for i in best.indices.tolist())
        likely = [f"{token} {value:.3f}" for token, value in zip(tokens, best.values.tolist())]
        rows.append([place, f"{torch.special.entr(p).sum():.2f}", *likely])
    return tabulate(rows, ["place", "nats", *(f"{i + 1}" for i in range(len(rows[0]) - 2))])


def main(argv: list[str]) -> int:
    c = read(FillConfig, argv, __doc__)
    device = get_device(c.device)
    dtype = choose_dtype(c.dtype, device)
    model, ckpt = load_model(c.checkpoint, c.which, device, get_dtype(dtype.name))
    tokenizer, size = tokenizer_of(ckpt), model.trunk.config.block_size
    ids = with_gaps(c.infill or f"{c.prompt}<{c.length}>", tokenizer, size)
    text = torch.tensor([ids] * c.num_samples)
    draws = weight_draws(model, ckpt.record, c.samples, c.seed, dtype.name)
    reader = reader_of(model, text, draws, partial(truncate, c=c), dtype.name)
    asker = Asker(model, draws, device, dtype.name)
    fill = filler(c, asker.order, asker.fills)
    print(f"{ckpt.path}: {decoding_flags(c)}, seed {c.seed}; {dtype.name}: {dtype.reason}", file=sys.stderr)
    generator = torch.Generator(float64_device(device)).manual_seed(c.seed)
    if c.density:
        print(density_table(reader, tokenizer, c.top))
    else:
        for b, row in enumerate(fill(reader, generator=generator).text.tolist()):
            print(f"--- sample {b + 1}\n" * (c.num_samples > 1) + for_screen(tokenizer.decode(row)))
    print(f"{reader.passes} model evaluations for {ids.count(FREE)} tokens of each text", file=sys.stderr)
    return 0


if __name__ == "__main__":
    cli(main)
