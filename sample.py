"""Text from a checkpoint.

    python sample.py out/sig_gpt --prompt "The history of" --num_samples 3 --temperature 0.9 --top_p 0.95

Samples from the same distribution that is scored: log p of the head, averaged over weight draws if its projection is Bayesian.
(--int8 comes close to it.)
"""

if __name__ == "__main__":
    from runtime import configurator

    configurator.quiet_imports()

import argparse
import sys
import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from data.prepared import tokenizer_of
from data.tokenizers import Tokenizer
from heads import BayesianProjection, Weights
from model import GPT, Cache, LanguageModel
from runtime.checkpoint import Degenerate, load_model
from runtime.configurator import Parser, check_seed, cli, path
from runtime.device import autocast, float64_device, get_device, get_dtype, settle_dtype, to_float64
from runtime.errors import UserError
from runtime.files import read_text
from runtime.memory import check_fits


def truncate(log_p: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Tensor:
    """log p (N, V) -> probabilities (N, V) at `temperature`, p^(1/tau) normalised, then cut to the top_k most probable tokens (0: all; ties with
    the last of them stay) and to the smallest set of at least top_p mass (Holtzman et al. 2020). Temperature 0 is all mass on the most probable token."""
    if temperature == 0:
        return torch.zeros_like(log_p).scatter_(1, log_p.argmax(1, keepdim=True), 1.0)
    # from the maximum, so that nothing overflows; below 1e-30 it is greedy in float32 anyhow
    p = torch.softmax((log_p - log_p.max(1, keepdim=True).values) / max(temperature, 1e-30), dim=-1)
    if 0 < top_k < p.shape[1]:
        kth = p.topk(top_k).values[:, -1:]
        p = p.masked_fill(p < kth, 0)
    if top_p < 1:
        ordered, at = p.sort(descending=True, stable=True)
        ordered = ordered / ordered.sum(1, keepdim=True)
        beyond = ordered.cumsum(1) - ordered >= top_p  # the token that crosses top_p stays
        p = p.masked_fill(torch.zeros_like(beyond).scatter_(1, at, beyond), 0)
    return p / p.sum(1, keepdim=True)


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """ValueError naming the setting that cannot be sampled with."""
    if not 0 <= temperature < float("inf"):
        raise UserError(f"temperature = {temperature}: must be 0 (greedy) or positive")
    if top_k < 0:
        raise UserError(f"top_k = {top_k}: must be 0 (off) or positive")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p = {top_p}: must lie in (0, 1]")


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Tensor,
    length: int,
    draws: list[Weights],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    generator: torch.Generator | None = None,
    cached: bool = True,
    dtype: str = "float32",
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields `length` times the next tokens (B,) and the hidden states (B, C) they were drawn from, after `prompt` (B, P) of ids.

    A context that reaches block_size goes on from its last half. `cached` = False reads the whole context anew for each token:
    the slow twin, token for token the same. On a GPU the steps between are one CUDA graph. The model must be in eval mode.
    ValueError if the prompt is longer than the block; Degenerate if the log-probabilities are not numbers, found at the first token or,
    so that a GPU need not wait for an answer at each, at the end.
    """
    T, device = model.trunk.config.block_size, prompt.device
    if not 1 <= prompt.shape[1] <= T:
        raise UserError(
            f"the prompt has {prompt.shape[1]} tokens; this model reads 1 to {T} (block_size): shorten it"
        )
    text, begin = prompt, 0
    cache = (
        Cache(model.trunk, len(text), get_dtype(dtype), min(T, prompt.shape[1] + length)) if cached else None
    )
    step = (
        Graph(model.trunk, cache, dtype)
        if cached and device.type == "cuda"
        else partial(model.trunk, cache=cache)
    )
    sound = torch.ones((), dtype=torch.bool, device=device)
    for n in range(length):
        if text.shape[1] - begin > T:
            begin = text.shape[1] - T // 2 - 1
            if cached:
                cache.length = 0
        with autocast(device, dtype):
            if not cached:
                hidden = model.trunk(text[:, begin:])[:, -1]
            elif cache.length == 0:
                hidden = model.trunk(text[:, begin:], cache=cache)[:, -1]
            else:
                hidden = step(text[:, -1:])[:, -1]
            log_p = model.head.log_probs(hidden, draws)
        # nan goes through amax; a row of -inf alone has no distribution either
        sound &= log_p.amax(1).isfinite().all()
        if n in (0, length - 1) and not sound:
            raise Degenerate("its log-probabilities are not numbers")
        p = truncate(log_p, temperature, top_k, top_p)
        token = draw(p, generator) if temperature else p.argmax(1, keepdim=True)
        text = torch.cat((text, token), 1)
        yield token[:, 0], hidden


def draw(p: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A token (N, 1) from each row of p (N, V), which need not be normalised, by inversion of its cumulative sum: one random number a row, where
    torch.multinomial draws V. In float64, so that no token's share is lost in the sum; `generator` is on
    `float64_device(p.device)`."""
    cumulative = to_float64(p).cumsum(1)
    u = torch.rand(len(p), 1, dtype=torch.float64, device=cumulative.device, generator=generator)
    # right: the first token whose sum exceeds u, so never one of probability 0
    token = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)
    return token.clamp(max=p.shape[1] - 1).to(p.device)


