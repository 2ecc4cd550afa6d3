"""Conditionals of any order with a cache, and the samplers: one token at a time, in bursts, speculative."""

import math
from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
import torch
from torch import Tensor

from evaluate.decoding import Decoding, truncate
from labs.orders.filling import burst, diffusion, one_by_one, random_places, speculative, surest_first
from labs.orders.readers import MaskedReader, Reader, reader_of
from labs.orders.tests.test_trunk import V, log_p, model_of
from labs.sequences.questions import FREE

T = 8
G = torch.Generator


def reader(model, text: Tensor, **more) -> Reader:
    return Reader(model, text, model.head.draws(1, 0, torch.float64), **more)


def some_text(rows: list[list[int]], length: int = T) -> Tensor:
    """Texts in which the given places are known."""
    rng = np.random.default_rng(0)
    text = torch.full((len(rows), length), FREE)
    for row, places in zip(text, rows):
        row[places] = torch.from_numpy(rng.integers(0, V, len(places)))
    return text


def q_of(model, known: list[tuple[int, int]], place: int) -> Tensor:
    """p (V,) at a place after `known`, pairs of (place, token) in the order in which they were given: without
    a cache."""
    own = [model.trunk.config.block_size, *(i for i, _ in known)]
    following = [*(i for i, _ in known), place]
    tokens = torch.tensor([[model.trunk.config.vocab_size, *(t for _, t in known)]])
    return log_p(model, tokens, torch.tensor([list(zip(own, following))]))[0, -1].exp()


def given(row: Tensor) -> list[tuple[int, int]]:
    return [(i, t) for i, t in enumerate(row.tolist()) if t != FREE]


ROWS = [[], [0], [7], [2, 5], [0, 1, 2], [1, 3, 4, 6, 7]]


@torch.no_grad()
def test_densities_in_one_pass_are_those_of_one_query_at_a_time():
    """Each place sees what is known and itself, also where rows know different places."""
    model, text = model_of(), some_text(ROWS)
    places, left = random_places(text, G().manual_seed(0))
    each = reader(model, text).each(places)
    p = torch.stack([each.probs(torch.full_like(places, v)) for v in range(V)], 2)
    for b in range(len(text)):
        want = [q_of(model, given(text[b]), place) for place in places[b, : left[b]].tolist()]
        torch.testing.assert_close(p[b, : left[b]], torch.stack(want), rtol=0, atol=1e-12)
    at = torch.tensor([3, 0, 2, 1, 0, 0])
    torch.testing.assert_close(each.row(at), p[torch.arange(len(at)), at])


@torch.no_grad()
def test_cached_equals_uncached_along_any_path():
    """Accepted in parts of different length in each row."""
    model, text = model_of(), some_text(ROWS)
    r, generator = reader(model, text), G().manual_seed(1)
    known = [given(row) for row in text]
    rng = np.random.default_rng(1)
    while (r.text == FREE).any():
        places, _ = random_places(r.text, generator)
        left = (r.text == FREE).sum(1)
        tokens = torch.randint(0, V, places.shape, generator=generator)
        q = r.along(places, tokens)
        got = q.probs(tokens)
        count = torch.tensor([int(rng.integers(0, n + 1)) for n in left.tolist()])
        for b in range(len(text)):
            path = list(zip(places[b].tolist(), tokens[b].tolist()))
            for j in range(int(left[b])):
                want = q_of(model, known[b] + path[:j], path[j][0])[path[j][1]]
                torch.testing.assert_close(got[b, j], want, rtol=0, atol=1e-12)
            known[b] += path[: count[b]]
        r.accept(q, places, tokens, count)
        for b in range(len(text)):
            assert given(r.text[b]) == sorted(known[b])


# ---- exactness, by enumeration -----------------------------------------------------------------------------

SMALL_T, SMALL_V, DRAWS = 3, 3, 10_000


def law(model, orders: dict[tuple[int, ...], float]) -> dict[tuple, float]:
    """p of each text, drawn token by token in one of `orders`, by their probabilities."""
    out = dict.fromkeys(product(range(SMALL_V), repeat=SMALL_T), 0.0)
    for text in out:
        for order, share in orders.items():
            known: list[tuple[int, int]] = []
            p = 1.0
            for place in order:
                p *= q_of(model, known, place)[text[place]].item()
                known.append((place, text[place]))
            out[text] += p * share
    return out


