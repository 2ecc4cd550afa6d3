"""Generation orders: paths, curricula, hidden places, and the trunk, batches and scores made for them."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from config.defaults import TrainConfig
from data.batches import TextSource, Windows
from data.tokens import TokenFile, write_tokens
from evaluate.scoring import score
from heads import make_head
from labs.orders.asking import Asker
from labs.orders.task import OrdersSource, along, plan
from labs.orders.trunk import MASKED, AnyOrder, Masked
from labs.sequences.paths import ORDERS, Order
from model import GPTConfig, LanguageModel, build, trunk_on_meta
from tests.fixtures import TrueToken, log
from tests.trunk_contract import *  # noqa: F403

V, T = 11, 8


def of_order(order: str, **args) -> dict:
    """The trunk that reads in this order."""
    if order in ("left_to_right", MASKED):
        return {"trunk": {"left_to_right": "gpt"}.get(order, order), "trunk_args": args}
    return {"trunk": "any_order", "trunk_args": {"order": order.replace("any", "random"), **args}}


def model_of(order: str = "any", length: int = T, vocab: int = V, args=(), **more) -> LanguageModel:
    """Float64, with weights large enough for strong preferences."""
    torch.manual_seed(0)
    config = dict(vocab_size=vocab, block_size=length, n_layer=2, n_head=2, n_embd=16, dropout=0.0)
    model = build({"head": "softmax", "head_args": {}, **of_order(order, **dict(args)), **config, **more})
    with torch.no_grad():
        for p in model.trunk.parameters():
            if p.dim() == 2:
                p.mul_(12)
    return model.double().eval()


def text(count: int, seed: int = 1, vocab: int = V) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, vocab, count)


def log_p(model: LanguageModel, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    hidden = model.trunk(tokens, positions)
    flat = model.head.log_probs(hidden.flatten(0, 1), model.head.draws(1, 0, torch.float64))
    return flat.view(*hidden.shape[:2], -1)


def asker(model: LanguageModel) -> Asker:
    return Asker(model, model.head.draws(1, 0, torch.float64), "cpu", "float32")


# ---- paths -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ORDERS)
def test_a_path_visits_each_place_once(name):
    for length in range(1, 40):
        path = ORDERS[name](length, np.random.default_rng(length))
        assert sorted(path.tolist()) == list(range(length))
    assert ORDERS["fractal"](7, None).tolist() == [3, 1, 5, 0, 2, 4, 6]  # the middles, level by level
    assert ORDERS["fractal"](8, None).tolist() == [4, 2, 6, 1, 3, 5, 7, 0]


def test_a_curriculum_falls_linearly():
    order = Order("random", "left_to_right", share=0.5, steps=100, seed=3)
    for step, most in ((0, 0.5), (50, 0.25), (100, 0.0), (200, 0.0)):
        paths = order.paths(step, np.arange(2000), 12)
        assert (paths == np.arange(12)).all(1).mean() == pytest.approx(most, abs=0.04)


def test_the_order_of_a_sequence_is_a_function_of_seed_step_and_number():
    order = Order("random", "fractal", 0.5, 10, seed=5)
    whole = order.paths(3, np.arange(8), 20)
    assert np.array_equal(order.paths(3, np.array([6, 1]), 20), whole[[6, 1]])
    assert not np.array_equal(order.paths(4, np.arange(8), 20), whole)
    other = Order("random", "fractal", 0.5, 10, seed=6)
    assert not np.array_equal(other.paths(3, np.arange(8), 20), whole)


def test_along():
    path = np.array([[2, 0, 1]])
    got = along(np.array([[10, 11, 12]]), path, start=99, place=5, scored=path >= 1)
    assert got.tokens.tolist() == [[99, 12, 10]] and got.positions.tolist() == [[[5, 2], [2, 0], [0, 1]]]
    assert got.targets.token.tolist() == [12, 11] and got.targets.rows.tolist() == [0, 2]


@pytest.mark.parametrize("batch, T", [(4, 7), (12, 4)])
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


def test_orders_that_cannot_be_are_refused():
    for settings, key in ((of_order("sideways"), "order"), (of_order(MASKED, curriculum="random"), "curric")):
        with pytest.raises(ValueError, match=key):
            trunk_on_meta(vars(TrainConfig(name="x", **settings)))


@pytest.fixture(
    params=[
        of_order("random", curriculum="left_to_right"),
        of_order("random", sinusoidal=True),
        of_order(MASKED, curriculum="few_hidden", curriculum_share=0.3),
    ],
    ids=lambda settings: settings["trunk"],
)
def settings(request):
    """Of the contract."""
    return request.param


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
    inputs, _, positions = along(tokens, path, V)
    before = model.trunk(inputs, positions)
    for n in range(1, T):
        changed = inputs.clone()
        changed[:, n] = (changed[:, n] + 1) % V
        after = model.trunk(changed, positions)
        torch.testing.assert_close(after[:, :n], before[:, :n], rtol=0, atol=1e-12)
        assert ((after - before)[:, n:].abs().amax(-1) > 1e-6).all()


@torch.no_grad()
@pytest.mark.parametrize("sinusoidal", [False, True])
def test_left_to_right_is_the_identity_path(sinusoidal):
    """The start token is not the caller's care. Sines are fixed."""
    model = model_of(args={"sinusoidal": sinusoidal})
    assert model.trunk.context == T - 1 and bool(list(model.trunk.wpe.parameters())) != sinusoidal
    tokens = text(2 * T).reshape(2, T)
    path = np.tile(np.arange(T), (2, 1))
    inputs, _, positions = along(tokens, path, V)
    want = model.trunk(inputs, positions)[:, 1:]
    got = model.trunk(torch.from_numpy(tokens[:, :-1]))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("order", ["any", "masked"])
