"""Every head's loss, gradient and p are its paper's formula, written here in plain PyTorch and float64.

At vocabularies about the sizes where an implementation may change its way, with the largest logit in each
place where it may be overlooked."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heads import HEADS, OutputHead, Projection, Targets

VOCABULARIES = [2, 61, 255, 256, 257, 420, 2903, 50257]

# -----------------------------------------------------------------------------
# The formulas: f(z (N, V), targets, arguments) -> the loss (N,) and log p (N, V)


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


def smoothing(log_p, y, z, eps=0.05):
    t = onehot(y, z)
    return -((t * (1 - eps) + (1 - t) * eps / (z.shape[1] - 1)) * log_p).sum(1)


def sigmoid(z, y, pos_weight=1.0, sum_weight=0.0):
    w = torch.tensor(pos_weight, dtype=z.dtype)
    each = F.binary_cross_entropy_with_logits(z, dense(y, z), reduction="none", pos_weight=w)
    log_p = F.logsigmoid(z).log_softmax(1)
    return each.sum(1) + sum_weight * (z.sigmoid().sum(1) - 1) ** 2, log_p


def log_polynomial(z, n=2):
    return sum(z**i / math.factorial(i) for i in range(n + 1)).log()


def taylor_inf(z, y, n=2, published=False):
    loss, log_p = link(log_polynomial)(z, y, n=n)
    gradient = log_p.exp() - onehot(y, z)
    if not published:  # turned where the polynomial falls
        gradient = gradient * sum(z**i / math.factorial(i) for i in range(n)).sign()
    return loss.detach() + (gradient.detach() * (z - z.detach())).sum(1), log_p


def margin(u):
    """In the loss the true logit is m lower."""

    def formula(z, y, m=0.6, **args):
        loss, _ = link(u)(z - m * onehot(y, z), y, **args)
        return loss, u(z, **args).log_softmax(1)

    return formula


def sparse_softmax(z, y, top_k=50, top_p=0.0):
    ordered = z.sort(1, descending=True).values
    p = ordered.softmax(1)
    count = (p.cumsum(1) - p < top_p).sum(1) if top_p else torch.full((len(z),), min(top_k, z.shape[1]))
    top = z >= ordered.gather(1, count[:, None] - 1)  # with what ties with the last
    cut = z.masked_fill(~top, -math.inf)
    return cut.logsumexp(1) - of(z, y), cut.log_softmax(1)


def entmax(z, y, alpha=1.25):
    """The threshold by bisection. The gradient of max_p p z + H(p) is that at the best p."""
    with torch.no_grad():
        x = (alpha - 1) * (z - z.amax(1, keepdim=True))
        low, high = torch.full_like(x[:, :1], -1), torch.zeros_like(x[:, :1])
        for _ in range(55):
            middle = (low + high) / 2
            below = ((x - middle).clamp(min=0) ** (1 / (alpha - 1))).sum(1, keepdim=True) > 1
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        p = (x - low).clamp(min=0) ** (1 / (alpha - 1))
        entropy = (1 - (p**alpha).sum(1)) / (alpha * (alpha - 1))
    return (p * z).sum(1) + entropy - of(z, y), p.log()


def perturb_max(z, y, noise="normal"):
    """P[argmax_j (z_j + eps_j) = i]: the integral of F'(x - z_i) prod_{j != i} F(x - z_j) over x."""
    if noise == "gumbel":
        return link(lambda z: z)(z, y)
    losses, rows = [], []
    for row, t in zip(z - z.amax(1, keepdim=True), y.token):
        if noise == "normal":
            x, step = torch.arange(-12, 9, 1 / 8, dtype=z.dtype)[:, None], -math.log(8)
            log_F = torch.special.log_ndtr(x - row)
            log_f = lambda row: step - ((x - row) ** 2 + math.log(2 * math.pi)) / 2
        else:  # with s = e^-x: the integral of q_i prod_{j != i} (1 - s q_j) from 0 to 1, but for its tail
            nodes, weights = (torch.from_numpy(a)[:, None] for a in np.polynomial.legendre.leggauss(40))
            end = (40 / row.detach().exp().sum()).clamp(max=1)
            log_F = (-end * (1 + nodes) / 2 * row.exp()).log1p()
            log_f = lambda row: row + (end / 2 * weights).log()
        product = log_F.sum(1, keepdim=True)
        losses.append(-(product[:, 0] - log_F[:, t] + log_f(row[t])[:, 0]).logsumexp(0))
        with torch.no_grad():
            rows.append((product - log_F + log_f(row)).logsumexp(0))
    return torch.stack(losses), torch.stack(rows)


def soft_targets(log_p, y, z):
    labels = dense(y, z)
    return -(labels / labels.sum(1, keepdim=True) * log_p).sum(1)


def stop_gradient(z, y, of="softmax"):
    _, log_p = {**FORMULAS, **MORE}[of](z, y)
    return ((log_p.exp().detach() - onehot(y, z)) * z).sum(1), log_p