def shares(text: Tensor) -> Tensor:
    """How often each text comes, in the order of `product`."""
    place = torch.tensor([SMALL_V**2, SMALL_V, 1])
    return torch.bincount(text @ place, minlength=SMALL_V**SMALL_T).double() / len(text)


def distance(toy, sample, draws: int = DRAWS) -> float:
    """Total variation between `draws` texts and the law `want`."""
    model, want = toy
    filled = sample(reader(model, torch.full((draws, SMALL_T), FREE)), G().manual_seed(2))
    return float((shares(filled.text) - torch.tensor([*want.values()])).abs().sum() / 2)


@pytest.fixture(scope="module")
def toy():
    """(a small model, its law)."""
    model = model_of(length=SMALL_T, vocab=SMALL_V)
    return model, law(model, dict.fromkeys(permutations(range(SMALL_T)), 1 / math.factorial(SMALL_T)))


NOISE = 0.03  # of 27 frequencies of 10,000 draws: .021 expected at most


def test_which_samplers_are_exact(toy):
    """The paper's bursts are not, which is not to be mistaken for a property of ours."""
    for sample in (one_by_one, speculative):
        assert distance(toy, sample) < NOISE
    assert distance(toy, burst) > 0.04
    sample = partial(speculative, order="fractal")
    assert distance((toy[0], law(toy[0], {(1, 0, 2): 1.0})), sample) < NOISE
    assert distance((toy[0], law(toy[0], {(2, 1, 0): 1.0})), sample, draws=2000) > 0.1


@pytest.mark.parametrize("leftmost", [False, True])
@pytest.mark.parametrize("order", ["any", "masked"])
def test_a_sampler_that_is_surest_first_knows_its_own_law(order, leftmost):
    """The probabilities of all texts sum to 1, and its draws come as often."""
    model = model_of(length=SMALL_T, vocab=SMALL_V, order=order)
    with torch.no_grad():
        model.head.projection.weight *= 30  # sure of some places and not of others

    def fill(text: Tensor, **more):
        return surest_first(
            reader_of(model, text, model.head.draws(1, 0, torch.float64)), leftmost=leftmost, **more
        )

    texts = torch.tensor(list(product(range(SMALL_V), repeat=SMALL_T)))
    exact = fill(torch.full_like(texts, FREE), target=texts)
    assert torch.equal(exact.text, texts)
    law = exact.log_p.exp()
    assert law.sum().item() == pytest.approx(1, abs=1e-9) and law.max() > 2 / len(law)
    draws = DRAWS // 2
    drawn = fill(torch.full((draws, SMALL_T), FREE), generator=G().manual_seed(4))
    number = (drawn.text * torch.tensor([SMALL_V**2, SMALL_V, 1])).sum(1)
    assert (law[number].log() - drawn.log_p).abs().max() < 1e-6
    assert (shares(drawn.text) - law).abs().sum() / 2 < 0.04


@pytest.mark.parametrize("order", ["any", "masked"])
def test_a_temperature_leaves_the_order_of_the_surest_as_it_is(order):
    """At 0 all places would be equally sure of their one token, and left to right would follow."""
    model, text = model_of(order=order), some_text([[], [2, 5]])
    with torch.no_grad():
        model.head.projection.weight *= 30
    ranks = []
    for temperature in (1.0, 0.0):
        cut = partial(truncate, c=Decoding(temperature=temperature))
        c = reader_of(model, text, model.head.draws(1, 0), cut)
        sure = c.each(random_places(text, G().manual_seed(0))[0]).certainty()
        ranks.append(sure.argsort(1).tolist())
    assert ranks[0] == ranks[1] and sure[0].unique().numel() == T


