"""Conditionals of any order with a cache; samplers: one token at a time, in bursts, speculative; and gaps:
templates, sample.py's filling in, densities."""

import math
import re
from functools import partial
from itertools import permutations, product

import numpy as np
import pytest
import torch
from torch import Tensor

from common.errors import UserError
from data.open import load_tokenizer, tokenizer_of
from data.tokenizers import WordTokenizer
from evaluate.decoding import Decoding, truncate
from labs.orders import filling
from labs.orders.filling import burst, diffusion, one_by_one, random_places, speculative, surest_first
from labs.orders.readers import MaskedReader, Reader, reader_of
from labs.orders.sample import main
from labs.orders.tests.test_trunk import V, log_p, model_of, of_order
from labs.sequences.gaps import with_gaps
from labs.sequences.paths import Order
from labs.sequences.questions import FREE
from tests.fixtures import train_on
from training.run import load_model

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
        reads = reader_of(model, text, model.head.draws(1, 0, torch.float64))
        return surest_first(reads, leftmost=leftmost, **more)

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


# ---- gaps in texts, and sample.py --------------------------------------------------------------------------


WORDS = WordTokenizer.of([*"abcdefg", "\n"])


def test_a_template(token_folder):
    a, b, c = (WORDS.encode(w)[0] for w in "abc")
    assert with_gaps("a <2> b <1>", WORDS, 8) == [a, FREE, FREE, b, FREE]
    assert with_gaps("<1><2> c", WORDS, 8) == [FREE] * 3 + [c]
    # byte-level tokens carry the space before them: one left alone would be a token that no text has
    tokenizer = load_tokenizer(token_folder)
    expected = [*tokenizer.encode("the"), FREE, FREE, *tokenizer.encode(" sea")]
    assert with_gaps("the <2> sea", tokenizer, 99) == expected
    for template in ("a b", "a <0>", f"a <2> b <{'9' * 5000}>", "a <4> b <4>"):
        with pytest.raises(UserError):
            with_gaps(template, WORDS, 8)


@pytest.fixture(scope="module")
def filled_in(token_folder, tmp_path_factory):
    """out folders of a model of any order, of masked diffusion, and of one that reads from left to right."""
    at = tmp_path_factory.mktemp("orders")
    for order in ("random", "masked", "left_to_right"):
        train_on(token_folder, at / order, **of_order(order))
    return {path.name: str(path) for path in at.iterdir()}


# run and flags -> model evaluations at most
WAYS = {"random": 8, "masked": 8, "masked --steps=3": 3, "masked --order=confidence": 8}
WAYS |= {f"random --order={order}": 8 for order in ("left_to_right", "fractal", "speculative", "confidence")}
WAYS |= {"random --order=burst": 14}


@pytest.mark.parametrize("command, most", WAYS.items())
def test_gaps_are_filled_in_and_the_rest_stays(filled_in, capsys, command, most):
    order, *how = command.split()
    assert main([filled_in[order], "--infill=the <4> sea <3> .", *how, "--num_samples=2"]) == 0
    out, err = capsys.readouterr()
    texts = re.split(r"--- sample \d\n", out)[1:]
    assert len(texts) == 2 and texts[0] != texts[1]
    for text in texts:
        assert text.startswith("the") and " sea" in text and text.rstrip("\n").endswith(" .")
    evaluations, free = re.search(r"(\d+) model evaluations for (\d+) tokens", err).groups()
    assert free == "7" and int(evaluations) <= most


def test_one_seed_one_text(filled_in, capsys):
    def text(*flags):
        assert main([filled_in["random"], "--infill=the <9>", *flags]) == 0
        return capsys.readouterr().out

    assert text() == text() != text("--seed=3")
    assert text("--order=fractal") == text("--order=fractal", "--temperature=1")
    assert text("--min_p=1") == text("--temperature=0") != text()  # a cut acts on each place
    for order, how in (("random", "--order=speculative"), ("masked", "--steps=2"), ("random", "--length=5")):
        assert main([filled_in[order], "--prompt=the", "--length=6", how]) == 0
        assert capsys.readouterr().out.startswith("the")
    with pytest.raises(UserError):  # it cannot be told what comes after a gap
        main([filled_in["left_to_right"], "--infill=the <3>"])


@pytest.mark.parametrize("given", [1, 5])
def test_places_that_no_order_has_shift_the_path_as_in_training(given):
    model, text = model_of("any", length=12), torch.full((3, 12), FREE)
    text[:, :given] = 1
    reader = reader_of(model, text, model.head.draws(1, 0))
    rank = filling.in_order(reader, torch.Generator().manual_seed(0), order="fractal", given=given).rank
    trained = Order("fractal").paths(0, np.arange(3), 12, given)[:, given:]
    assert rank.argsort(stable=True)[:, given:].tolist() == trained.tolist()


@torch.no_grad()
def test_density(filled_in, capsys):
    """Of each free place alone, given all that is known, whatever stands around it."""
    command = [filled_in["random"], "--infill=the <2> sea", "--density", "--top=3", "--dtype=float32"]
    assert main(command) == 0
    table = capsys.readouterr().out
    model, ckpt = load_model(filled_in["random"])
    ids = with_gaps("the <2> sea", tokenizer_of(ckpt), 16)
    known = [(i, t) for i, t in enumerate(ids) if t != FREE]
    for place in (i for i, t in enumerate(ids) if t == FREE):
        p = q_of(model, known, place)
        (line,) = [x for x in table.splitlines() if x.split()[:1] == [str(place)]]
        assert all(f"{value:.3f}" in line for value in p.topk(3).values)
        assert f"{-(p * p.log()).sum():.2f}" in line
