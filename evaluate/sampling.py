"""Sampling, the twin of scoring.py: tokens drawn from the distribution that is scored.

sample.py prints such tokens, and the tables measure them.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from common.device import autocast, float64_device, get_dtype, to_float64
from common.errors import UserError
from common.log import progress_bar
from evaluate.decoding import AS_SCORED, Decoding, truncate
from evaluate.settings import SampledConfig, run_seed
from heads import Weights
from model import GPT, Cache, LanguageModel, Trunk
from training.run import Degenerate

WEIGHT_DRAWS = 8  # of a Bayesian projection, where a command has no flag for their number


def weight_draws(
    model: LanguageModel, config: dict[str, Any], samples: int, seed: int, dtype: str = "float32"
) -> list[Weights]:
    """`samples` weight draws of a run with this configuration, by a command's `seed`. Every command that
    samples or scores, and an exported folder, has the same draws for the same two options."""
    return model.head.draws(samples, run_seed(seed, config), get_dtype(dtype))


class Growing:
    """Reads texts that grow by a token at a time, at most `length` after the prompt (B, P) of ids.

    When the context is full, its last half is read anew. `cached` = False reads the whole context anew for
    each token, as a trunk without a cache does: slower, and token for token the same. On a GPU each single
    token that GPT reads is one CUDA graph.

    UserError if the prompt is longer than the block.
    """

    def __init__(self, trunk: Trunk, prompt: Tensor, length: int, dtype: str, cached: bool = True):
        T = trunk.context
        if not 1 <= prompt.shape[1] <= T:
            raise UserError(f"the prompt has {prompt.shape[1]} tokens: give 1 to {T} (block_size)")
        self.trunk, self.dtype, self.begin = trunk, dtype, 0
        size = min(T, prompt.shape[1] + length)
        self.cache = trunk.new_cache(len(prompt), get_dtype(dtype), size) if cached else None
        self.step: Callable[[Tensor], Tensor] = partial(trunk, cache=self.cache)
        if self.cache is not None and isinstance(trunk, GPT) and prompt.device.type == "cuda":
            self.step = Graph(trunk, self.cache, dtype)

    def read(self, text: Tensor) -> Tensor:
        """Hidden states (B, n, C) of the last n tokens of text (B, N): n = 1, or the context that is read
        anew."""
        if text.shape[1] - self.begin > self.trunk.context:
            self.begin = text.shape[1] - self.trunk.context // 2 - 1
            if self.cache is not None:
                self.cache.length = 0
        with autocast(text.device, self.dtype):
            if self.cache is None:
                return self.trunk(text[:, self.begin :])
            if self.cache.length == 0:
                return self.trunk(text[:, self.begin :], cache=self.cache)
            return self.step(text[:, -1:])


@torch.no_grad()
def generate(
    model: LanguageModel,
    prompt: Tensor,
    length: int,
    draws: list[Weights],
    decoding: Decoding = AS_SCORED,
    generator: torch.Generator | None = None,
    cached: bool = True,
    dtype: str = "float32",
    blend: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields `length` times the next tokens (B,) and the hidden states (B, C) that they were drawn from.

    `prompt` (B, P) holds ids. The model must be in eval mode. For the context and `cached` see Growing.

    `blend` makes one distribution of several contexts (classifier-free guidance): log p (B, V) -> (N, V) of
    the texts that are drawn, where text i is in the rows i, N + i, 2 N + i, ... of the prompt. The tokens are
    then (N,).

    UserError if the prompt is longer than the block. Degenerate if the log-probabilities are not numbers:
    found at the first token or at the end, so that a GPU need not wait for an answer at each token.
    """
    text, device = prompt, prompt.device
    growing = Growing(model.trunk, prompt, length, dtype, cached)
    sound = torch.ones((), dtype=torch.bool, device=device)
    for n in range(length):
        hidden = growing.read(text)[:, -1]
        with autocast(device, dtype):
            log_p = model.head.log_probs(hidden, draws)
        if blend is not None:
            log_p = blend(log_p)
        # nan goes through amax; a row of -inf alone has no distribution either
        sound &= log_p.amax(1).isfinite().all()
        if n in (0, length - 1) and not sound:
            raise Degenerate("its log-probabilities are not numbers")
        p = truncate(log_p, decoding)
        token = draw(p, generator) if decoding.temperature else p.argmax(1, keepdim=True)
        text = torch.cat((text, token.repeat(len(text) // len(token), 1)), 1)
        yield token[:, 0], hidden


def draw(p: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A token (N, 1) from each row of p (N, V), which need not be normalised.

    By inversion of its cumulative sum: one random number a row, where torch.multinomial draws V. In float64,
    so that no token's share is lost in the sum; `generator` is on `float64_device(p.device)`.
    """
    cumulative = to_float64(p).cumsum(1)
    u = torch.rand(len(p), 1, dtype=torch.float64, device=cumulative.device, generator=generator)
    # right: the first token whose sum exceeds u, so never one of probability 0
    token = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)
    return token.clamp(max=p.shape[1] - 1).to(p.device)


class Graph:
    """One decoding step as a CUDA graph, which is launched as a whole: kernel by kernel, the GPU would wait
    for Python."""

    def __init__(self, trunk: GPT, cache: Cache, dtype: str):
        self.trunk, self.cache, self.dtype = trunk, cache, dtype
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, token: Tensor) -> Tensor:
        """Hidden state (B, 1, C) of `token` (B, 1), which is appended to the cache. The cache must have
        room."""
        if self.graph is None:
            # a stream is the current GPU's, which need not be the model's
            with torch.cuda.device(token.device):
                self.graph = self._capture(token)
        self.token.copy_(token)
        self.position.fill_(self.cache.length)
        self.graph.replay()
        self.cache.length += 1
        return self.hidden.clone()

    def _capture(self, token: Tensor) -> torch.cuda.CUDAGraph:
        self.token, self.position = token.clone(), torch.tensor([self.cache.length], device=token.device)
        # warm-up outside the capture, on a stream of its own, as torch's documentation asks
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # writes the key and value of this position, as the replay then does
                self.hidden = self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.hidden = self._step()
        return graph

    def _step(self) -> Tensor:
        # autocast must not keep casted weights of one capture for another
        with autocast("cuda", self.dtype, cache=False):
            return self.trunk.decode(self.token, self.cache, self.position)


@torch.no_grad()
def entropies(model: LanguageModel, hidden: Tensor, draws: list[Weights]) -> tuple[Tensor, Tensor, Tensor]:
    """Uncertainty about the next token after hidden (N, C): total, aleatoric, epistemic, each (N,), in nats.

    total = H[mean over draws of p], aleatoric = mean over draws of H[p], epistemic = their difference, the
    mutual information of token and weights. Source: Depeweg et al. 2018, arXiv 1710.07283, eq. 4.
    """

    def H(lp: Tensor) -> Tensor:
        return torch.special.entr(lp.exp()).sum(1)

    total = H(model.head.log_probs(hidden, draws))
    aleatoric = torch.stack([H(model.head.log_probs(hidden, [d])) for d in draws]).mean(0)
    return total, aleatoric, total - aleatoric


# -----------------------------------------------------------------------------
# The texts of a table


class Prompts(NamedTuple):
    """(n, prompt) ids, and (n, new) ids of the human continuation of each."""

    prompt: np.ndarray
    human: np.ndarray


def held_out_prompts(ids: np.ndarray, n: int, prompt: int, new: int, seed: int | None = None) -> Prompts:
    """`n` prompts with their continuations out of the token stream, spread evenly and without overlap; with a
    seed at random places. UserError if the split is too short for them."""
    span = prompt + new
    if n * span > len(ids):
        raise UserError(f"texts = {n} of {prompt} + {new} tokens do not fit a split of {len(ids)} tokens")
    places = len(ids) - span + 1
    if seed is None:
        starts = np.linspace(0, places - 1, n).astype(int)
    else:
        starts = np.random.default_rng(seed).choice(places, n, replace=False)
    rows = np.stack([ids[s : s + span] for s in starts]).astype(np.int64)
    return Prompts(rows[:, :prompt], rows[:, prompt:])


def sample_texts(
    model: LanguageModel, prompts: np.ndarray, c: SampledConfig, device: torch.device, title: str
) -> np.ndarray:
    """(n, new_tokens) ids sampled after each prompt; c.seed is the run's own, see `run_seed`."""
    batch = 50  # prompts at once
    draws = model.head.draws(c.samples, c.seed, get_dtype(c.dtype))
    generator = torch.Generator(float64_device(device)).manual_seed(c.seed)
    total = len(prompts) * c.new_tokens
    out = []
    how = dict(unit="tok", unit_scale=True, desc=f"{title}: sampling", leave=False)
    with progress_bar(total=total, **how) as bar:
        for part in np.split(prompts, range(batch, len(prompts), batch)):
            columns = []
            start = torch.from_numpy(part).to(device)
            for token, _ in generate(model, start, c.new_tokens, draws, c, generator, dtype=c.dtype):
                columns.append(token)
                bar.update(len(part))
            out.append(torch.stack(columns, 1).cpu().numpy())
    return np.concatenate(out)