@pytest.mark.parametrize("vocab", [63, 64])
def test_the_start_token_has_a_row_and_no_probability(order, vocab):
    trunk = {"any": AnyOrder, "masked": Masked}[order](GPTConfig(vocab, T, 1, 2, 16))
    assert len(trunk.wte.weight) == trunk.config.padded_vocab == (64 if vocab == 63 else 128)
    assert trunk.wte.weight[vocab].abs().sum() > 0 and trunk.wte.weight[vocab + 1 :].abs().sum() == 0
    model = LanguageModel(trunk, make_head("softmax", vocab, trunk.embedding))
    start = torch.full((1, 1), vocab)
    positions = torch.tensor([[[T, 3]]]) if order == "any" else None
    assert log_p(model, start, positions).shape == (1, 1, vocab)


# ---- batches -----------------------------------------------------------------------------------------------


@pytest.fixture
def tokens(tmp_path):
    path = tmp_path / "train.bin"
    return TokenFile(write_tokens(path, [text(20 * T + 1)], V), {}, path)


def test_hidden_places(tokens):
    text, seen = TextSource(Windows(tokens, T), TrueToken(), 20, seed=1), []
    source = OrdersSource(text, model_of(MASKED).trunk, 1)
    for step in range(100):
        (read, targets, _), whole = source.batch(step, 0), text.batch(step, 0).tokens
        hidden = read == V
        assert torch.equal(read[~hidden], whole[~hidden]) and torch.equal(targets.token, whole[hidden])
        assert torch.equal(targets.rows, hidden.flatten().nonzero()[:, 0])
        weights = torch.zeros(20, T).masked_scatter(hidden, targets.weights)
        np.testing.assert_allclose(weights.sum(1), T, rtol=1e-6)
        seen.append(hidden)
    np.testing.assert_allclose(torch.cat(seen).float().mean(0), (T + 1) / 2 / T, atol=0.04)  # each as often


@pytest.mark.parametrize("name", ["random", "fractal"])
def test_a_batch_is_whole_windows_along_their_paths(tokens, name):
    source = TextSource(Windows(tokens, T), TrueToken(), 4, seed=1)
    usual, batch = source.batch(2, 0).tokens, OrdersSource(source, model_of(name).trunk, 1).batch(2, 0)
    path = Order(name, seed=1).paths(2, np.arange(4), T)
    assert batch.tokens[:, 0].tolist() == [V] * 4 and batch.positions[:, 0, 0].tolist() == [T] * 4
    assert np.array_equal(batch.positions[:, :, 1], path)
    y = batch.targets.token.view(4, T)
    assert torch.equal(y, usual.gather(1, torch.from_numpy(path)))  # the same windows as left to right
    assert torch.equal(y[:, :-1], batch.tokens[:, 1:])


