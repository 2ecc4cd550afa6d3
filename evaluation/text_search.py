"""One text that is searched for, where sampling.py draws: no sample of the distribution that is scored."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from evaluation.decoding import TextSearch
from evaluation.sampling import Growing
from evaluation.truncation import check_left, penalised
from heads import Weights
from model import LanguageModel
from runtime.checkpoint import Degenerate
from runtime.device import autocast


@torch.no_grad()
def beam_search(
    model: LanguageModel,
    prompt: Tensor,
    length: int,
    draws: list[Weights],
    c: TextSearch,
    cached: bool = True,
    dtype: str = "float32",
) -> tuple[Tensor, float]:
    """The most probable of c.beams texts (P + length,) that begin with `prompt` (1, P), and its score: the
    mean of log p, less c's penalties, over the new tokens.

    At each step all texts go on by all tokens, and those with the largest sums of log p stay. No token ends a
    text, so all are of one length and the mean orders them as the sum does.

    Source: Sutskever et al. 2014, arXiv 1409.3215, sec. 3.2. Errors as of sampling.generate; UserError, too,
    if no_repeat_ngram leaves none of the texts a token.
    """
    text = prompt.expand(c.beams, -1)
    growing = Growing(model.trunk, text, length, dtype, cached)
    total = torch.full((c.beams, 1), -torch.inf, device=prompt.device)
    total[0] = 0  # the texts are still the same: one of them counts
    for n in range(length):
        log_p = next_log_p(model, growing.read(text)[:, -1], draws, dtype)
        continued = (total + penalised(log_p, text, n, c)).flatten()  # (B V,)
        check_left(continued[None], c)  # a text that cannot go on leaves the others
        total, at = continued.topk(c.beams)
        rows, token = at // log_p.shape[1], at % log_p.shape[1]
        text, total = torch.cat((text[rows], token[:, None]), 1), total[:, None]
        growing.keep(rows)
    return text[0], float(total[0]) / length


@torch.no_grad()
def contrastive_search(
    model: LanguageModel,
    prompt: Tensor,
    length: int,
    draws: list[Weights],
    c: TextSearch,
    cached: bool = True,
    dtype: str = "float32",
) -> tuple[Tensor, float]:
    """A text (P + length,) that begins with `prompt` (1, P), and the mean of log p over its new tokens.

    The next token is the one with the largest

        (1 - alpha) p(v) - alpha max_j cos(h_v, h_j)

    of the k = c.top_k most probable ones, none of p(v) = 0. alpha is c.contrastive, h_v the last hidden state
    once v is read, and h_j that of each token before which the model sees.

    Source: Su et al. 2022, arXiv 2202.06417. Errors as of sampling.generate.
    """
    k = min(c.top_k, model.trunk.config.vocab_size)
    text = prompt.expand(k, -1)  # a row for each token that may be next
    growing = Growing(model.trunk, text, length, dtype, cached)
    hidden = growing.read(text)
    context = F.normalize(hidden[0].float(), dim=1)  # (T, C)
    total = 0.0
    for _ in range(length):
        log_p, tokens = next_log_p(model, hidden[:1, -1], draws, dtype)[0].topk(k)
        text = torch.cat((text, tokens[:, None]), 1)
        hidden = growing.read(text)
        directions = F.normalize(hidden.float(), dim=2)
        if directions.shape[1] > 1:  # the context was read anew, all of it or its last half
            context = directions[0, :-1]
        alike = (directions[:, -1] @ context.T).amax(1)
        score = (1 - c.contrastive) * log_p.exp() - c.contrastive * alike
        best = score.masked_fill(log_p == -torch.inf, -torch.inf).argmax().expand(k)
        total += float(log_p[best[0]])
        text, hidden = text[best], hidden[best]
        context = torch.cat((context, directions[best[:1], -1]))
        growing.keep(best)
    return text[0], total / length


def next_log_p(model: LanguageModel, hidden: Tensor, draws: list[Weights], dtype: str) -> Tensor:
    """log p (B, V) after hidden (B, C). Degenerate if they are not numbers."""
    with autocast(hidden.device, dtype):
        log_p = model.head.log_probs(hidden, draws)
    if not log_p.amax(1).isfinite().all():
        raise Degenerate("its log-probabilities are not numbers")
    return log_p


SEARCHES: dict[str, Callable[..., tuple[Tensor, float]]] = {
    "beams": beam_search,
    "contrastive": contrastive_search,
}
