"""The contract of a head: what holds for each of tests/test_heads.py and of a lab that has heads.

    from tests.head_contract import *
    pytest_generate_tests = each(FORMULAS, VARIANTS)

runs all of it for the heads of FORMULAS, by their default arguments and those of VARIANTS. A formula is
written in plain PyTorch and float64: f(z (N, V), targets, arguments) -> the loss (N,) and log p (N, V).
"""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heads import (
    Head,
    OutputHead,
    Projection,
    Targets,
    chunked_loss,
    linear_loss,
    log_probs,
    make_head,
    named_head,
    project,
)
from tests.fixtures import VOCAB, chi_square, log

V, C, K = 31, 7, 4  # odd on purpose; the embedding has 64 rows
# about the sizes where an implementation may change its way
VOCABULARIES = [2, 61, 256, 257, 2903, 50257]
OF_VARIANTS = [61, 2903]

Variants = list[tuple[str, dict]]


def each(formulas: dict[str, Callable], variants: Variants, not_proper: tuple[str, ...] = ()) -> Callable:
    """The module's pytest_generate_tests: the tests of this file with each head.

    not_proper  heads, or variants, the minimum of whose loss is by design not the data's distribution
    """

    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        if metafunc.function.__module__ != __name__:
            return
        facts, sizes = {}, "vocab" in metafunc.fixturenames
        for name, args in [*((name, {}) for name in formulas), *variants]:
            variant = ",".join([name, *(f"{k}={v}" for k, v in args.items())])
            if args and "args" not in metafunc.fixturenames:
                continue
            proper = not {name, variant} & {*not_proper}
            known = dict(name=name, args=args, formula=formulas[name], proper=proper)
            for vocab in (OF_VARIANTS if args else VOCABULARIES) if sizes else [V]:
                facts[f"{variant}-{vocab}" if sizes else variant] = known | dict(vocab=vocab)
        keys = ("name", "args", "formula", "proper", "vocab")
        wanted = [key for key in keys if key in metafunc.fixturenames]
        metafunc.parametrize(wanted, [[of[key] for key in wanted] for of in facts.values()], ids=facts)

    return pytest_generate_tests


def avoids(head: Head | None) -> bool:
    """Whether it has tokens to avoid, as labels of -1."""
    return head is not None and type(head).targets is not Head.targets


def random_targets(n: int, vocab: int = V, seed: int = 0, head: Head | None = None) -> Targets:
    """Soft multi-label targets: distinct ids in a row, some of them padding; tokens to avoid for a head that
    takes those."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(vocab, generator=g)[:K] for _ in range(n)])
    values = torch.rand(ids.shape, generator=g)
    values[:, 0] = 1
    drop = torch.rand(ids.shape, generator=g) < 0.3
    drop[:, 0] = False
    if avoids(head):
        values[:, 1:] = -1
    return Targets(ids.masked_fill(drop, -1), values.masked_fill(drop, 0))


def output_head(
    name: str, args: dict, bayesian: bool = False, seed: int = 0, dtype=torch.float32
) -> OutputHead:
    torch.manual_seed(seed)
    return make_head(name, V, nn.Parameter(torch.randn(64, C)), args, bayesian).to(dtype)


def gradients(hidden: Tensor, oh: OutputHead) -> list[Tensor]:
    """Those of the hidden states and of all parameters; 0 for what a loss does not touch."""
    return [hidden.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in oh.parameters())]


# -----------------------------------------------------------------------------
# Formulas


def dense(y: Targets, z: Tensor) -> Tensor:
    """The sparse labels as (N, V)."""
    labels = torch.zeros(len(z), z.shape[1] + 1, dtype=z.dtype)  # the last column takes the padding
    return labels.scatter(1, y.ids % labels.shape[1], y.values.to(z.dtype))[:, :-1]


def onehot(y: Targets, z: Tensor) -> Tensor:
    return F.one_hot(y.token, z.shape[1]).to(z.dtype)


def of(x: Tensor, y: Targets) -> Tensor:
    return x.gather(1, y.token[:, None])[:, 0]


def link(u):
    """p ~ e^u(z), L = -log p_t."""

    def formula(z, y, **args):
        log_p = u(z, **args).log_softmax(1)
        return -of(log_p, y), log_p

    return formula


def objective(loss):
    """p is softmax's, and the loss a function of log p, t and z."""

    def formula(z, y, **args):
        log_p = z.log_softmax(1)
        return loss(log_p, y, z, **args), log_p

    return formula


