"""Generation orders: paths, curricula, hidden places, and the trunk, batches and scores made for them."""

import copy
import math
import re
from itertools import combinations
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor

from config.defaults import Curriculum, OrderName, TrainConfig
from data.batches import TextSource, Windows
from data.orders import MASKED, ORDERS, Order, arranged, masked
from data.tokens import write_tokens
from evaluation.scoring import score
from heads import HEADS, Targets, make_head
from model import GPT, Cache, GPTConfig, LanguageModel, build
from tests.test_train import log, weights

V, T = 11, 8


def model_of(order: str = "any", length: int = T, vocab: int = V, **more) -> LanguageModel:
    """Float64, with weights large enough for strong preferences."""
    torch.manual_seed(0)
    config = {
        "vocab_size": vocab,
        "block_size": length,
        "n_layer": 2,
        "n_head": 2,
        "n_embd": 16,
        "dropout": 0.0,
    }
    model = build({"head": "softmax", "head_args": {}, "order": order, **config, **more})
    with torch.no_grad():
        for p in model.trunk.parameters():
            if p.dim() == 2:
                p.mul_(12)
    return model.double().eval()


def text(count: int, seed: int = 1, vocab: int = V) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, count)


def generators(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(i) for i in range(count)]


def log_p(model: LanguageModel, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    hidden = model.trunk(tokens, positions)
    flat = model.head.log_probs(hidden.flatten(0, 1), model.head.draws(1, 0, torch.float64))
    return flat.view(*hidden.shape[:2], -1)


# ---- paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ORDERS)
def test_a_path_visits_each_place_once(name):
    for length in range(1, 40):
        path = ORDERS[name](length, np.random.default_rng(length))
        assert sorted(path.tolist()) == list(range(length))


def test_fractal_is_the_middles_level_by_level():
    assert ORDERS["fractal"](7, None).tolist() == [3, 1, 5, 0, 2, 4, 6]
    assert ORDERS["fractal"](8, None).tolist() == [4, 2, 6, 1, 3, 5, 7, 0]


def test_random_paths_are_uniform():
    rng = np.random.default_rng(0)
    counts = np.unique([ORDERS["random"](4, rng) for _ in range(24_000)], axis=0, return_counts=True)[1]
    assert len(counts) == 24 and ((counts - 1000) ** 2 / 1000).sum() < 49.7  # chi-square, 23 df, p = .001


def test_a_curriculum_falls_linearly():
    order = Order("random", "left_to_right", share=0.5, steps=100, seed=3)
    assert [order.share_at(s) for s in (0, 50, 100, 200)] == [0.5, 0.25, 0, 0]
    for step, most in ((0, 0.5), (50, 0.25), (100, 0.0)):
        paths = order.paths(step, np.arange(2000), 12)
        assert (paths == np.arange(12)).all(1).mean() == pytest.approx(most, abs=0.04)


def test_the_order_of_a_sequence_is_a_function_of_seed_step_and_number():
    order = Order("random", "fractal", 0.5, 10, seed=5)
    whole = order.paths(3, np.arange(8), 20)
    assert np.array_equal(order.paths(3, np.array([6, 1]), 20), whole[[6, 1]])
    for other in (
        order.paths(4, np.arange(8), 20),
        Order("random", "fractal", 0.5, 10, 6).paths(3, np.arange(8), 20),
    ):
        assert not np.array_equal(other, whole)


def test_arranged():
    got = arranged(np.array([[10, 11, 12]]), np.array([[2, 0, 1]]), start=99, place=5)
    assert got.tokens.tolist() == [[99, 12, 10]] and got.targets.tolist() == [[12, 10, 11]]
    assert got.positions.tolist() == [[[5, 2], [2, 0], [0, 1]]]


def test_hidden_places():
    tokens = text(4000 * T).reshape(-1, T)
    wanted, weights = Order(MASKED).hidden(0, np.arange(len(tokens)), len(tokens), T)
    read, targets = masked(tokens, V, wanted, generators(len(tokens)))
    hidden = targets >= 0
    assert (read[hidden] == V).all() and (read[~hidden] == tokens[~hidden]).all()
    assert (targets[hidden] == tokens[hidden]).all()
    counts = hidden.sum(1)
    assert (counts == wanted).all()
    np.testing.assert_allclose(weights * counts, T)
    np.testing.assert_allclose(hidden.mean(0), (T + 1) / 2 / T, atol=0.03)  # each place as often


@pytest.mark.parametrize("batch, T", [(1, 5), (4, 7), (12, 4), (64, 32)])
def test_numbers_of_hidden_places_are_uniform_and_even(batch, T):
    order, rows = Order(MASKED, seed=3), np.arange(batch)
    counts = np.stack([order.hidden(step, rows, batch, T)[0] for step in range(4000)])
    assert counts.min() == 1 and counts.max() == T
    for i in {0, batch - 1}:  # each sequence alone
        share = np.bincount(counts[:, i], minlength=T + 1)[1:] / len(counts)
        np.testing.assert_allclose(share, 1 / T, rtol=0.4)
    for row in counts[:100]:  # a batch: no number more often than its share, rounded up
        assert np.bincount(row).max() <= math.ceil(batch / T)
    assert np.array_equal(order.hidden(7, rows[::2], batch, T)[0], counts[7, ::2])


def test_a_curriculum_of_few_hidden_places():
    """At most 30% at first, all at its end. Each place counts the same until then, as in the bound after."""
    order, rows, T = Order(MASKED, "few_hidden", share=0.3, steps=100, seed=3), np.arange(64), 20
    for step, most in ((0, 6), (50, 13)):  # in step 50 65% of 20
        counts, weights = order.hidden(step, rows, 64, T)
        assert counts.min() == 1 and counts.max() == most
        assert len(set(weights)) == 1
        assert (weights * counts).mean() == pytest.approx(T, rel=0.02)  # as many as there are
    for now, plain in zip(order.hidden(100, rows, 64, T), Order(MASKED, seed=3).hidden(100, rows, 64, T)):
        assert np.array_equal(now, plain)
    none = Order(MASKED, "few_hidden", share=0.0, steps=9).hidden(0, rows, 64, T)
    assert set(none[0]) == {1} and set(none[1]) == {T}  # one at least


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"curriculum": "random"}, "with order = 'left_to_right': give the order"),
        ({"curriculum": "few_hidden"}, "such as --order=masked, or leave"),
        ({"order": "random", "curriculum": "few_hidden"}, "with order = 'random': give the order"),
        ({"order": "masked", "curriculum": "random"}, "with order = 'masked': give the order"),
        (
            {"order": "random", "n_embd": 30, "n_head": 3, "sinusoidal": True},
            "n_embd = 30: the two positions",
        ),
        ({"order": "random", "block_size": 1}, "block_size = 1: a text of one token has no order"),
        ({"sinusoidal": True}, "sinusoidal = True with order = 'left_to_right'"),
        ({"order": "random", "labels": "hard", "head": "sigmoid"}, "labels = 'hard' with order = 'random'"),
    ],
)
def test_orders_that_cannot_be_are_refused(settings, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        TrainConfig(name="x", **settings).check()


def test_all_orders_can_be_asked_for():
    assert get_args(OrderName) == (*ORDERS, MASKED)
    assert get_args(Curriculum) == ("", *ORDERS, "few_hidden")


# ---- the trunk ---------------------------------------------------------------------------------------------


@torch.no_grad()
def test_the_identity_order_is_the_left_to_right_model_of_the_same_weights():
    usual, model = model_of("left_to_right"), model_of("any")
    theirs, C = dict(usual.trunk.named_parameters()), 16
    for name, p in model.trunk.named_parameters():
        if not name.startswith(("wpe", "wte")):
            p.copy_(theirs[name])
    model.trunk.wte.weight[:V] = theirs["wte.weight"][:V]
    model.trunk.wpe.own.weight[:T] = theirs["wpe.weight"][:, : C // 2]
    model.trunk.wpe.next.weight[1:] = theirs["wpe.weight"][:-1, C // 2 :]
    x = torch.from_numpy(text(3 * (T - 1)).reshape(3, -1))
    at = torch.arange(T - 1)
    positions = torch.stack((at, at + 1), -1)[None]
    torch.testing.assert_close(log_p(model, x, positions), log_p(usual, x), rtol=0, atol=1e-12)


@torch.no_grad()
def test_a_token_sees_what_is_before_it_in_the_path():
    model = model_of()
    tokens = text(2 * T).reshape(2, T)
    path = Order("random", seed=2).paths(0, np.arange(2), T)
    inputs, positions, _ = map(torch.from_numpy, arranged(tokens, path, V))
    before = model.trunk(inputs, positions)
    for n in range(1, T):
        changed = inputs.clone()
        changed[:, n] = (changed[:, n] + 1) % V
        after = model.trunk(changed, positions)
        torch.testing.assert_close(after[:, :n], before[:, :n], rtol=0, atol=1e-12)
        assert ((after - before)[:, n:].abs().amax(-1) > 1e-6).all()


@torch.no_grad()
@pytest.mark.parametrize("sinusoidal", [False, True])
@pytest.mark.parametrize("parts", [[7], [1] * 7, [3, 1, 1, 2]], ids=str)
def test_left_to_right_is_the_identity_path(parts, sinusoidal):
    """Whole, and token by token with a cache: the start token is not the caller's care."""
    model = model_of(sinusoidal=sinusoidal)
    tokens = text(2 * T).reshape(2, T)
    path = np.tile(np.arange(T), (2, 1))
    inputs, positions, _ = map(torch.from_numpy, arranged(tokens, path, V))
    want = model.trunk(inputs, positions)[:, 1:]
    x = torch.from_numpy(tokens[:, :-1])
    cache = Cache(model.trunk, 2, torch.float64)
    got = torch.cat([model.trunk(part, cache=cache) for part in x.split(parts, 1)], 1)
    for states in (got, model.trunk(x)):
        torch.testing.assert_close(states, want, rtol=0, atol=1e-12)
    cache = Cache(model.trunk, 2, torch.float64)
    steps = [model.trunk(x[:, :1], cache=cache)]
    for i in range(1, T - 1):
        steps.append(model.trunk.decode(x[:, i : i + 1], cache, torch.tensor([i + 1])))
        cache.length += 1
    torch.testing.assert_close(torch.cat(steps, 1), want, rtol=0, atol=1e-12)


def test_the_last_token_of_a_block_predicts_nothing():
    model = model_of()
    assert model.trunk.context == T - 1 and model_of("left_to_right").trunk.context == T
    with pytest.raises(ValueError, match=f"{T} tokens do not fit block_size = {T - 1}"):
        model.trunk(torch.zeros(1, T, dtype=torch.long))


@torch.no_grad()
def test_a_masked_trunk_sees_everything():
    model, x = model_of("masked"), torch.from_numpy(text(2 * T).reshape(2, T))
    before = model.trunk(x)
    for t in range(T):
        changed = x.clone()
        changed[:, t] = V
        assert ((model.trunk(changed) - before).abs().amax(-1) > 1e-6).all()


def test_masks_say_who_sees_whom():
    model, x = model_of(), torch.from_numpy(text(T).reshape(1, T))
    at = torch.stack((torch.arange(T), torch.arange(T).flip(0)), -1)[None]
    causal = torch.ones(1, T, T, dtype=torch.bool).tril()
    torch.testing.assert_close(model.trunk(x, at, mask=causal), model.trunk(x, at))
    alone = model.trunk(x, at, mask=torch.eye(T, dtype=torch.bool)[None])
    for t in range(T):
        torch.testing.assert_close(alone[:, t : t + 1], model.trunk(x[:, t : t + 1], at[:, t : t + 1]))


@pytest.mark.parametrize("order", ["any", "masked"])
@pytest.mark.parametrize("vocab", [63, 64])
def test_the_start_token_has_a_row_and_no_probability(order, vocab):
    config = GPTConfig(vocab, T, 1, 2, 16, order=order)
    trunk = GPT(config)
    assert len(trunk.wte.weight) == config.padded_vocab == (64 if vocab == 63 else 128)
    assert trunk.wte.weight[vocab].abs().sum() > 0 and trunk.wte.weight[vocab + 1 :].abs().sum() == 0
    assert sum(p.numel() for p in trunk.parameters()) == config.parameters
    model = LanguageModel(trunk, make_head("softmax", vocab, trunk.embedding))
    start = torch.full((1, 1), vocab)
    positions = torch.tensor([[[T, 3]]]) if order == "any" else None
    assert log_p(model, start, positions).shape == (1, 1, vocab)


def test_a_sinusoidal_encoding_is_not_learned():
    learned, fixed = (GPTConfig(V, T, 1, 2, 16, order="any", sinusoidal=s) for s in (False, True))
    assert learned.parameters - fixed.parameters == sum(p.numel() for p in GPT(learned).wpe.parameters())
    trunk = GPT(fixed)
    assert not list(trunk.wpe.parameters()) and trunk.wpe.table.shape == (T + 1, 8)
    assert trunk.wpe.table.square().mean().sqrt().item() == pytest.approx(0.02)


# ---- batches -----------------------------------------------------------------------------------------------


@pytest.fixture
def tokens(tmp_path):
    return write_tokens(tmp_path / "train.bin", [text(20 * T + 1)], V, {})


class TrueToken:
    online = False

    def __init__(self, name="softmax"):
        self.head = HEADS[name](V)

    def targets(self, indices, x, y):
        return self.head.targets(x, y)


@pytest.mark.parametrize("name", ["random", "fractal"])
def test_a_batch_is_whole_windows_along_their_paths(tokens, name):
    order = Order(name, seed=7)
    source = TextSource(Windows(tokens, T), TrueToken(), 4, seed=1, order=order)
    usual = TextSource(Windows(tokens, T), TrueToken(), 4, seed=1).batch(2, 0).tokens
    batch = source.batch(2, 0)
    path = order.paths(2, np.arange(4), T)
    assert batch.tokens[:, 0].tolist() == [V] * 4 and batch.positions[:, 0, 0].tolist() == [T] * 4
    assert np.array_equal(batch.positions[:, :, 1], path)
    y = batch.targets.token.view(4, T)
    assert torch.equal(y, usual.gather(1, torch.from_numpy(path)))  # the same windows as left to right
    assert torch.equal(y[:, :-1], batch.tokens[:, 1:])


@pytest.mark.parametrize("name", ["random", MASKED])
def test_batches_do_not_depend_on_how_they_are_divided(tokens, name):
    def parts(micro, world):
        made = [
            TextSource(Windows(tokens, T), TrueToken(), 8, 1, micro, rank, world, Order(name, seed=3))
            for rank in range(world)
        ]
        return [[s.batch(5, part) for part in range(s.parts)] for s in made]

    (whole,) = parts(0, 1)[0]
    for rank, batches in enumerate(parts(2, 2)):
        mine = torch.cat([b.tokens for b in batches])
        assert torch.equal(mine, whole.tokens[rank::2])


def test_a_masked_batch(tokens):
    source = TextSource(Windows(tokens, T), TrueToken(), 4, seed=1, order=Order(MASKED))
    batch = source.batch(0, 0)
    hidden = batch.tokens.flatten() == V
    assert torch.equal(batch.targets.rows, hidden.nonzero()[:, 0])
    assert batch.positions is None and source.positions_with_loss(0) == 4 * T
    assert batch.targets.weights.sum().item() == pytest.approx(4 * T)  # T / k for each of k places


@pytest.mark.parametrize("order", ["random", MASKED])
@pytest.mark.parametrize("name", HEADS)
def test_any_head_trains_in_any_order(tokens, name, order):
    """Finite, with a gradient, also for the embedding of the start or the mask token."""
    model = model_of("any" if order == "random" else order, head=name).float().train()
    source = TextSource(Windows(tokens, T), TrueToken(name), 4, 1, order=Order(order))
    b = source.batch(0, 0)
    loss, count = model(b.tokens, b.targets, b.positions)
    loss.backward()
    assert math.isfinite(loss.item()) and count == len(b.targets.ids)
    grad = model.trunk.wte.weight.grad.to_dense()
    assert grad.isfinite().all() and grad[V].abs().sum() > 0 and grad[V + 1 :].abs().sum() == 0


@pytest.mark.parametrize("name", ["softmax", "entmax", "taylor"])
def test_weights_multiply_the_losses(name):
    """Of a head whose gradient takes the place of the logits, of one whose does not, of one that learns."""
    torch.manual_seed(1)
    model = model_of(head=name)
    head, hidden = model.head, torch.randn(6, 16, dtype=torch.float64, requires_grad=True)
    ids, weights = torch.randint(0, V, (6,)), torch.tensor([0.0, 2, 1, 0.5, 3, 1], dtype=torch.float64)
    targets = Targets.single(ids)
    loss, _ = head.loss(hidden, targets._replace(weights=weights))
    (got,) = torch.autograd.grad(loss, hidden)
    each = [head.loss(hidden[i : i + 1], targets.part(i, i + 1))[0] for i in range(6)]
    want = sum(w * one for w, one in zip(weights, each))
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(got, torch.autograd.grad(want, hidden)[0])


# ---- scores ------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("count", [T, T + 1, 3 * T, 3 * T + 5, 5])
@pytest.mark.parametrize("name", ["random", "fractal", "left_to_right"])
def test_a_score_along_an_order_is_that_of_one_token_at_a_time(name, count):
    """Each token once, given the start token and what is before it on its window's path."""
    model, ids = model_of(), text(count)
    got = score(model, ids, order=name, batch=2)
    total, seen, length = 0.0, set(), min(T, count)
    for number, start in enumerate([*range(0, count - length, length), count - length]):
        path = Order(name).paths(0, np.array([number]), length)
        inputs, positions, targets = map(
            torch.from_numpy, arranged(ids[None, start : start + length], path, V, T)
        )
        for n in range(length):
            place = start + path[0, n]
            if place not in seen:
                seen.add(place)
                total -= log_p(model, inputs[:, : n + 1], positions[:, : n + 1])[0, -1, targets[0, n]].item()
    assert got.tokens == count == len(seen)
    assert got.nll == pytest.approx(total, rel=1e-6)


@torch.no_grad()
def test_left_to_right_each_token_is_given_one_at_least():
    model, ids = model_of(), text(3 * T)
    got = score(model, ids)
    assert got.tokens == len(ids) - 1
    whole = score(model, ids[:T], order="left_to_right")  # from the start token on
    x = torch.from_numpy(ids[None, :T])
    inputs, positions, _ = map(torch.from_numpy, arranged(ids[None, :T], np.arange(T)[None], V))
    first = log_p(model, inputs, positions)[0, 0, x[0, 0]].item()
    assert score(model, ids[:T]).nll == pytest.approx(whole.nll + first, rel=1e-6)


@torch.no_grad()
def test_the_bound_of_masked_diffusion():
    """Its expectation is the mean over orders of the NLL in that order; here over all subsets."""
    length, model = 4, model_of("masked", 4)
    ids = text(length)
    want = 0.0
    for k in range(1, length + 1):
        for hidden in combinations(range(length), k):
            x = torch.from_numpy(ids[None]).clone()
            x[0, list(hidden)] = V
            lp = log_p(model, x)[0]
            share = 1 / length / math.comb(length, k)
            want -= share * length / k * sum(lp[i, ids[i]].item() for i in hidden)
    windows = 6000
    got = score(model, np.tile(ids, windows), order=MASKED, batch=1000)
    assert got.tokens == windows * length
    assert got.nll / windows == pytest.approx(want, rel=0.01)


def test_masked_diffusion_has_no_left_to_right_score():
    with pytest.raises(ValueError, match="reads no text from left to right"):
        score(model_of("masked"), text(30))


# ---- training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        {"order": "random", "curriculum": "left_to_right"},
        {"order": "fractal", "sinusoidal": True},
        {"order": "masked"},
        {"order": "masked", "curriculum": "few_hidden", "curriculum_share": 0.3},
    ],
    ids=lambda m: m["order"],
)
def test_a_resumed_run_of_any_order_is_the_unbroken_run(run, tiny, tmp_path, equal_state, more):
    c = tiny(lr_decay_steps=6, **more)
    whole = copy.copy(c)
    c.max_steps, whole.out_dir = 3, str(tmp_path / "whole")
    assert run(c) == run(whole) == 0
    c.resume, c.max_steps = True, 6
    assert run(c) == 0
    assert equal_state(weights(c.out_dir), weights(whole.out_dir))
    keys = {"val_ppl_left_to_right", "val_ppl_random"}
    assert keys & log(c.out_dir)[-1].keys() == (set() if more["order"] == "masked" else keys)


def test_weights_of_another_order_are_refused(trainer, tiny, trained):
    with pytest.raises(
        ValueError, match="reads in the order 'left_to_right', this configuration in 'random'"
    ):
        trainer(tiny(order="random", init_from=str(trained)))


def test_a_teacher_of_another_order_is_refused(trainer, run, tiny, tmp_path):
    c = tiny(order="random", out_dir=str(tmp_path / "teacher"))
    assert run(c) == 0
    with pytest.raises(ValueError, match="reads in another order .any. than left to right"):
        trainer(tiny(labels="hard", head="sigmoid", teacher=c.out_dir))
