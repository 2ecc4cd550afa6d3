"""Tokens a second of sampling from GPT-2 124M: ours, nanoGPT's generate, transformers' generate with a cache.

    python bench/sampling.py [--nanogpt DIR] [--size 124M] [--batches 1 16] [--tokens 500] [--device cpu]
        [--dtypes float32] [--rounds 5] [--out bench/sampling.json]

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
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from torch import nn

from bench.timing import arguments, dtypes, median, nanogpt, peak_mb, skipped, turns, write
from common.device import autocast
from evaluate.decoding import Decoding
from evaluate.sampling import generate
from heads import make_head
from model import GPT, GPTConfig, LanguageModel

SIZES = {"124M": GPTConfig(50257, 1024, 12, 12, 768), "tiny": GPTConfig(300, 64, 1, 2, 32)}
PROMPT, TEMPERATURE, TOP_K = 10, 0.8, 200


def ours(config: GPTConfig, device: str, dtype: str) -> LanguageModel:
    torch.manual_seed(0)
    trunk = GPT(config)
    model = LanguageModel(trunk, make_head("softmax", config.vocab_size, trunk.wte.weight))
    model = model.eval().requires_grad_(False).to(device)
    model.lower(getattr(torch, dtype))
    return model


def run_ours(model: LanguageModel, dtype: str, prompt: torch.Tensor, tokens: int) -> None:
    draws = model.head.draws(1, 0, getattr(torch, dtype))
    generator = torch.Generator(prompt.device).manual_seed(0)
    decoding = Decoding(temperature=TEMPERATURE, top_k=TOP_K)
    for _ in generate(model, prompt, tokens, draws, decoding, generator, dtype=dtype):
        pass


def transformers_model(config: GPTConfig, dtype: str, device: str) -> nn.Module:
    """GPT-2 as transformers initialises it: its time does not depend on the weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    c = config
    sizes = {"n_positions": c.block_size, "n_layer": c.n_layer, "n_head": c.n_head, "n_embd": c.n_embd}
    hf = GPT2LMHeadModel(GPT2Config(vocab_size=c.vocab_size, bos_token_id=0, eos_token_id=0, **sizes))
    return hf.eval().to(getattr(torch, dtype)).to(device)


@torch.no_grad()
def run_transformers(hf: Any, prompt: torch.Tensor, tokens: int) -> None:
    out = hf.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=TOP_K,
        max_new_tokens=tokens,
        min_new_tokens=tokens,
        pad_token_id=0,
    )
    assert out.shape[1] == prompt.shape[1] + tokens


def nanogpt_model(path: Path, config: GPTConfig, device: str) -> nn.Module:
    module: Any = nanogpt(path)
    c = config
    sizes = {"block_size": c.block_size, "n_layer": c.n_layer, "n_head": c.n_head, "n_embd": c.n_embd}
    gpt = module.GPT(module.GPTConfig(vocab_size=c.padded_vocab, dropout=0.0, bias=True, **sizes))
    return gpt.eval().to(device)


def step_nanogpt(gpt: Any, context: torch.Tensor, dtype: str) -> None:
    """One more token of each text (B, T): a pass over all of it."""
    with autocast(context.device, dtype):
        gpt.generate(context, 1, temperature=TEMPERATURE, top_k=TOP_K)


def measure(args: argparse.Namespace, batch: int) -> list[dict]:
    config, gpu = SIZES[args.size], args.device.startswith("cuda")
    measured = args.dtypes or (dtypes(args.device)[-1:] if gpu else dtypes(args.device))
    prompt = torch.randint(config.vocab_size, (batch, PROMPT), device=args.device)
    programs = {
        f"ours, {d}": partial(run_ours, ours(config, args.device, d), d, prompt, args.tokens)
        for d in measured
    }
    try:
        for d in measured:
            theirs = transformers_model(config, d, args.device)
            programs[f"transformers, {d}"] = partial(run_transformers, theirs, prompt, args.tokens)
    except ImportError:
        skipped("transformers", "pip install transformers")
    lengths = np.linspace(PROMPT, PROMPT + args.tokens - 1, 5).astype(int)
    if args.nanogpt:
        gpt = nanogpt_model(args.nanogpt, config, args.device)
        contexts = {
            f"nanoGPT at {n} tokens": torch.randint(config.vocab_size, (batch, n), device=args.device)
            for n in lengths
        }
        programs |= {name: partial(step_nanogpt, gpt, x, measured[0]) for name, x in contexts.items()}
    else:
        skipped("nanoGPT", "give --nanogpt DIR, a checkout of karpathy/nanoGPT")
    seconds = {name: median(s) for name, s in turns(programs, args.rounds, 1, args.device).items()}
    if args.nanogpt:
        at = [seconds.pop(f"nanoGPT at {n} tokens") for n in lengths]
        seconds[f"nanoGPT, {measured[0]}"] = float(np.trapezoid(at, lengths) + (at[0] + at[-1]) / 2)
    results = [
        {"batch": batch, "program": name, "seconds": s, "tokens_per_s": batch * args.tokens / s}
        for name, s in seconds.items()
    ]
    base = next((r for r in results if r["program"].startswith("transformers")), results[0])
    for r in results:
        ratio = f"{r['tokens_per_s'] / base['tokens_per_s']:.2f}x of {base['program']}"
        speed = f"{r['seconds']:8.2f} s  {r['tokens_per_s']:9,.1f} tok/s"
        print(f"batch {batch:3}  {r['program']:24} {speed}  {ratio}", flush=True)
    return results


def main() -> None:
    p = arguments(__doc__, rounds=5, device=True)
    p.add_argument("--nanogpt", type=Path)
    p.add_argument("--size", choices=SIZES, default="124M")
    p.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    p.add_argument("--tokens", type=int, default=500)
    p.add_argument(
        "--dtypes",
        nargs="+",
        choices=("float32", "bfloat16"),
        help="what the device computes; on a GPU what auto takes",
    )
    args = p.parse_args()
    results = [r for batch in args.batches for r in measure(args, batch)]
    write(args, ["size", "tokens", "rounds"], results, peak_mb=peak_mb(args.device))


if __name__ == "__main__":
    main()