def logits(vocab: int) -> tuple[Tensor, list[str]]:
    """(N, V), float64, of float32 numbers: the largest first, last and in each place of the last 16, above
    few rivals, some, and nearly all tokens; ties; far from 0. And what each row is, in words."""
    g = torch.Generator().manual_seed(vocab)
    normal = lambda: torch.randn(vocab, generator=g)
    last = range(max(0, vocab - (16 if vocab < 10_000 else 1)), vocab)
    rows, words = [], []
    for top in sorted({0, *last}):
        for spread in (1 / vocab, 1, 8)[: 2 if vocab > 1000 else 3]:
            row = spread * normal()
            row[top] = row.max() + 0.1
            rows.append(row)
            words.append(f"{spread:.2g} * normal, the largest at {top}")
    ties = normal().round()
    ties[[0, vocab // 2, -1]] = ties.max()
    rows += [ties, 8 * normal()]
    words += ["ties", "8 * normal"]
    if vocab < 1000:
        rows += [0 * normal(), 3 * normal() - 500, 3 * normal() + 500, 1e4 * normal()]
        words += ["all 0", "3 * normal - 500", "3 * normal + 500", "1e4 * normal"]
    return torch.stack(rows).double(), words


def labels(z: Tensor, head: Head) -> Targets:
    """In every third row the first is the largest logit's."""
    y, top = random_targets(*z.shape, 1, head), z.argmax(1, keepdim=True)
    swapped = torch.where(y.ids == top, y.ids[:, :1], y.ids)
    swapped[:, :1] = top
    y.ids[::3] = swapped[::3]
    return y


def test_a_head_is_its_formula(name, args, formula, vocab):
    """By its methods, and by the path of training: there the hidden states are unit vectors and the weights
    the logits, so that the weights' gradient is the logits'."""
    head, (z, words) = named_head(name, vocab, args).double(), logits(vocab)
    near, error = dict(rtol=1e-8, atol=1e-9), 1e-8
    integral = name == "perturb_max" and args.get("noise") != "gumbel"
    if integral:
        near, error = dict(rtol=1e-5, atol=3e-5), 1e-4
        z, words = (rows[:: 4 if vocab > 1000 else 1] for rows in (z, words))  # it takes long
    n, y, x, scale = len(z), labels(z, head), z.clone().requires_grad_(), {}
    of = F.normalize(x, dim=0) * n**0.5 if head.cosine else x
    if head.reads_scale:
        head.scale, scale = n**0.5, {"scale": n**0.5}
    want, log_p = formula(of, y, **args, **scale)
    sure = -46 if integral else -math.inf  # below p = 1e-20 the integral is rough
    weights = (want < -sure).double()
    if not head.reads_scale:  # of small distances the rounding counts more
        weights *= 2.0 ** (torch.arange(n) % 3 - 1)
    (right,) = torch.autograd.grad((want * weights).sum(), x, retain_graph=head.cosine)
    want, y = want.detach() * weights, y._replace(weights=weights)

    def check(what, got, want, rtol, atol):
        """Of each row, (n, ...): the failure names the head, its variant and the logits."""
        wrong = ~torch.isclose(got, want.detach(), rtol, atol, equal_nan=True).view(n, -1).all(1)
        of_rows = sorted({word for word, bad in zip(words, wrong.tolist()) if bad})
        assert not of_rows, f"{name} {args}, V = {vocab}: {what} is off for logits of {', '.join(of_rows)}"

    def check_gradient(got, error):
        apart = (got - right).norm(dim=1) / (right.norm(dim=1) + 0.1)
        check("the gradient", apart, torch.zeros_like(apart), 0, error)

    ours = head.log_probs(of).detach()
    check("the sum of p", ours.exp().sum(1), torch.ones(n).double(), 0, 1e-6)
    check("p", ours.exp(), log_p.exp(), **near)
    loss = head.loss(of, y) * weights
    check("the loss", loss.detach(), want, **near)
    check_gradient(torch.autograd.grad(loss.sum(), x)[0], error)
    if not head.sparse:
        check("log p", ours.where(log_p > sure, 0), log_p.where(log_p > sure, 0), **near)
        assert ours.isfinite().all()

    low = dict(rtol=1e-5, atol=1e-4), 1e-3
    for dtype, (digits, at_most) in ((torch.float64, (near, error)), (torch.float32, low)):
        output = OutputHead(head.to(dtype), Projection(nn.Parameter(z.t().to(dtype)), vocab, None))
        total, _ = output.loss(torch.eye(n, dtype=dtype), y)
        total.backward()
        torch.testing.assert_close(total.double(), want.sum(), **digits)
        check_gradient(output.projection.weight.grad.t().double(), at_most)
        ours = head.log_probs(of.detach().to(dtype))
        check(f"p in {dtype}", ours.double().exp(), log_p.exp(), **digits)
        assert head.sparse or ours.isfinite().all()


def test_a_banned_token_is_left_out(name, args):
    """p is 0 where a logit is -inf, and what is left is the head's p of the other tokens alone; the loss and
    its gradient are finite, on both ways. Smoothing's labels depend on V, so its loss is not compared."""
    vocab, kept, rows = 30, 25, 8
    g = torch.Generator().manual_seed(1)
    z = torch.randn(rows, vocab, generator=g, dtype=torch.float64)
    z[:, kept:] = -math.inf
    if name == "sparse_softmax" and not args:
        args = {"top_k": 9}
    head, small = named_head(name, vocab, args), named_head(name, kept, args)
    log_p, want = head.log_probs(z), small.log_probs(z[:, :kept])
    assert (log_p[:, kept:] == -math.inf).all()
    torch.testing.assert_close(log_p[:, :kept].exp(), want.exp(), rtol=1e-5, atol=1e-7)

    ids = torch.randint(kept, (rows, 1), generator=g)
    y = Targets(ids, torch.ones(rows, 1))
    x = z.clone().requires_grad_()
    loss = head.loss(x, y)
    (gradient,) = torch.autograd.grad(loss.sum(), x)
    assert loss.isfinite().all() and gradient.isfinite().all()
    if name != "label_smoothing":
        torch.testing.assert_close(loss.detach(), small.loss(z[:, :kept], y), rtol=1e-5, atol=1e-7)
    if head.gradient is not None:
        ours, closed, at_ids = head.gradient(z.clone(), y)
        closed.scatter_(1, ids, at_ids)
        torch.testing.assert_close(ours, loss.detach(), rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(closed, gradient, rtol=1e-6, atol=1e-8)


# -----------------------------------------------------------------------------
# Laws


def test_gradient_of_log_p(name, args):
    """By which an exported model is trained on; that of the loss is its formula's."""
    head, g = named_head(name, 11, args).double(), torch.Generator().manual_seed(1)
    z = 3 * torch.randn(3, 11, dtype=torch.float64, generator=g)
    likely = head.log_probs(z) > -9
    assert torch.autograd.gradcheck(lambda z: head.log_probs(z)[likely], (z.requires_grad_(),))


@pytest.mark.parametrize("chunk, bayesian", [(3, False), (1000, True)], ids=["point", "bayesian"])
def test_chunked_equals_unchunked(name, args, chunk, bayesian):
    """Value and every gradient, in float64, rows not a multiple of the chunk."""
    n, grads, values = 10, [], []
    targets = random_targets(n, head=named_head(name, V, args))
    for in_chunks in (True, False):
        oh = output_head(name, args, bayesian, dtype=torch.float64)
        hidden = torch.randn(
            n, C, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
        ).requires_grad_()
        weights = oh.projection.draw(torch.Generator().manual_seed(4))
        if in_chunks:
            loss = chunked_loss(hidden, weights, oh.head, targets, chunk)
        else:
            loss = oh.head.loss(project(hidden, weights, oh.head), targets).sum()
        (loss * 0.7).backward()
        values.append(loss.item())
        grads.append(gradients(hidden, oh))
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_as_good_as_plain_pytorch(name, dtype):
    """Chunked under autocast against float32: at most plain PyTorch's own error at that dtype, plus a tenth
    of it and 1e-3 (relative); twice it where small distances make either error a matter of chance."""
    torch.manual_seed(5)
    head = named_head(name, V)
    hidden, weight, targets = torch.randn(64, C), torch.randn(64, C), random_targets(64, head=head)

    def run(mode):
        oh = make_head(name, V, nn.Parameter(weight.clone()))
        h = hidden.clone().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=mode != "float32"):
            if mode == "chunked":
                loss = chunked_loss(h, oh.projection.draw(), oh.head, targets, 16)
            else:
                loss = oh.head.loss(project(h, oh.projection.draw(), oh.head), targets).sum()
        loss.backward()
        return [loss.detach(), *gradients(h, oh)]

    exact, plain, ours = run("float32"), run("plain"), run("chunked")
    times = 2 if head.reads_scale else 1.1
    for e, p, o in zip(exact, plain, ours):
        assert (o - e).norm() <= times * (p - e).norm() + 1e-3 * e.norm()


def test_sampling_frequencies_match_log_probs(name):
    """Chi-square of 5,000 texts of one token, by `generate`."""
    from evaluate.sampling import generate
    from model import GPT, GPTConfig, LanguageModel

    torch.manual_seed(6)
    trunk = GPT(GPTConfig(V, 4, 1, 1, 8))
    trunk.wte.weight.data.normal_(std=0.5)
    model = LanguageModel(trunk, make_head(name, V, trunk.wte.weight)).eval()
    draws, n = model.head.draws(1, 0), 5000
    prompt = torch.ones(n, 1, dtype=torch.long)
    ((token, hidden),) = generate(model, prompt, 1, draws, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        p = model.head.log_probs(hidden[:1], draws).exp()[0].double()
    assert p.max() > 1.5 / V  # not flat
    drawn = token.bincount(minlength=V)
    assert not drawn[p == 0].any() and chi_square(drawn.numpy(), p.numpy()) < 6


DATA = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)  # how often the tokens 0, 1 and 2 come


def learned(head: Head) -> Tensor:
    """p (V,) where free logits come to rest under the gradient of DATA's mean loss.

    Rprop uses the gradient's signs alone and lengthens its steps while they stay. So the result is what a
    head is trained towards; how fast it would get there, a matter of its slope, plays no part.
    """
    head = head.double()
    z = torch.full((1, V), head.bias or 0.0, dtype=torch.float64, requires_grad=True)
    opt = torch.optim.Rprop([z], lr=0.1, step_sizes=(1e-12, 100.0))
    for _ in range(70):
        opt.zero_grad()
        (DATA @ head.loss(z.expand(3, V), Targets.single(torch.arange(3)))).backward()
        opt.step()
    return head.log_probs(z.detach()).exp()[0]


def test_the_true_token_alone_is_learned(name, args, proper):
    """Training the logits ends at the data's distribution: a head whose loss and log_probs disagreed would
    have another."""
    if args.get("published"):  # ill-posed, as its docstring says
        return
    p = learned(named_head(name, V, args))
    assert p.argmax() == 0
    assert p[0] > 0.95 if name == "smooth_accuracy" else p[0] > p[1] > p[2] > p[3:].max()
    if proper:
        torch.testing.assert_close(p[:3], DATA, atol=0.01, rtol=0)


# -----------------------------------------------------------------------------
# With a projection, a gain, a trunk


REDUCTIONS = ("mean", "sum", "none")


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_()


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """(hidden (..., C), weight, bias), and ids (...)."""
    ids = torch.randint(V, shape, generator=torch.Generator().manual_seed(3))
    sizes = ((*shape, C), (V, C), (V,))
    return tuple(random(*size, seed=i, dtype=dtype) for i, size in enumerate(sizes)), ids


def with_gradients(loss: Tensor, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """The loss, and the gradients of a weighted sum of it."""
    weights = torch.linspace(0.5, 2, loss.numel(), dtype=loss.dtype).view(loss.shape)
    return [loss.detach(), *torch.autograd.grad(loss, tensors, weights, retain_graph=True)]


def assert_equal(ours: list[Tensor], plain: list[Tensor], error: float = 1e-6) -> None:
    """To `error`, relative to the norm."""
    for x, y in zip(ours, plain, strict=True):
        assert x.shape == y.shape and torch.equal(x.isnan(), y.isnan())
        x, y = x.double().nan_to_num(), y.double().nan_to_num()
        assert (x - y).norm() <= error * y.norm()


@pytest.mark.parametrize("dtype, error", [(torch.float32, 3e-6), (torch.float64, 1e-12)], ids=["32", "64"])
def test_linear_loss_equals_materialised_logits(name, dtype, error):
    """In each reduction: the loss and its gradients; and the distribution."""
    tensors, ids = inputs(4, 5, dtype=dtype)
    ids[0, 1] = ids[3] = -100
    kept, head, (hidden, weight, bias) = ids != -100, named_head(name, V), tensors
    h, w = (F.normalize(hidden, dim=-1) * C**0.5, F.normalize(weight)) if head.cosine else (hidden, weight)
    gain = 1.3 if head.reads_scale else torch.tensor(1.3, dtype=dtype, requires_grad=True)
    tensors += () if head.reads_scale else (gain,)
    z, head.scale = F.linear(gain * h, w, bias), 1.3 * C**0.5
    each = head.loss(z[kept], Targets.single(ids[kept]))
    plain = each.mean(), each.sum(), each.new_zeros(4, 5).masked_scatter(kept, each)
    for reduction, expected in zip(REDUCTIONS, plain):
        loss = linear_loss(hidden, weight, ids, name, bias, gain, reduction)
        assert loss.dtype == dtype
        # of small distances the rounding counts more
        at_most = 20 * error if head.reads_scale else error
        assert_equal(with_gradients(loss, tensors), with_gradients(expected, tensors), at_most)
    p = log_probs(hidden, weight, name, bias, 1.3).exp()
    assert not p.requires_grad
    torch.testing.assert_close(p, head.log_probs(z.flatten(0, 1)).exp().view(4, 5, V).detach())


def test_the_gain_multiplies_the_products_before_the_bias(name):
    """In training and in scoring, fixed and learned, also where the products are cosines."""
    g = torch.Generator().manual_seed(1)
    weight = torch.randn(64, C, generator=torch.Generator().manual_seed(0))
    hidden, targets = torch.randn(9, C, generator=g), Targets.single(torch.randint(V, (9,), generator=g))
    plain = make_head(name, V, nn.Parameter(weight))
    weights = plain.projection.draw()
    bias = weights.bias if weights.bias is not None else 0.0
    h, w = (F.normalize(hidden) * C**0.5, F.normalize(weight)) if plain.head.cosine else (hidden, weight)
    logits = 2.5 * h @ w[:V].T + bias
    plain.head.scale = 2.5 * C**0.5
    want = plain.head.loss(logits, targets).sum()
    for learn in (False, True)[: 2 - plain.head.reads_scale]:
        oh = make_head(name, V, nn.Parameter(weight), gain=2.5, learn_gain=learn)
        loss, _ = oh.loss(hidden, targets)
        torch.testing.assert_close(loss, want, rtol=1e-4, atol=1e-4)
        loss.backward()
        assert not oh.projection.weight.grad[V:].any()  # of padding
        assert not learn or oh.log_gain.grad.abs() > 0
        with torch.no_grad():
            log_p = oh.log_probs(hidden, oh.draws(1, 0))
            torch.testing.assert_close(log_p, plain.head.log_probs(logits), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("bayesian", [False, True], ids=["point", "bayesian"])
def test_a_hundred_steps_teach_it(tiny, run, name, bayesian):
    """Half a nat below the uniform distribution or further. By PPL_eps: a head with exact zeros has no finite
    perplexity."""
    if name == "smooth_accuracy":
        pytest.skip("for fine-tuning: its gradient vanishes where the true token has no probability yet")
    rates = dict(max_steps=100, warmup_steps=10, learning_rate=1e-2, min_lr=1e-3, log_interval=100)
    config = tiny(head=name, bayesian=bayesian, **rates)
    assert run(config) == 0
    (last,) = (entry for entry in log(config.out_dir) if "val_nll" in entry)
    assert math.log(last["val_ppl_eps"]) < math.log(VOCAB) - 0.5


__all__ = ["each", *(name for name in dir() if name.startswith("test_"))]