class Graph:
    """One decoding step as a CUDA graph: launched as a whole, where a kernel at a time leaves a GPU waiting for Python."""

    def __init__(self, trunk: GPT, cache: Cache, dtype: str):
        self.trunk, self.cache, self.dtype, self.graph = trunk, cache, dtype, None

    def __call__(self, token: Tensor) -> Tensor:
        """Hidden state (B, 1, C) of `token` (B, 1), which is appended to the cache. ValueError as of GPT.forward."""
        if self.graph is None:
            with torch.cuda.device(
                token.device
            ):  # a stream is the current GPU's, which need not be the model's
                self._capture(token)
        self.token.copy_(token)
        self.position.fill_(self.cache.length)
        self.graph.replay()
        self.cache.length += 1
        return self.hidden.clone()

    def _capture(self, token: Tensor) -> None:
        self.token, self.position = token.clone(), torch.tensor([self.cache.length], device=token.device)
        side = (
            torch.cuda.Stream()
        )  # warm-up outside the capture, on a stream of its own, as torch's documentation asks
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # writes the key and value of this position, as the replay then does
                self.hidden = self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.hidden = self._step()

    def _step(self) -> Tensor:
        # autocast must not keep casted weights of one capture for another
        with autocast("cuda", self.dtype, cache=False):
            return self.trunk.decode(self.token, self.cache, self.position)


@torch.no_grad()
def entropies(model: LanguageModel, hidden: Tensor, draws: list[Weights]) -> tuple[Tensor, Tensor, Tensor]:
    """Uncertainty about the next token after hidden (N, C), each (N,), in nats: total = H[mean over draws of p], aleatoric = mean of H[p],
    epistemic = their difference, the mutual information of token and weights. Source: Depeweg et al. 2018, arXiv 1710.07283, eq. 4."""
    H = lambda lp: -(lp.exp() * lp.masked_fill(lp == -torch.inf, 0)).sum(1)
    total = H(model.head.log_probs(hidden, draws))
    aleatoric = torch.stack([H(model.head.log_probs(hidden, [d])) for d in draws]).mean(0)
    return total, aleatoric, total - aleatoric


