"""Tokens a second of sampling from GPT-2 124M: ours, nanoGPT's generate, transformers' generate with a cache.

    python bench/sampling.py [--nanogpt DIR] [--size 124M] [--batches 1 16] [--tokens 500] [--device cpu]
        [--rounds 5] [--out bench/sampling.json]

All have random weights, 10 tokens of prompt, temperature 0.8 and top-k 200. The programs take turns. nanoGPT
reads its whole context for each token. So a round of it is one forward pass and one choice at each of five
lengths of the text, and its time for all tokens is their trapezoidal sum.

On a CPU ours and transformers' run in float32 and, if the CPU computes it, in bfloat16, nanoGPT in float32.
The base of the ratios is transformers in float32, which is what people run there. On a GPU all run in what
"auto" takes, nanoGPT under autocast.

A CPU without bf16, as far as settings emulate one:

    export ONEDNN_MAX_CPU_ISA=AVX2 ATEN_CPU_CAPABILITY=avx2
    python bench/sampling.py
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from bench.timing import arguments, dtypes, memory_mb, nanogpt, timed, turns, write
from common.device import autocast
from evaluate.decoding import Decoding
from evaluate.sampling import generate
from heads import make_head
from model import GPT, GPTConfig, LanguageModel

SIZES = {"124M": GPTConfig(50257, 1024, 12, 12, 768), "tiny": GPTConfig(300, 64, 1, 2, 32)}
PROMPT, TEMPERATURE, TOP_K = 10, 0.8, 200


def ours(c: GPTConfig, prompt: torch.Tensor, tokens: int, dtype: str) -> Callable[[], None]:
    torch.manual_seed(0)
    trunk = GPT(c)
    model = LanguageModel(trunk, make_head("softmax", c.vocab_size, trunk.wte.weight))
    model = model.eval().requires_grad_(False).to(prompt.device)
    model.cast_linears(getattr(torch, dtype))
    decoding = Decoding(temperature=TEMPERATURE, top_k=TOP_K)

    def run() -> None:
        draws = model.head.draws(1, 0, getattr(torch, dtype))
        generator = torch.Generator(prompt.device).manual_seed(0)
        for _ in generate(model, prompt, tokens, draws, decoding, generator, dtype=dtype):
            pass

    return run


def transformers(c: GPTConfig, prompt: torch.Tensor, tokens: int, dtype: str) -> Callable[[], None]:
    """GPT-2 as transformers initialises it: its time does not depend on the weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_positions": c.block_size, "n_layer": c.n_layer, "n_head": c.n_head, "n_embd": c.n_embd}
    hf = GPT2LMHeadModel(GPT2Config(vocab_size=c.vocab_size, bos_token_id=0, eos_token_id=0, **sizes))
    hf = hf.eval().to(getattr(torch, dtype)).to(prompt.device)
    how = dict(do_sample=True, temperature=TEMPERATURE, top_k=TOP_K, pad_token_id=0)
    how |= dict(attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, min_new_tokens=tokens)

    @torch.no_grad()
    def run() -> None:
        assert hf.generate(prompt, **how).shape[1] == prompt.shape[1] + tokens

    return run


def nanogpt_steps(args: argparse.Namespace, c: GPTConfig, batch: int, dtype: str) -> dict[int, Callable]:
    """Of five lengths of the text: one more token of each text, which is a pass over all of it."""
    gpt = nanogpt(args.nanogpt, c).eval().to(args.device)

    def step(context: torch.Tensor) -> None:
        with autocast(args.device, dtype):
            gpt.generate(context, 1, temperature=TEMPERATURE, top_k=TOP_K)

    lengths = np.linspace(PROMPT, PROMPT + args.tokens - 1, 5).astype(int).tolist()
    return {n: partial(step, torch.randint(c.vocab_size, (batch, n), device=args.device)) for n in lengths}


def measure(args: argparse.Namespace, batch: int) -> list[dict]:
    c = SIZES[args.size]
    measured = dtypes(args.device)[-1 if args.device.startswith("cuda") else 0 :]
    prompt = torch.randint(c.vocab_size, (batch, PROMPT), device=args.device)
    programs = {}
    for make in (ours, transformers):
        programs |= {f"{make.__name__}, {d}": make(c, prompt, args.tokens, d) for d in measured}
    steps = nanogpt_steps(args, c, batch, measured[0]) if args.nanogpt else {}
    clocks = {name: partial(timed, program, args.device) for name, program in (programs | steps).items()}
    seconds = turns(clocks, args.rounds)
    if steps:
        at = [seconds.pop(n) for n in steps]
        seconds[f"nanoGPT, {measured[0]}"] = float(np.trapezoid(at, [*steps]) + (at[0] + at[-1]) / 2)
    base = f"transformers, {measured[0]}"
    results = []
    for name, s in seconds.items():
        speed = batch * args.tokens / s
        results.append({"batch": batch, "program": name, "seconds": s, "tokens_per_s": speed})
        ratio = f"{seconds[base] / s:.2f}x of {base}"
        print(f"batch {batch:3}  {name:24} {s:8.2f} s  {speed:9,.1f} tok/s  {ratio}")
    return results


def main() -> None:
    p = arguments(__doc__, rounds=5)
    p.add_argument("--device", default="cpu")
    p.add_argument("--nanogpt", type=Path, help="a checkout of karpathy/nanoGPT")
    p.add_argument("--size", choices=SIZES, default="124M")
    p.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    p.add_argument("--tokens", type=int, default=500)
    args = p.parse_args()
    results = [r for batch in args.batches for r in measure(args, batch)]
    write(args, ["size", "tokens", "rounds"], results, args.device, peak_mb=memory_mb(args.device))


if __name__ == "__main__":
    main()
