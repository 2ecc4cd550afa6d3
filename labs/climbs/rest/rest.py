"""What a model says of the rest of sequences, given any part of each: its nats, samples, and the density at
each place.

A text is (n, T) ids, FREE where a place is; as many are free in each row. A left-to-right model can be asked
only where what is known is the start.
"""

import torch
from torch import Tensor

from common.device import autocast, float64_device, to_float64
from labs.orders.asking import Asker
from labs.orders.filling import in_order
from labs.orders.readers import places_of, reader_of
from labs.orders.samplers import continue_texts
from labs.sequences.questions import FREE

BATCH = 256  # texts


def can_be_asked(asker: Asker, text: Tensor) -> bool:
    """Whether a model can be given what is known of `text`."""
    known = text != FREE
    is_start = bool((known[:, 1:] <= known[:, :-1]).all() and known[:, 0].all())
    return asker.order != "left_to_right" or is_start


@torch.no_grad()
def rest_nats(asker: Asker, text: Tensor, whole: Tensor) -> float:
    """-log p(rest | known) in nats a token, of texts whose rest is known to be that of `whole` (n, T).

    By the chain rule from left to right. It is no bound for masked diffusion either, which takes a pass a
    token.
    """
    total = 0.0
    for part, right in zip(text.split(BATCH), whole.split(BATCH)):
        if asker.order == "left_to_right":
            log_p = log_p_from(asker, right, int((part[0] != FREE).sum()))
        else:
            log_p = _log_p_between(asker, part, right)
        total -= float(log_p.cpu().sum())
    return total / int((text == FREE).sum())


def log_p_from(asker: Asker, tokens: Tensor, first: int) -> Tensor:
    """log p (B, T - first), float64, of each token of `tokens` (B, T) from place `first` on, given those
    before it, under a left-to-right model."""
    tokens = tokens.to(asker.device)
    with autocast(asker.device, asker.dtype):
        hidden = asker.model.trunk(tokens[:, :-1])[:, first - 1 :].flatten(0, 1)
        log_p = asker.model.head.log_p_of(hidden, asker.draws, tokens[:, first:].flatten())
    return to_float64(log_p).view(len(tokens), -1)


def _log_p_between(asker: Asker, text: Tensor, whole: Tensor) -> Tensor:
    """log p (n, F) of the tokens at the free places, of a model of any order or of masked diffusion."""
    reader = reader_of(asker.model, text, asker.draws, dtype=asker.dtype)
    places, log_p = places_of(text == FREE), []
    for at in places.split(1 if asker.order == "masked" else places.shape[1], 1):
        tokens = whole.gather(1, at)
        conditionals = reader.along(at, tokens)
        log_p.append(conditionals.probs(tokens).log())
        reader.accept(conditionals, at, tokens, torch.full((len(at),), at.shape[1]))
    return torch.cat(log_p, 1)


def sample_rest(asker: Asker, text: Tensor, seed: int) -> Tensor:
    """Texts (n, T) whose free places the model filled in, a token a pass."""
    generator = torch.Generator(float64_device(asker.device)).manual_seed(seed)

    def filled(part: Tensor) -> Tensor:
        if asker.order == "left_to_right":
            return continue_texts(asker, part, generator).text
        reader = reader_of(asker.model, part, asker.draws, dtype=asker.dtype)
        return in_order(reader, generator, order=asker.fills, given=asker.given).text

    return torch.cat([filled(part).cpu() for part in text.split(BATCH)])


@torch.no_grad()
def density(asker: Asker, text: Tensor) -> Tensor:
    """p (n, T, V) of each place, float64, given all that is known, in one pass; a known token has all of it.
    UserError of a left-to-right model."""
    p = torch.zeros(*text.shape, asker.model.head.head.vocab_size, dtype=torch.float64)
    p.scatter_(2, text.clamp(min=0)[:, :, None], (text != FREE).double()[:, :, None])
    places, rows = places_of(text == FREE), torch.arange(len(text))
    each = reader_of(asker.model, text, asker.draws, dtype=asker.dtype).each(places)
    for n in range(places.shape[1]):
        p[rows, places[:, n]] = each.row(torch.full((len(text),), n))
    return p