def unlikelihood(log_p, y, z, alpha=1.0):
    avoid = (1 - log_p.exp()).clamp(min=1e-5).log() * (dense(y, z) < 0)
    return -of(log_p, y) - alpha * avoid.sum(1)


FORMULAS = {
    "softmax": link(lambda z: z),
    "softmax_bias": link(lambda z: z),
    "label_smoothing": objective(smoothing),
    "sigmoid": sigmoid,
    "gs_softmax_f1": link(lambda z, alpha=1.0: F.logsigmoid(z)),
    "gs_softmax_f2": link(lambda z, alpha=1.0: torch.where(z < 0, z, z.clamp(min=0).log1p())),
    "sigsoftmax": link(lambda z: z + F.logsigmoid(z)),
    "taylor": link(log_polynomial),
    "taylor_inf": taylor_inf,
    "sm_softmax": margin(lambda z: z),
    "sm_taylor": margin(log_polynomial),
    "am_softmax": margin(lambda z: z),
    "sparse_softmax": sparse_softmax,
    "sparsemax": lambda z, y: entmax(z, y, 2.0),
    "entmax15": lambda z, y: entmax(z, y, 1.5),
    "entmax": entmax,
    "perturb_max": perturb_max,
    "smooth_accuracy": objective(lambda log_p, y, z: -of(log_p.exp(), y)),
    "soft_targets": objective(soft_targets),
    "stop_gradient": stop_gradient,
}
ARGUMENTS = [
    ("label_smoothing", {"eps": 0.3}),
    ("gs_softmax_f1", {"alpha": 7.0}),
    ("gs_softmax_f2", {"alpha": 0.1}),
    ("sigmoid", {"pos_weight": 3.0, "sum_weight": 0.5}),
    ("taylor", {"n": 6}),
    ("taylor", {"n": 10}),
    ("taylor_inf", {"n": 4}),
    ("taylor_inf", {"published": True}),
    ("sm_taylor", {"n": 4, "m": 0.1}),
    ("sparse_softmax", {"top_p": 0.9}),
    ("entmax", {"alpha": 1.01}),
    ("entmax", {"alpha": 1.9}),
    ("perturb_max", {"noise": "gumbel"}),
    ("perturb_max", {"noise": "exponential"}),
    ("stop_gradient", {"of": "entmax15"}),
]

# of no source document
MORE = {
    "softcap": link(lambda z, cap=30.0: cap * torch.tanh(z / cap)),
    "sigmoid_cap": link(lambda z, cap=23.0, shift=5.0: cap * torch.sigmoid((z + shift) / 7.5)),
    "stablemax": link(lambda z: torch.where(z < 0, -(1 - z.clamp(max=0)).log(), z.clamp(min=0).log1p())),
    "harmonic": link(lambda z, scale: -scale * (1 - z / scale).clamp(min=1e-4).log()),
    "z_loss": objective(lambda log_p, y, z, alpha=1e-4: -of(log_p, y) + alpha * z.logsumexp(1) ** 2),
    "power_loss": objective(lambda log_p, y, z, alpha=0.5: (1 - (alpha * of(log_p, y)).exp()) / alpha),
    "brier": objective(lambda log_p, y, z: ((log_p.exp() - onehot(y, z)) ** 2).sum(1)),
    "spherical": objective(lambda log_p, y, z: 1 - of(log_p.exp(), y) / log_p.exp().norm(dim=1)),
    "confidence_penalty": objective(
        lambda log_p, y, z, beta=0.1: -of(log_p, y) + beta * (log_p.exp() * log_p).sum(1)
    ),
    "unlikelihood": objective(unlikelihood),
}
MORE_ARGUMENTS = [
    ("softcap", {"cap": 12.0}),
    ("sigmoid_cap", {"cap": 30.0, "shift": 0.0}),
    ("z_loss", {"alpha": 0.1}),
    ("power_loss", {"alpha": 0.2}),
    ("confidence_penalty", {"beta": 0.5}),
    ("unlikelihood", {"alpha": 0.3}),
]

CASES = [*((name, {}) for name in [*FORMULAS, *MORE]), *ARGUMENTS, *MORE_ARGUMENTS]
cases = pytest.mark.parametrize(
    "name, args",
    CASES,
    ids=[",".join([name, *(f"{k}={v}" for k, v in args.items())]) for name, args in CASES],
)


def test_every_head_has_a_formula():
    assert {*FORMULAS, *MORE} == {*HEADS}


# -----------------------------------------------------------------------------
# The rows