class Stream:
    """Prints ids as they come: only the text that further ids can no longer change (a character may take several tokens)."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer, self.ids, self.shown = tokenizer, [], 0

    def add(self, token: int, last: bool = False) -> None:
        self.ids.append(token)
        text = self.tokenizer.decode(self.ids)
        if last or not text.endswith("\ufffd"):
            sys.stdout.write(text[self.shown :])
            sys.stdout.flush()
            self.shown = len(text)


def parser() -> Parser:
    p = Parser(__doc__)
    p.add_argument("checkpoint", type=path, help="the out folder of a training run, or one checkpoint in it")
    p.add_argument("--prompt", default="\n", help="text to continue (default: a new line)")
    p.add_argument("--prompts", metavar="FILE", help="a file with one prompt a line, instead of --prompt")
    p.add_argument("--num_samples", type=int, default=1, help="texts for each prompt")
    p.add_argument("--length", type=int, default=200, help="new tokens of each text")
    p.add_argument("--temperature", type=float, default=1.0, help="0 is greedy")
    p.add_argument("--top_k", type=int, default=0, help="0: all tokens")
    p.add_argument("--top_p", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=1337)
    p.add_argument(
        "--samples", type=int, default=8, help="weight draws of a Bayesian projection, kept for the whole run"
    )
    p.add_argument(
        "--uncertainty",
        action="store_true",
        help="after each text, its tokens with total, aleatoric and epistemic uncertainty (nats)",
    )
    p.add_argument("--which", choices=("best", "last"), default="best", help="which checkpoint of the run")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps")
    p.add_argument(
        "--dtype",
        default="auto",
        help="of matrix products: float32, bfloat16, float16; auto: bfloat16 if the device has it",
    )
    p.add_argument(
        "--int8",
        action="store_true",
        help="int8 weights in the trunk's linear layers: faster on an x86 CPU without bfloat16. "
        "What is sampled is then close to, no longer exactly what is scored; a text also "
        "depends a little on those sampled beside it, and on the cache",
    )
    p.add_argument(
        "--no_cache",
        action="store_true",
        help="read the whole context for every token (slow; for comparison)",
    )
    return p


def check_int8(device: torch.device, dtype: str) -> None:
    """ValueError where int8 weights are of no use: another device than a CPU, another dtype than float32."""
    if device.type != "cpu":
        raise UserError(f"--int8 is for a CPU, the device is {device}: leave it out or give --device=cpu")
    if dtype != "float32":
        raise UserError(f"--int8 goes with float32, not with --dtype={dtype}: give one of the two")


def read_prompts(args: argparse.Namespace) -> list[str]:
    """The prompts asked for: of a file its lines, without the mark (BOM) that some editors put before the
    first.
    """
    if not args.prompts:
        return [args.prompt]
    text = read_text(path(args.prompts)).removeprefix("\ufeff")
    prompts = [line for line in text.split("\n") if line]
    if not prompts:
        raise UserError(f"--prompts {args.prompts}: the file holds no prompt; put one on each line")
    return prompts


def check_memory(model: LanguageModel, texts: int, samples: int, length: int, device: torch.device) -> None:
    """ValueError if `texts` of `length` tokens at a time, with `samples` draws of Bayesian weights, cannot
    fit: keys and values, one row of logits
    and three of probabilities each, and a projection a draw."""
    c = model.trunk.config
    drawn = samples * isinstance(model.head.projection, BayesianProjection)
    needed = texts * (4 * c.n_layer * c.n_embd * min(length, c.block_size) + 20 * c.vocab_size)
    needed += 4 * drawn * c.vocab_size * c.n_embd
    what = f"sampling {texts} texts at a time" + f" with {samples} draws of the weights" * bool(drawn)
    check_fits(needed, device, what, "num_samples, length or samples")


def main(argv: list[str]) -> int:
    args = parser().parse_args(argv)
    check_sampling(args.temperature, args.top_k, args.top_p)
    for key in ("num_samples", "length", "samples"):
        if getattr(args, key) < 1:
            raise UserError(f"{key} = {getattr(args, key)}: must be at least 1")
    check_seed(args.seed)
    args.device = get_device(args.device)
    if args.int8 and args.dtype == "auto":
        args.dtype = "float32"
    args.dtype, why = settle_dtype(args.dtype, args.device)
    dtype = get_dtype(args.dtype)
    if args.int8:
        check_int8(args.device, args.dtype)
    model, ckpt = load_model(args.checkpoint, args.which, args.device, dtype)
    if args.int8:
        model.trunk.quantize()
    tokenizer = tokenizer_of(ckpt)
    encoded = []
    for text in read_prompts(args):
        ids = tokenizer.encode(text)
        if not ids:
            raise UserError("the prompt is empty: give at least one character")
        if len(ids) > model.trunk.config.block_size:
            raise UserError(
                f"the prompt {text[:40]!r} has {len(ids)} tokens; this model reads at most {model.trunk.config.block_size} (block_size): shorten it"
            )
        encoded.append(ids)
    check_memory(model, args.num_samples, args.samples, max(map(len, encoded)) + args.length, args.device)
    draws = model.head.draws(args.samples, args.seed, dtype)
    if args.uncertainty and len(draws) == 1:
        print(
            "note: the weights of this model are points or a single draw: the epistemic part is 0",
            file=sys.stderr,
        )
    print(
        f"{ckpt.path}: step {ckpt.progress['step']}, head {ckpt.config['head']}; "
        f"temperature {args.temperature:g}, top_k {args.top_k}, top_p {args.top_p:g}, seed {args.seed}; "
        f"{args.dtype}: {why}",
        file=sys.stderr,
    )
    if args.int8:
        print("int8 weights: close to the distribution that is scored, no longer exactly it", file=sys.stderr)
    generator = torch.Generator(float64_device(args.device)).manual_seed(args.seed)
    began = time.perf_counter()
    try:
        for i, ids in enumerate(encoded):
            write_samples(
                args, model, tokenizer, ids, draws, generator, f"prompt {i + 1}, " if len(encoded) > 1 else ""
            )
    except Degenerate as e:
        raise Degenerate(e.what, ckpt.path) from None
    n = args.length * args.num_samples * len(encoded)
    print(f"{n} tokens, {n / (time.perf_counter() - began):,.0f} tokens/s", file=sys.stderr)
    return 0


def write_samples(
    args,
    model: LanguageModel,
    tokenizer: Tokenizer,
    ids: list[int],
    draws: list[Weights],
    generator: torch.Generator,
    title: str,
) -> None:
    """All samples of one prompt: streamed if there is one, in turn if there are several."""
    prompt = torch.tensor([ids] * args.num_samples, device=args.device)
    stream = Stream(tokenizer) if args.num_samples == 1 else None
    if title and stream:
        print(f"--- {title.rstrip(', ')}")
    if stream:
        for t in ids:
            stream.add(t)
    columns, unsure = [], []
    steps = generate(
        model,
        prompt,
        args.length,
        draws,
        args.temperature,
        args.top_k,
        args.top_p,
        generator,
        not args.no_cache,
        args.dtype,
    )
    for n, (token, hidden) in enumerate(steps):
        columns.append(token)
        if stream:
            stream.add(token.item(), last=n == args.length - 1)
        if args.uncertainty:
            with autocast(args.device, args.dtype):
                unsure.append(torch.stack(entropies(model, hidden, draws), 1))  # (B, 3)
    texts = torch.stack(columns, 1).tolist()  # (B, length)
    for b, new in enumerate(texts):
        print() if stream else print(f"--- {title}sample {b + 1}\n{tokenizer.decode(ids + new)}")
        if args.uncertainty:
            print(f"{'token':>20}  total  aleatoric  epistemic   (nats)")
            for t, u in zip(new, (u[b].tolist() for u in unsure)):
                print(f"{tokenizer.decode([t])!r:>20}  {u[0]:5.2f}  {u[1]:9.2f}  {u[2]:9.4f}")


if __name__ == "__main__":
    cli(main)()
