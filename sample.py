"""Text from a checkpoint.

    python sample.py out/baseline-tiny --num_samples 3
    python sample.py out/sig_gpt --prompt "The history of" --num_samples 3 --temperature 0.9 --top_p 0.95

Samples from the same distribution that is scored: log p of the head, averaged over weight draws if its
projection is Bayesian.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal

import torch

from common.config import Draws, Dtype, Positive, Seed, Text, cli, read
from common.device import autocast, choose_dtype, float64_device, get_device, get_dtype
from common.errors import UserError
from common.files import for_screen
from data.open import sampler_of, tokenizer_of
from data.tokenizers import ids_of
from evaluate.decoding import Decoding, decoding_flags
from evaluate.sampling import entropies, generate, weight_draws
from training.run import Degenerate, load_model


@dataclass(frozen=True)
class SampleConfig(Decoding):
    # fmt: off
    checkpoint: str                 # the out folder of a training run, or one checkpoint in it
    # what is written
    prompt: Text = "\n"             # text to continue
    num_samples: Positive = 1       # texts
    length: Positive = 200          # new tokens of each text, which ends before an end-of-text token
    seed: Seed = 1337               # of the text; with the run's own, of Bayesian weights
    samples: Draws = 8              # weight draws of a Bayesian projection, kept for the whole run
    uncertainty: bool = False       # total, aleatoric and epistemic, of each token, in nats
    # machine
    which: Literal["best", "last"] = "best"  # checkpoint of the run
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "auto"           # of matrix products: float32, bfloat16, float16, or auto
    # fmt: on


class Stream:
    """Prints a text as it comes. A character may take several tokens: it is printed once further ids can no
    longer change it. Only the last tokens are decoded, so a token of a long text costs no more than one of a
    short."""

    def __init__(self, decode: Callable[[list[int]], str], prompt: list[int]):
        self.decode, self.ids = decode, prompt.copy()
        self.known = self.shown = 0  # how many of `ids`, and of the characters that they mean, are printed

    def show(self, new: list[int], last: bool) -> None:
        self.ids += new
        text = self.decode(self.ids)
        if not last and text.endswith("\ufffd"):
            return
        sys.stdout.write(for_screen(text[self.shown :]))
        sys.stdout.flush()
        # the next ids are decoded behind these, which begin and end with a whole character
        self.shown = len(text)
        if now := self.decode(self.ids[self.known :]):
            self.ids, self.shown = self.ids[self.known :], len(now)
        self.known = len(self.ids)


def main(argv: list[str]) -> int:
    c = read(SampleConfig, argv, __doc__)

    # Read the checkpoint
    device = get_device(c.device)
    dtype = choose_dtype(c.dtype, device)
    model, ckpt = load_model(c.checkpoint, c.which, device, get_dtype(dtype.name))
    sampler = sampler_of(ckpt.config.dataset)
    if sampler or not model.trunk.forwards:
        other = sampler or "labs/orders/sample.py"
        raise UserError(f"{ckpt.path} writes no text from left to right: python {other} draws from it")
    tokenizer = tokenizer_of(ckpt)
    step, head = ckpt.progress.step, ckpt.config.head
    how = f"{decoding_flags(c)}, seed {c.seed}; {dtype.name}: {dtype.reason}"
    print(f"{ckpt.path}: step {step}, head {head}; {how}", file=sys.stderr)

    draws = weight_draws(model, ckpt.record, c.samples, c.seed, dtype.name)
    generator = torch.Generator(float64_device(device)).manual_seed(c.seed)
    start = torch.tensor([ids_of(c.prompt, tokenizer)] * c.num_samples, device=device)
    began = time.perf_counter()

    # Sample: a single text is streamed, several come in turn
    prompt = start[0].tolist()
    stream = Stream(tokenizer.decode, prompt) if c.num_samples == 1 else None
    texts: list[list[int]] = [[] for _ in range(c.num_samples)]
    unsure = []
    try:
        for token, hidden in generate(model, start, c.length, draws, c, generator, dtype=dtype.name):
            for new, i in zip(texts, token.tolist()):
                new.append(i)
            if c.uncertainty:
                with autocast(device, dtype.name):
                    unsure.append(torch.stack(entropies(model, hidden, draws), 1))  # (B, 3)
            ended = all(tokenizer.end_id in new for new in texts)
            if stream:
                stream.show([] if ended else token.tolist(), last=ended or len(texts[0]) == c.length)
            if ended:
                break
    except Degenerate as e:
        raise Degenerate(e.reason, ckpt.path) from None

    # The texts, up to an end-of-text token, and how unsure the model was
    for b, new in enumerate(texts):
        text = tokenizer.decode(prompt + [*takewhile(lambda i: i != tokenizer.end_id, new)])
        print("" if stream else f"--- sample {b + 1}\n{for_screen(text)}")
        if c.uncertainty:
            print(f"{'token':>20}  total  aleatoric  epistemic   (nats)")
            for i, (total, aleatoric, epistemic) in zip(new, (u[b].tolist() for u in unsure)):
                token_text = repr(tokenizer.decode([i]))
                print(f"{token_text:>20}  {total:5.2f}  {aleatoric:9.2f}  {epistemic:9.4f}")
    n = sum(map(len, texts))
    print(f"{n} tokens, {n / (time.perf_counter() - began):,.0f} tokens/s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    cli(main)