def logits(vocab: int) -> Tensor:
    """(N, V), float64, of float32 numbers: the largest first, last and in each place of the last 16, above
    few rivals, some, and nearly all tokens; ties; far from 0."""
    g = torch.Generator().manual_seed(vocab)
    normal = lambda: torch.randn(vocab, generator=g)
    last = range(max(0, vocab - (16 if vocab < 10_000 else 1)), vocab)
    rows = []
    for top in sorted({0, *last}):
        for spread in (1 / vocab, 1, 8)[: 2 if vocab > 1000 else 3]:
            row = spread * normal()
            row[top] = row.max() + 0.1
            rows.append(row)
    ties = normal().round()
    ties[[0, vocab // 2, -1]] = ties.max()
    rows += [ties, 8 * normal()]
    if vocab < 1000:
        rows += [0 * normal(), 3 * normal() - 500, 3 * normal() + 500, 1e4 * normal()]
    return torch.stack(rows).double()


def labels(z: Tensor, name: str) -> Targets:
    """Up to four tokens a row, some of them padding. In every third row the first is the largest logit's."""
    g = torch.Generator().manual_seed(1)
    ids = torch.rand(z.shape, generator=g).topk(min(4, z.shape[1])).indices
    top = z.argmax(1)
    ids[::3] = torch.where(ids == top[:, None], ids[:, :1], ids)[::3]
    ids[::3, 0] = top[::3]
    values = torch.rand(ids.shape, generator=g)
    if name == "unlikelihood":
        values = -torch.ones_like(values)
    values[:, 0] = 1
    padding = torch.rand(ids.shape, generator=g) < 0.3
    padding[:, 0] = False
    return Targets(ids.masked_fill(padding, -1), values.masked_fill(padding, 0))


@cases
@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_a_head_is_its_formula(name, args, vocab):
    """By its methods, and by the path of training: there the hidden states are unit vectors and the weights
    the logits, so that the weights' gradient is the logits'."""
    head, z, near, error = (
        HEADS[name](vocab, **args).double(),
        logits(vocab),
        dict(rtol=1e-8, atol=1e-9),
        1e-8,
    )
    integral = name == "perturb_max" and args.get("noise") != "gumbel"
    if integral:
        near, error = dict(rtol=1e-5, atol=3e-5), 1e-4
        z = z[:: 20_000 // vocab + 4]  # it takes long
    n, y, x, scale = len(z), labels(z, name), z.clone().requires_grad_(), {}
    of = F.normalize(x, dim=0) * n**0.5 if head.cosine else x
    if name == "harmonic":
        head.scale, scale = n**0.5, {"scale": n**0.5}
    want, log_p = {**FORMULAS, **MORE}[name](of, y, **args, **scale)
    (right,) = torch.autograd.grad(want.sum(), x, retain_graph=head.cosine)
    sure = -46 if integral else -math.inf  # below p = 1e-20 the integral is rough
    weights = (want < -sure).double()
    want, right, y = want.detach() * weights, right * weights[:, None], y._replace(weights=weights)

    def check_gradient(got, error):
        assert ((got - right).norm(dim=1) <= error * right.norm(dim=1) + 0.1 * error).all()

    loss = head.loss(of, y) * weights
    torch.testing.assert_close(loss.detach(), want, **near)
    check_gradient(torch.autograd.grad(loss.sum(), x)[0], error)
    ours = head.log_probs(of).detach()
    torch.testing.assert_close(ours.exp(), log_p.detach().exp(), **near)
    if not head.sparse:
        torch.testing.assert_close(ours[log_p > sure], log_p[log_p > sure].detach(), **near)

    low = dict(rtol=1e-5, atol=1e-4), 1e-3
    for dtype, (digits, at_most) in ((torch.float64, (near, error)), (torch.float32, low)):
        output = OutputHead(head.to(dtype), Projection(nn.Parameter(z.t().to(dtype)), vocab, None))
        total, _ = output.loss(torch.eye(n, dtype=dtype), y)
        total.backward()
        torch.testing.assert_close(total.double(), want.sum(), **digits)
        check_gradient(output.projection.weight.grad.t().double(), at_most)


# -----------------------------------------------------------------------------
# Banned tokens


@cases
def test_a_banned_token_is_left_out(name, args):
    """p is 0 where a logit is -inf, and what is left is the head's p of the other tokens alone; the loss and
    its gradient are finite, on both ways. Smoothing's labels depend on V, so its loss is not compared."""
    vocab, kept, rows = 30, 25, 8
    g = torch.Generator().manual_seed(1)
    z = torch.randn(rows, vocab, generator=g, dtype=torch.float64)
    z[:, kept:] = -math.inf
    if name == "sparse_softmax" and not args:
        args = {"top_k": 9}
    head, small = HEADS[name](vocab, **args), HEADS[name](kept, **args)
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


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_entmax_has_a_gradient_of_log_p(alpha):
    """Where p > 0, against finite differences."""
    z = torch.randn(
        5, 12, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True
    )
    head = HEADS["entmax"](12, alpha=alpha)
    likely = head.log_probs(z.detach()) > -9
    assert torch.autograd.gradcheck(lambda z: head.log_probs(z)[likely], (z,))
