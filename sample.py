"""Text from a checkpoint.

    python sample.py out/baseline-tiny --num_samples 3
    python sample.py out/sig_gpt --prompt "The history of" --num_samples 3 --temperature 0.9 --top_p 0.95
    python sample.py out/sigma_gpt --infill "The river <5> through the <3> of the city" --speculative

Samples from the same distribution that is scored: log p of the head, averaged over weight draws if its
projection is Bayesian.

A model of any order fills in gaps, <5> for five tokens. One token a pass, as it was trained or in --order; or
many at a time. --speculative has the distribution of one a pass, as it was trained; --burst, the rule of the
sigma-GPT paper, has not. A masked diffusion model fills in a token a pass, or many at a time with --steps,
which is not exact.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from evaluation.decoding import Decoding, drawn_by
from runtime.door import Program
from runtime.errors import UserError
from runtime.files import check_writable
from runtime.values import Dtype, Natural, Positive, Seed, Text

Fills = Literal["", "random", "left_to_right", "fractal", "confidence"]


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
    # any order
    infill: Text = ""               # a text with gaps instead of a prompt: "The river <5> of the city"
    order: Fills = ""               # in which places are filled in, a token a pass: random, left_to_right or
    #                                 fractal; confidence: the surest place first; empty: that of the run
    speculative: bool = False       # many tokens a pass, with the distribution of one a pass, as trained
    burst: bool = False             # many tokens a pass by the paper's rule, which changes the distribution
    steps: Natural = 0              # rounds of masked diffusion; 0: a token a pass
    density: bool = False           # of all gaps at once, instead of text
    top: Positive = 5               # candidates of a place that --density shows
    save: str = ""                  # what is filled in, or --density, also as SAVE.json and SAVE.png
    # machine
    which: Literal["best", "last"] = "best"  # checkpoint of the run
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "auto"           # of matrix products: float32, bfloat16, float16, or auto
    no_cache: bool = False          # read the whole context for every token (slow; for comparison)
    # fmt: on

    def check(self) -> None:
        """UserError naming the value that cannot work."""
        how = self._ways
        if len(how) > 1:
            raise UserError(f"--{how[0]} and --{how[1]} are two ways to fill in a gap: give one of them")
        if self.save and not self.fills:
            raise UserError(f"save = {self.save!r}: it is for what is filled in; give --infill, too")
        if self.save and (self.prompts or self.num_samples > 1):
            raise UserError(f"save = {self.save!r}: it is of one text; leave --prompts and --num_samples out")
        if self.save:
            check_writable(Path(f"{self.save}.png"))
        if self.prompts and self.prompt != SampleConfig.prompt:
            raise UserError(f"prompt = {self.prompt!r}, prompts = {self.prompts!r}: give one of the two")
        if self.top != SampleConfig.top and not self.density:
            raise UserError(f"top = {self.top}: it is of --density; give it, too")
        if self.density and self.num_samples > 1:
            raise UserError(f"num_samples = {self.num_samples}: --density draws nothing; leave it out")
        for key in ("prompt", "prompts", "length"):
            if self.infill and getattr(self, key) != getattr(SampleConfig, key):
                raise UserError(f"--infill has its text and its gaps already: leave --{key} out")
        if self.fills:
            self.check_filled()

    @property
    def fills(self) -> bool:
        """Whether a flag asks for places that are filled in, and not for text from left to right."""
        return bool(self.infill or self._ways)

    @property
    def _ways(self) -> list[str]:
        return [k for k in ("order", "speculative", "burst", "density", "steps") if getattr(self, k)]

    def check_filled(self) -> None:
        """UserError for what only text from left to right has."""
        for key in ("stop", "uncertainty", "no_cache"):
            if getattr(self, key):
                raise UserError(
                    f"--{key} is for text from left to right: leave it out where gaps are filled in"
                )


program = Program(__name__, __doc__, SampleConfig)

import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from data.orders import MASKED, NEVER_FROM_THE_LEFT
from data.prepared import sampler_of, tokenizer_of
from data.tokenizers import Tokenizer, ids_of
from evaluation import gaps
from evaluation.any_order import FREE, MaskedReader, Reader, check_fills, reader_of
from evaluation.filling import (
    Filled,
    burst,
    diffusion,
    filled_in,
    in_order,
    speculative,
    surest_first,
    unwatched,
)
from evaluation.sampling import entropies, generate, weight_draws
from evaluation.truncation import truncate
from heads import Weights
from model import LanguageModel
from runtime.checkpoint import Checkpoint, Degenerate, load_model
from runtime.configurator import cli
from runtime.device import Precision, autocast, float64_device, get_device, get_dtype, settle_dtype
from runtime.files import for_screen, read_text


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


@program
def main(c: SampleConfig) -> int:
    device = get_device(c.device)
    dtype = settle_dtype(c.dtype, device)
    model, ckpt = load_model(c.checkpoint, c.which, device, get_dtype(dtype.name))
    if sampler := sampler_of(dataset := ckpt.config.get("dataset", "")):
        raise UserError(f"{ckpt.path} is of {dataset}, no text: python {sampler} draws from such runs")
    tokenizer = tokenizer_of(ckpt)
    if c.fills or ckpt.config.get("order") in NEVER_FROM_THE_LEFT:
        return fill(c, model, ckpt, tokenizer, device, dtype)
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


# -----------------------------------------------------------------------------
# Gaps


def texts_to_fill(c: SampleConfig, tokenizer: Tokenizer, block_size: int) -> list[list[int]]:
    """The template, or the prompts with `length` free places after each. UserError for what does not fit."""
    if c.infill:
        return [gaps.with_gaps(c.infill, tokenizer, block_size)]
    prompts = encode(read_prompts(c.prompt, c.prompts), tokenizer, block_size)
    longest = max(map(len, prompts)) + c.length
    if longest > block_size:
        raise UserError(
            f"the prompt and length = {c.length} are {longest} tokens; this model fills in a text of at most "
            f"{block_size} (block_size): give a smaller --length"
        )
    return [ids + [FREE] * c.length for ids in prompts]


def filler(c: SampleConfig, order: str) -> Callable[..., Filled]:
    """The sampler that is asked for. UserError if a model of this order does not have it."""
    masked = order == MASKED
    if masked and (c.burst or c.speculative):
        flag = "burst" if c.burst else "speculative"
        raise UserError(
            f"--{flag} is for a model of any order; this is masked diffusion: give --steps instead"
        )
    if c.steps and not masked:
        raise UserError(
            f"steps = {c.steps}: they are those of masked diffusion; for this model give --speculative"
        )
    if c.order == "confidence":
        return surest_first
    if c.burst:
        return burst
    if c.speculative:
        return partial(speculative, order=filled_in(order))
    if c.steps:
        return partial(diffusion, steps=c.steps)
    return partial(in_order, order=c.order or filled_in(order))


class Screen:
    """Shows on a terminal how a text fills in, drawn over itself after each round."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.lines = tokenizer, 0

    def __call__(self, text: Tensor, rank: Tensor) -> None:
        ids, ranks = text[0].tolist(), rank[0].tolist()
        plain = gaps.coloured(ids, [0] * len(ids), self.tokenizer)
        up = f"\x1b[{self.lines}A" * (self.lines > 0)
        print(f"{up}\r\x1b[J{gaps.coloured(ids, ranks, self.tokenizer)}", flush=True)
        width = shutil.get_terminal_size().columns
        self.lines = sum(max(1, -(-len(line) // width)) for line in plain.split("\n"))


def fill(
    c: SampleConfig,
    model: LanguageModel,
    ckpt: Checkpoint,
    tokenizer: Tokenizer,
    device: torch.device,
    dtype: Precision,
) -> int:
    """Fills in the gaps of each text, or says what may stand in them."""
    check_fills(model)
    c.check_filled()
    sampler = filler(c, ckpt.config.get("order", "left_to_right"))
    texts = texts_to_fill(c, tokenizer, model.trunk.config.block_size)
    draws = weight_draws(model, ckpt.config, c.samples, c.seed, dtype.name)
    cut = partial(truncate, c=c)
    generator = torch.Generator(float64_device(device)).manual_seed(c.seed)
    introduce(c, ckpt, dtype, draws)
    try:
        for ids in texts:
            began = time.perf_counter()
            text = torch.tensor([ids] * c.num_samples)
            conditionals = reader_of(model, text, draws, cut, dtype.name)
            if c.density:
                show_density(c, conditionals, ids, tokenizer)
                continue
            screen = Screen(tokenizer) if c.num_samples == 1 and sys.stdout.isatty() else None
            filled = sampler(conditionals, generator=generator, watch=screen or unwatched)
            for b, row in enumerate(filled.text.tolist() if not screen else []):
                print(f"--- sample {b + 1}\n" * (c.num_samples > 1) + for_screen(tokenizer.decode(row)))
            if c.save:
                pieces = gaps.pieces(filled.text[0].tolist(), filled.rank[0].tolist(), tokenizer)
                show_files(gaps.save_filled(pieces, c.save))
            free, passes, seconds = ids.count(FREE), conditionals.passes, time.perf_counter() - began
            print(
                f"{passes} model evaluations for {free} tokens of each text, "
                f"{free / passes:.2f} accepted a pass, {seconds:.2f} s",
                file=sys.stderr,
            )
    except Degenerate as e:
        raise Degenerate(e.reason, ckpt.path) from None
    return 0


def show_density(
    c: SampleConfig, conditionals: Reader | MaskedReader, ids: list[int], tokenizer: Tokenizer
) -> None:
    candidates = gaps.candidates(conditionals, tokenizer, c.top)
    print(gaps.density_table(candidates))
    if c.save:
        words = ["" if i == FREE else tokenizer.decode([i]) for i in ids]
        show_files(gaps.save_density(candidates, words, c.save))


def show_files(paths: list[Path]) -> None:
    print(f"wrote {', '.join(map(str, paths))}", file=sys.stderr)


if __name__ == "__main__":
    cli(main)()