@pytest.mark.parametrize("name", ["random", MASKED])
def test_batches_do_not_depend_on_how_they_are_divided(tokens, name):
    trunk = model_of(name).trunk

    def parts(micro, world):
        texts = [TextSource(Windows(tokens, T), TrueToken(), 8, 1, micro, r, world) for r in range(world)]
        made = [OrdersSource(text, trunk, 1) for text in texts]
        return [[s.batch(5, part) for part in range(s.parts)] for s in made]

    (whole,) = parts(0, 1)[0]
    for rank, batches in enumerate(parts(2, 2)):
        mine = torch.cat([b.tokens for b in batches])
        assert torch.equal(mine, whole.tokens[rank::2])


@pytest.mark.parametrize("order", ["random", MASKED])
@pytest.mark.parametrize("name", ["softmax", "sigmoid", "entmax15", "perturb_max"])
def test_heads_train_in_any_order(tokens, name, order):
    """Finite, with a gradient, also for the embedding of the start or the mask token."""
    model = model_of(order, head=name).float().train()
    b = OrdersSource(TextSource(Windows(tokens, T), TrueToken(name), 4, 1), model.trunk, 1).batch(0, 0)
    loss, count = model(b.tokens, b.targets, b.positions)
    loss.backward()
    assert math.isfinite(loss.item()) and count == len(b.targets.ids)
    grad = model.trunk.wte.weight.grad.to_dense()
    assert grad.isfinite().all() and grad[V].abs().sum() > 0 and grad[V + 1 :].abs().sum() == 0


# ---- scores ------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("count", [T, 3 * T + 5, 5])
@pytest.mark.parametrize("name", ["random", "fractal", "left_to_right"])
def test_a_score_along_an_order_is_that_of_one_token_at_a_time(name, count):
    """Each token once, given the start token and what is before it on its window's path."""
    model, ids = model_of(), text(count)
    got = score(model, plan(model.trunk.config, ids, name), batch=2)
    total, seen, length = 0.0, set(), min(T, count)
    for number, start in enumerate([*range(0, count - length, length), count - length]):
        path = Order(name).paths(0, np.array([number]), length)
        inputs, targets, positions = along(ids[None, start : start + length], path, V, place=T)
        for n in range(length):
            place = start + path[0, n]
            if place not in seen:
                seen.add(place)
                said = log_p(model, inputs[:, : n + 1], positions[:, : n + 1])[0, -1]
                total -= said[targets.token[n]].item()
    assert got.tokens == count == len(seen)
    assert got.nll == pytest.approx(total, rel=1e-6)


@torch.no_grad()
def test_left_to_right_each_token_is_given_one_at_least():
    model, ids = model_of(), text(3 * T)
    got = score(model, ids)
    assert got.tokens == len(ids) - 1
    whole = score(model, plan(model.trunk.config, ids[:T], "left_to_right"))  # from the start token on
    x = torch.from_numpy(ids[None, :T])
    inputs, _, positions = along(ids[None, :T], np.arange(T)[None], V)
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
    tiled = np.tile(ids, windows)
    got = score(model, plan(model.trunk.config, tiled, MASKED), batch=1000)
    assert got.tokens == windows * length
    assert got.nll / windows == pytest.approx(want, rel=0.01)


# ---- training ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["random", MASKED])
def test_the_log_has_perplexities_of_the_orders_that_a_model_knows(run, tiny, order):
    c = tiny(**of_order(order))
    assert run(c) == 0
    keys = {"val_ppl_left_to_right", "val_ppl_random"}
    assert keys & log(c.out_dir)[-1].keys() == (set() if order == MASKED else keys)


def test_weights_of_another_order_are_refused(trainer, tiny, trained):
    with pytest.raises(ValueError, match="init_from"):
        trainer(tiny(init_from=str(trained), **of_order("random")))
