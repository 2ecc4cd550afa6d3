"""Text from a checkpoint.

    python sample.py out/baseline-tiny --num_samples 3
    python sample.py out/sig_gpt --prompt "The history of" --num_samples 3 --temperature 0.9 --top_p 0.95

Samples from the same distribution that is scored: log p of the head, averaged over weight draws if its
projection is Bayesian.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from common.config import Dtype, Positive, Seed, Text, cli, read
from common.device import Precision, autocast, float64_device, get_device, get_dtype, settle_dtype
from common.errors import UserError
from common.files import for_screen, read_text
from data.prepared import sampler_of, tokenizer_of
from data.tokenizers import Tokenizer, ids_of
from evaluate.decoding import Decoding, drawn_by
from evaluate.sampling import entropies, generate, weight_draws
from heads import Weights
from model import LanguageModel
from training.checkpoint import Checkpoint, Degenerate, load_model


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
    infill: Text = ""               # gaps are filled in by labs/orders/sample.py
    # machine
    which: Literal["best", "last"] = "best"  # checkpoint of the run
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "auto"           # of matrix products: float32, bfloat16, float16, or auto
    no_cache: bool = False          # read the whole context for every token (slow; for comparison)
    # fmt: on

    def __post_init__(self) -> None:
        if self.infill:
            raise UserError("infill: python labs/orders/sample.py fills in gaps")
        if self.prompts and self.prompt != SampleConfig.prompt:
            raise UserError(f"prompt = {self.prompt!r}, prompts = {self.prompts!r}: give one of the two")


def written(tokenizer: Tokenizer, prompt: list[int], new: list[int], stop: str) -> tuple[str, bool]:
    """The prompt and its continuation, up to an end-of-text token or `stop`; whether it ends with one."""
    end = tokenizer.end_id
    ends = end is not None and end in new
    if end is not None and ends:
        new = new[: new.index(end)]
    text = tokenizer.decode(prompt + new)
    at = text.find(stop, len(tokenizer.decode(prompt))) if stop else -1
    return (text, ends) if at < 0 else (text[:at], True)


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
    text = read_text(Path(file))
    prompts = [line for line in text.split("\n") if line]
    if not prompts:
        raise UserError(f"--prompts {file}: the file holds no prompt; put one on each line")
    return prompts


def encode(prompts: list[str], tokenizer: Tokenizer, block_size: int) -> list[list[int]]:
    """The ids of each prompt. UserError for one that the model cannot read."""
    encoded = []
    for text in prompts:
        ids = ids_of(text, tokenizer)
        if not ids:
            raise UserError("the prompt is empty: give at least one character")
        if len(ids) > block_size:
            raise UserError(
                f"the prompt {text[:40]!r} has {len(ids)} tokens; "
                f"this model reads at most {block_size} (block_size): shorten it"
            )
        encoded.append(ids)
    return encoded


def introduce(c: SampleConfig, ckpt: Checkpoint, dtype: Precision, draws: Sequence[Weights]) -> None:
    """Says on stderr what samples from what, and how."""
    if c.uncertainty and len(draws) == 1:
        print(
            "note: the weights of this model are points or a single draw: the epistemic part is 0",
            file=sys.stderr,
        )
    print(
        f"{ckpt.path}: step {ckpt.progress.get('step', 'unknown')}, head {ckpt.config['head']}; "
        f"{drawn_by(c)}, seed {c.seed}; "
        f"{dtype.name}: {dtype.reason}",
        file=sys.stderr,
    )


def main(argv: list[str]) -> int:
    c = read(SampleConfig, argv, __doc__)
    device = get_device(c.device)
    dtype = settle_dtype(c.dtype, device)
    model, ckpt = load_model(c.checkpoint, c.which, device, get_dtype(dtype.name))
    if sampler := sampler_of(dataset := ckpt.config.get("dataset", "")):
        raise UserError(f"{ckpt.path} is of {dataset}, no text: python {sampler} draws from such runs")
    tokenizer = tokenizer_of(ckpt)
    if not model.trunk.forwards:
        raise UserError(f"{ckpt.path} does not read from left to right: python labs/orders/sample.py")
    prompts = encode(read_prompts(c.prompt, c.prompts), tokenizer, model.trunk.context)
    draws = weight_draws(model, ckpt.config, c.samples, c.seed, dtype.name)
    introduce(c, ckpt, dtype, draws)
    generator = torch.Generator(float64_device(device)).manual_seed(c.seed)
    began, n = time.perf_counter(), 0
    try:
        for i, ids in enumerate(prompts):
            title = f"prompt {i + 1}" if len(prompts) > 1 else ""
            prompt = torch.tensor([ids] * c.num_samples, device=device)
            n += write_samples(c, model, tokenizer, prompt, draws, generator, dtype.name, title)
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
    generator: torch.Generator,
    dtype: str,
    title: str,
) -> int:
    """All samples of one prompt (num_samples, P): streamed if there is one, in turn if there are several.
    How many tokens were drawn."""
    ids = prompt[0].tolist()
    stream = Stream(c.stop) if c.num_samples == 1 else None
    if title and stream:
        print(f"--- {title}")
    texts: list[list[int]] = [[] for _ in range(c.num_samples)]
    how: dict[str, Any] = {"generator": generator, "cached": not c.no_cache, "dtype": dtype}
    unsure = []
    for n, (token, hidden) in enumerate(generate(model, prompt, c.length, draws, c, **how)):
        for text, i in zip(texts, token.tolist()):
            text.append(i)
        if c.uncertainty:
            with autocast(prompt.device, dtype):
                unsure.append(torch.stack(entropies(model, hidden, draws), 1))  # (B, 3)
        sofar, ended = written(tokenizer, ids, texts[0], c.stop)
        if stream:
            stream.show(sofar, last=ended or n == c.length - 1)
        if ended and all(written(tokenizer, ids, new, c.stop)[1] for new in texts):
            break
    for b, new in enumerate(texts):
        if stream:
            print()
        else:
            whole, _ = written(tokenizer, ids, new, c.stop)
            print(f"--- {title + ', ' if title else ''}sample {b + 1}\n{for_screen(whole)}")
        if c.uncertainty:
            write_uncertainty(tokenizer, new, [u[b].tolist() for u in unsure])
    return sum(map(len, texts))


def write_uncertainty(tokenizer: Tokenizer, ids: list[int], parts: list[list[float]]) -> None:
    """The tokens of a text, each with its total, aleatoric and epistemic uncertainty."""
    print(f"{'token':>20}  total  aleatoric  epistemic   (nats)")
    for token, (total, aleatoric, epistemic) in zip(ids, parts):
        print(f"{tokenizer.decode([token])!r:>20}  {total:5.2f}  {aleatoric:9.2f}  {epistemic:9.4f}")


if __name__ == "__main__":
    cli(main)