# ---- batches -----------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("sample", [burst, speculative, surest_first])
def test_a_text_that_is_done_is_in_no_further_pass(sample):
    """Each pass is of the texts that have a free place, and says of them what it says of all. What is known
    stays."""
    model, text = model_of(), some_text([[0, 3, 5], list(range(T)), [], list(range(1, T))])
    r, sizes, forward = reader(model, text), [], model.trunk.forward

    def counted(tokens, *rest):
        sizes.append(len(tokens))
        return forward(tokens, *rest)

    model.trunk.forward = counted
    filled = sample(r, generator=G().manual_seed(5))
    known = text != FREE
    assert (filled.text[known] == text[known]).all() and (filled.rank[known] == 0).all()
    assert ((filled.text >= 0) & (filled.text < V)).all() and (filled.rank[~known] > 0).all()
    rounds = [len(set(row) - {0}) for row in filled.rank.tolist()]
    left = [sum(n >= number for n in rounds) for number in range(1, filled.rounds + 1)]
    assert rounds[1] == 0 and rounds[3] == 1 and left[-1] < 3
    assert sorted(sizes, reverse=True) == sizes and [*dict.fromkeys(sizes)] == [*dict.fromkeys(left)]


@torch.no_grad()
def test_a_probability_below_float32_is_not_zero():
    model = model_of("any", gain=100.0).float()
    reader = reader_of(model, torch.full((1, 4), FREE), model.head.draws(1, 0))
    p = reader.each(torch.zeros(1, 1, dtype=torch.long)).row(torch.tensor([0]))[0]
    assert p.sum() == pytest.approx(1) and 0 < p.min() < 1e-60


def test_heads_cuts_and_draws_keep_the_distribution():
    """Exact zeros, a nucleus, an average over weights: whatever p and q are made of."""
    for more, cut in (
        (dict(head="sparsemax", bayesian=True, prior_sigma=0.5), None),
        ({}, lambda log_p: truncate(log_p, Decoding(temperature=1.5, top_k=2))),
    ):
        model = model_of(length=SMALL_T, vocab=SMALL_V, **more)
        draws = model.head.draws(3, 0, torch.float64)
        found = []
        for sample in (one_by_one, speculative):
            text = torch.full((8_000, SMALL_T), FREE)
            r = Reader(model, text, draws, **({"cut": cut} if cut else {}))
            found.append(shares(sample(r, generator=G().manual_seed(len(found))).text))
        assert (found[0] - found[1]).abs().sum() / 2 < 0.04


# ---- masked diffusion --------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_step_of_diffusion_fills_places_apart_from_each_other():
    """One step: the product of p(x_i | known). As many steps as one likes: one token at a time."""
    model = model_of("masked", length=SMALL_T, vocab=SMALL_V)

    def found(sample, seed: int) -> Tensor:
        free = torch.full((8_000, SMALL_T), FREE)
        masked = MaskedReader(model, free, model.head.draws(1, 0, torch.float64))
        return shares(sample(masked, generator=G().manual_seed(seed)).text)

    apart = torch.einsum("a,b,c->abc", *log_p(model, torch.full((1, SMALL_T), SMALL_V))[0].exp()).flatten()
    assert (found(partial(diffusion, steps=1), 0) - apart).abs().sum() / 2 < 0.03
    many, one = found(partial(diffusion, steps=12), 1), found(one_by_one, 2)
    assert (many - one).abs().sum() / 2 < 0.03 < (one - apart).abs().sum() / 2 - 0.01


def test_whether_is_uniform_over_the_steps():
    model = model_of("masked")
    text = torch.full((3000, T), FREE)
    masked = MaskedReader(model, text, model.head.draws(1, 0, torch.float64))
    rank = diffusion(masked, 5, G().manual_seed(0)).rank
    np.testing.assert_allclose(np.bincount(rank.flatten())[1:] / rank.numel(), 0.2, atol=0.02)


@torch.no_grad()
def test_a_short_text_of_a_masked_model_has_hidden_places_after_it():
    """It was trained on whole blocks: what is not there is not what is not known."""
    model, text = model_of("masked"), some_text([[0, 2]], length=4)
    read = torch.full((1, T), V)
    read[0, [0, 2]] = text[0, [0, 2]]
    want = log_p(model, read)[0, 1].exp()
    said = MaskedReader(model, text, model.head.draws(1, 0, torch.float64)).each(torch.tensor([[1, 3]]))
    torch.testing.assert_close(said.row(torch.tensor([0]))[0], want)
