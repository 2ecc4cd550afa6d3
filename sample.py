"""Text from a checkpoint.

    python sample.py out/baseline-tiny --num_samples 3
    python sample.py out/sig_gpt --prompt "The history of" --num_samples 3 --temperature 0.9 --top_p 0.95

Samples from the same distribution that is scored: log p of the head, averaged over weight draws if its
projection is Bayesian.
"""

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

import torch

from common.config import Dtype, Positive, Seed, Text, cli, read
from common.device import autocast, float64_device, get_device, get_dtype, settle_dtype
from common.errors import UserError
from common.files import for_screen, read_text
from data.corpus import sampler_of, tokenizer_of
from data.tokenizers import Tokenizer, ids_of
from evaluate.decoding import Decoding, decoding_flags
from evaluate.sampling import entropies, generate, weight_draws
from heads import Weights
from model import LanguageModel
from training.run import Degenerate, load_model


@dataclass(frozen=True)
class SampleConfig(Decoding):
    # fmt: off
    checkpoint: str                 # the out folder of a training run, or one checkpoint in it
    # what is written
    prompt: Text = "\n"             # text to continue
    prompts: str = ""               # a file with one prompt a line, instead of --prompt
    num_samples: Positive = 1       # texts for each prompt
    length: Positive = 200          # new tokens of each text
    stop: Text = ""                 # a text ends before this, if it comes; and at an end-of-text token
    seed: Seed = 1337               # of the text; with the run's own, of Bayesian weights
    samples: Positive = 8           # weight draws of a Bayesian projection, kept for the whole run
    uncertainty: bool = False       # total, aleatoric and epistemic, of each token, in nats
    # machine
    which: Literal["best", "last"] = "best"  # checkpoint of the run
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "auto"           # of matrix products: float32, bfloat16, float16, or auto
    no_cache: bool = False          # read the whole context for every token (slow; for comparison)
    # fmt: on


def until_end(tokenizer: Tokenizer, prompt: list[int], new: list[int], stop: str) -> tuple[str, bool]:
    """The prompt and its continuation, up to an end-of-text token or `stop`; whether it ends with one."""
    before_end = [*takewhile(lambda i: i != tokenizer.end_id, new)]
    text = tokenizer.decode(prompt + before_end)
    at = text.find(stop, len(tokenizer.decode(prompt))) if stop else -1
    return (text, len(before_end) < len(new)) if at < 0 else (text[:at], True)


class Stream:
    """Prints a text as it comes: only what further ids can no longer change. A character may take several
    tokens, and so may `held`, the text that is not to be printed."""

    def __init__(self, held: str):
        self.held, self.shown = len(held), 0

    def show(self, text: str, last: bool) -> None:
        if last or not text.endswith("\ufffd"):
            end = len(text) if last else max(self.shown, len(text) - self.held)
            sys.stdout.write(for_screen(text[self.shown : end]))
            sys.stdout.flush()
            self.shown = end


def read_prompts(prompt: str, file: str) -> list[str]:
    """The prompts asked for: of a file its lines."""
    if not file:
        return [prompt]
    prompts = [line for line in read_text(Path(file)).split("\n") if line]
    if not prompts:
        raise UserError(f"--prompts {file} holds no prompt")
    return prompts


def main(argv: list[str]) -> int:
    c = read(SampleConfig, argv, __doc__)
    prompts = read_prompts(c.prompt, c.prompts)

    # Read the checkpoint
    device = get_device(c.device)
    dtype = settle_dtype(c.dtype, device)
    model, ckpt = load_model(c.checkpoint, c.which, device, get_dtype(dtype.name))
    sampler = sampler_of(ckpt.config.dataset)
    if sampler or not model.trunk.forwards:
        other = sampler or "labs/orders/sample.py"
        raise UserError(f"{ckpt.path} writes no text from left to right: python {other} draws from it")
    tokenizer = tokenizer_of(ckpt)
    step, head = ckpt.progress.step, ckpt.config.head
    how = f"{decoding_flags(c)}, seed {c.seed}; {dtype.name}: {dtype.reason}"
    print(f"{ckpt.path}: step {step}, head {head}; {how}", file=sys.stderr)

    # Sample after each prompt
    draws = weight_draws(model, ckpt.record, c.samples, c.seed, dtype.name)
    generator = torch.Generator(float64_device(device)).manual_seed(c.seed)
    began, n = time.perf_counter(), 0
    for i, text in enumerate(prompts):
        title = f"prompt {i + 1}" if len(prompts) > 1 else ""
        start = torch.tensor([ids_of(text, tokenizer)] * c.num_samples, device=device)
        tokens = generate(model, start, c.length, draws, c, generator, not c.no_cache, dtype.name)
        try:
            n += write_samples(c, model, tokenizer, start, draws, tokens, dtype.name, title)
        except Degenerate as e:
            raise Degenerate(e.reason, ckpt.path) from None
    print(f"{n} tokens, {n / (time.perf_counter() - began):,.0f} tokens/s", file=sys.stderr)
    return 0


def write_samples(
    c: SampleConfig,
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: torch.Tensor,
    draws: list[Weights],
    tokens: Iterable[tuple[torch.Tensor, torch.Tensor]],
    dtype: str,
    title: str,
) -> int:
    """All samples of one prompt (num_samples, P): streamed if there is one, in turn if there are several.

    `tokens` are those of `generate`. How many of them were drawn.
    """
    ids = prompt[0].tolist()
    stream = Stream(c.stop) if c.num_samples == 1 else None
    if title and stream:
        print(f"--- {title}")
    texts: list[list[int]] = [[] for _ in range(c.num_samples)]
    unsure = []
    for n, (token, hidden) in enumerate(tokens):
        for new, i in zip(texts, token.tolist()):
            new.append(i)
        if c.uncertainty:
            with autocast(prompt.device, dtype):
                unsure.append(torch.stack(entropies(model, hidden, draws), 1))  # (B, 3)
        text, ended = until_end(tokenizer, ids, texts[0], c.stop)
        if stream:
            stream.show(text, last=ended or n == c.length - 1)
        if ended and all(until_end(tokenizer, ids, new, c.stop)[1] for new in texts):
            break
    for b, new in enumerate(texts):
        if stream:
            print()
        else:
            text, _ = until_end(tokenizer, ids, new, c.stop)
            print(f"--- {title + ', ' if title else ''}sample {b + 1}\n{for_screen(text)}")
        if c.uncertainty:
            print(f"{'token':>20}  total  aleatoric  epistemic   (nats)")
            for i, (total, aleatoric, epistemic) in zip(new, (u[b].tolist() for u in unsure)):
                token_text = repr(tokenizer.decode([i]))
                print(f"{token_text:>20}  {total:5.2f}  {aleatoric:9.2f}  {epistemic:9.4f}")
    return sum(map(len, texts))


if __name__ == "__main__":
    cli(main)
