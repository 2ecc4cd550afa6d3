"""What a model says of the rest of sequences, given any part of each: its nats, samples, and the density at
each place.

A text is (n, T) ids, FREE where a place is; as many are free in each row. A left-to-right model can be asked
only where what is known is the start.
"""

import torch
from torch import Tensor

from evaluation.any_order import FREE, reader_of
from evaluation.orders import Asker
from evaluation.samplers import writers
from runtime.device import autocast, float64_device

BATCH = 256  # texts
# trunk -> its usual sampler among those that keep the model's distribution
SAMPLER = {"left_to_right": "left to right", "any": "random order", "masked": "a token a pass"}


def can_be_asked(who: Asker, text: Tensor) -> bool:
    """Whether a model can be given what is known of `text`."""
    known = text != FREE
    is_start = bool((known[:, 1:] <= known[:, :-1]).all() and known[:, 0].all())
    return who.order != "left_to_right" or is_start


@torch.no_grad()
def nats(who: Asker, text: Tensor, whole: Tensor) -> float:
    """-log p(rest | known) in nats a token, of texts whose rest is known to be that of `whole` (n, T).

    By the chain rule from left to right. It is no bound for masked diffusion either, which takes a pass a
    token.
    """
    total = 0.0
    for part, right in zip(text.split(BATCH), whole.split(BATCH)):
        said = _continued if who.order == "left_to_right" else _filled_in
        total -= float(said(who, part, right).sum())
    return total / int((text == FREE).sum())


def _continued(who: Asker, text: Tensor, whole: Tensor) -> Tensor:
    """log p (n * F,)."""
    known = int((text[0] != FREE).sum())
    with autocast(who.device, who.dtype):
        hidden = who.model.trunk(whole[:, :-1].to(who.device))[:, known - 1 :]
        log_p = who.model.head.log_probs(hidden.flatten(0, 1), who.draws).cpu().double()
    return log_p.gather(1, whole[:, known:].reshape(-1, 1))


def _filled_in(who: Asker, text: Tensor, whole: Tensor) -> Tensor:
    """log p (n, F)."""
    c = reader_of(who.model, text, who.draws, dtype=who.dtype)
    places, out = free_places(text), []
    for at in places.split(1 if who.order == "masked" else places.shape[1], 1):
        tokens = whole.gather(1, at)
        said = c.along(at, tokens)
        out.append(said.probs(tokens).log())
        c.accept(said, at, tokens, torch.full((len(at),), at.shape[1]))
    return torch.cat(out, 1)


def free_places(text: Tensor) -> Tensor:
    """(n, F), from left to right."""
    free = text == FREE
    return (~free).int().argsort(dim=1, stable=True)[:, : int(free.sum(1).max())]


def written(who: Asker, text: Tensor, seed: int) -> Tensor:
    """Texts (n, T) whose free places the model filled in."""
    generator = torch.Generator(float64_device(who.device)).manual_seed(seed)
    write = writers(who.order)[SAMPLER[who.order]]
    return torch.cat([write(who, part, generator).text.cpu() for part in text.split(BATCH)])


@torch.no_grad()
def density(who: Asker, text: Tensor) -> Tensor:
    """p (n, T, V) of each place, float64, given all that is known, in one pass; a known token has all of it.
    UserError of a left-to-right model."""
    p = torch.zeros(*text.shape, who.model.head.head.vocab_size, dtype=torch.float64)
    p.scatter_(2, text.clamp(min=0)[:, :, None], (text != FREE).double()[:, :, None])
    places, rows = free_places(text), torch.arange(len(text))
    said = reader_of(who.model, text, who.draws, dtype=who.dtype).each(places)
    for n in range(places.shape[1]):
        p[rows, places[:, n]] = said.row(torch.full((len(text),), n))
    return p
