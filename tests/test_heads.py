"""The heads of the core: the contract of tests/head_contract.py, and what holds for some of them."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heads import HEADS, Head, OutputHead, Projection, Targets, chunked_loss, make_head, project
from heads.output import sizes
from tests.head_contract import *  # noqa: F403
from tests.head_contract import (
    C,
    V,
    dense,
    each,
    gradients,
    link,
    objective,
    of,
    onehot,
    output_head,
    random_targets,
)

# -----------------------------------------------------------------------------
# The formulas


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
    _, log_p = FORMULAS[of](z, y)
    return ((log_p.exp().detach() - onehot(y, z)) * z).sum(1), log_p


FORMULAS = {
    "softmax": link(lambda z: z),
    "softmax_bias": link(lambda z: z),
    "sampled_softmax": link(lambda z: z),
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
VARIANTS = [
    ("label_smoothing", {"eps": 0.3}),
    ("gs_softmax_f1", {"alpha": 7.0}),
    ("gs_softmax_f2", {"alpha": 0.1}),
    ("sigmoid", {"pos_weight": 20.0}),
    ("sigmoid", {"sum_weight": 2.0}),
    ("sigmoid", {"pos_weight": 3.0, "sum_weight": 0.5}),
    ("taylor", {"n": 6}),
    ("taylor", {"n": 10}),
    ("taylor_inf", {"n": 4}),
    ("taylor_inf", {"published": True}),
    ("sm_softmax", {"m": 0.0}),
    ("sm_taylor", {"n": 4, "m": 0.1}),
    ("am_softmax", {"m": 0.0}),
    ("sparse_softmax", {"top_k": 8}),
    ("sparse_softmax", {"top_p": 0.9}),
    ("entmax", {"alpha": 1.01}),
    ("entmax", {"alpha": 1.9}),
    ("perturb_max", {"noise": "gumbel"}),
    ("perturb_max", {"noise": "exponential"}),
    ("stop_gradient", {"of": "entmax15"}),
    ("stop_gradient", {"of": "am_softmax"}),
]
WEIGHTED = tuple(
    f"sigmoid,{w}" for w in ("pos_weight=20.0", "sum_weight=2.0", "pos_weight=3.0,sum_weight=0.5")
)
NOT_PROPER = ("label_smoothing", "sm_softmax", "sm_taylor", "am_softmax", "smooth_accuracy", *WEIGHTED)
pytest_generate_tests = each(FORMULAS, VARIANTS, NOT_PROPER)


def test_every_head_has_a_formula():
    assert FORMULAS.keys() == HEADS.keys()


# -----------------------------------------------------------------------------
# The loss in chunks


@pytest.mark.parametrize("name", ["softmax", "smooth_accuracy"], ids=["closed form", "autograd"])
def test_only_some_inputs_need_gradients(name):
    """A frozen projection still gives the hidden states their gradient, and the loss alone needs none."""
    oh = output_head(name, {}, dtype=torch.float64).requires_grad_(False)
    targets, hidden = random_targets(4), torch.randn(4, C, dtype=torch.float64, requires_grad=True)
    chunked_loss(hidden, oh.projection.draw(), oh.head, targets, 3).backward()
    reference = hidden.detach().clone().requires_grad_()
    oh.head.loss(project(reference, oh.projection.draw(), oh.head), targets).sum().backward()
    torch.testing.assert_close(hidden.grad, reference.grad, rtol=1e-10, atol=1e-12)
    assert not chunked_loss(hidden.detach(), oh.projection.draw(), oh.head, targets, 3).requires_grad


@pytest.mark.parametrize(
    "name, vocab, n, chunk, low",
    [
        ("softmax", 20_000, 300, 32, False),
        ("smooth_accuracy", 20_000, 300, 32, False),  # by autograd
        ("softmax", 9_000, 500, 200, True),  # chunks and slices of one thread share one buffer of products
    ],
)
def test_any_number_of_threads_gives_the_same_bits(name, vocab, n, chunk, low):
    """Chunks belong to threads, but the sums and their order do not depend on which thread was first."""
    targets, before, results = random_targets(n, vocab), torch.get_num_threads(), []
    for workers in (1, 2) if low else (1, 2, 5):
        torch.manual_seed(0)
        oh = make_head(name, vocab, nn.Parameter(0.1 * torch.randn(vocab, C)))
        hidden = torch.randn(n, C, requires_grad=True)
        try:
            torch.set_num_threads(workers)
            cut = sizes(n, vocab, torch.device("cpu"), chunk)
            assert cut.workers == workers and (cut.columns < vocab or not low)
            with torch.autocast("cpu", torch.bfloat16, enabled=low):
                loss = chunked_loss(hidden, oh.projection.draw(), oh.head, targets, chunk)
            assert torch.get_num_threads() == workers
        finally:
            torch.set_num_threads(before)
        loss.backward()
        results.append([loss.detach(), *gradients(hidden, oh)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_autocast_lowers_the_projection_alone():
    """A head's own matrix products stay in float32 in loss and in log_probs."""
    seen = []

    class Mixing(Head):
        def log_probs(self, z):
            seen.append((z @ torch.eye(V)).dtype)
            return z.log_softmax(1)

        def loss(self, z, targets):
            return -self.log_probs(z).gather(1, targets.ids[:, :1])[:, 0]

    oh = OutputHead(Mixing(V), Projection(nn.Parameter(torch.randn(64, C)), V, None))
    with torch.autocast("cpu", torch.bfloat16):
        oh.loss(torch.randn(4, C, requires_grad=True), random_targets(4))[0].backward()
        oh.log_probs(torch.randn(4, C), oh.draws(1, 0))
    assert seen == [torch.float32] * 2


# -----------------------------------------------------------------------------
# Known closed forms and libraries


@pytest.mark.parametrize("name", ["sigmoid", "gs_softmax_f1", "gs_softmax_f2"])
def test_prior_bias_starts_the_sum_at_one(name):
    head = HEADS[name](V)
    z = torch.full((V,), head.bias)
    F_of_z = z.sigmoid() if name == "sigmoid" else head.link(z).exp()
    assert F_of_z.sum().item() == pytest.approx(1, rel=0.05)
    assert make_head(name, V, nn.Parameter(torch.zeros(64, C))).projection.bias.eq(head.bias).all()


@pytest.mark.parametrize("alpha", [1.25, 2.0])
def test_entmax_of_a_nan_is_nan(alpha):
    """Of its row alone, also where entmax looks at the largest logits only: a diverged run must be seen."""
    z = 8 * torch.randn(5, 3000, generator=torch.Generator().manual_seed(0))
    z[1, 77] = math.nan
    head, bad = HEADS["entmax"](3000, alpha), torch.arange(5) == 1
    assert torch.equal(head.log_probs(z).isnan().all(1), bad)
    assert torch.equal(head.loss(z, Targets.single(torch.arange(5))).isnan(), bad)


def tail_by_quadrature(z: np.ndarray, t: int) -> float:
    """-log P[argmax_j (z_j + normal noise) = t]: trapezoids about the largest integrand, by scipy."""
    special = pytest.importorskip("scipy.special")
    others, (low, high) = np.delete(z, t), (z.min() - 9, z.max() + 9)
    for points in (801, 801, 801, 801, 8001):
        x = np.linspace(low, high, points)
        log_f = special.log_ndtr(x[:, None] - others).sum(1) - (x - z[t]) ** 2 / 2 - math.log(2 * math.pi) / 2
        near = x[log_f > log_f.max() - 60]
        low, high = near.min() - (x[1] - x[0]), near.max() + (x[1] - x[0])
    return -special.logsumexp(log_f) - math.log(x[1] - x[0])


@pytest.mark.parametrize("dtype, error", [(torch.float64, 1e-5), (torch.float32, 1e-4)], ids=str)
@pytest.mark.parametrize("vocab, spread", [(2, 0.0), (5, 3.0), (300, 0.0), (300, 8.0)])
def test_the_tail_of_normal_noise(vocab, spread, dtype, error):
    """Below p = 1e-20 loss and log p are the integral, and so is its gradient; with banned tokens."""
    g, head = torch.Generator().manual_seed(vocab), HEADS["perturb_max"](vocab)
    for depth in (12.0, 13.5, 16.0, 40.0, 160.0):
        z = spread * torch.randn(1, vocab, generator=g, dtype=torch.float64)
        z[0, 1] = z[0].max() - depth
        want, y = tail_by_quadrature(z[0].numpy(), 1), Targets.single(torch.tensor([1]))
        x = F.pad(z, (0, 3), value=-math.inf).to(dtype).requires_grad_()
        loss = head.loss(x, y)
        assert loss.item() == pytest.approx(want, rel=error)
        assert head.log_probs(x.detach())[0, 1].item() == pytest.approx(-want, rel=error)
        (grad,) = torch.autograd.grad(loss.sum(), x)
        step = torch.zeros_like(z)
        step[0, [0, 1]] = torch.tensor([1e-4, -1e-4], dtype=z.dtype)
        apart = [tail_by_quadrature((z + sign * step)[0].numpy(), 1) for sign in (1, -1)]
        assert (grad[0, 0] - grad[0, 1]).item() == pytest.approx((apart[0] - apart[1]) / 2e-4, rel=1e-3)
        assert grad[0, vocab:].abs().max() < 1e-6


# -----------------------------------------------------------------------------
# The Bayesian projection


def test_bayesian_projection_draws_its_distribution():
    oh = output_head("softmax", {}, bayesian=True)
    oh.projection.bayes.weight_log_sigma.data.fill_(math.log(0.5))
    g = torch.Generator().manual_seed(0)
    draws = torch.stack([oh.projection.draw(g).weight.detach() for _ in range(2000)])
    torch.testing.assert_close(draws.mean(0), oh.projection.weight.detach(), atol=0.06, rtol=0)
    torch.testing.assert_close(draws.std(0), torch.full((64, C), 0.5), atol=0.05, rtol=0)


def test_bayesian_kl_is_torch_distributions():
    """Of the V rows of tokens, without the padding. Its mean is the embedding itself."""
    weight = nn.Parameter(torch.randn(64, C))
    oh = make_head("softmax", V, weight, bayesian=True)
    q = torch.distributions.Normal(weight[:V], oh.projection.bayes.weight_log_sigma[:V].exp())
    want = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 0.02)).sum()
    torch.testing.assert_close(oh.projection.kl(), want, rtol=1e-4, atol=0)
    assert [p is weight for p in oh.parameters()].count(True) == 1
    assert sum(p.numel() for p in oh.parameters()) == 2 * 64 * C


def test_predictive_is_the_mean_of_probabilities():
    oh, hidden = output_head("sigmoid", {}, bayesian=True), torch.randn(5, C)
    oh.projection.bayes.weight_log_sigma.data.fill_(0.0)
    draws = oh.draws(6, seed=1)
    each = torch.stack([oh.log_probs(hidden, [d]) for d in draws])
    torch.testing.assert_close(oh.log_probs(hidden, draws).exp(), each.exp().mean(0))
    again = oh.draws(6, seed=1)
    assert len({d.weight.sum().item() for d in draws}) == 6  # different draws, of the seed alone
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(draws, again))


# -----------------------------------------------------------------------------
# Adding a head; mistakes


def sampled(
    k: int, seed: int, targets: Targets, hidden: torch.Tensor, bias: bool = False
) -> tuple[OutputHead, torch.Tensor]:
    oh = output_head("sampled_softmax", {"samples": k, "bias": bias}, dtype=torch.float64)
    if bias:
        oh.projection.bias.data = torch.linspace(-2, 3, V, dtype=torch.float64)
    oh.head.use_frequencies(torch.arange(1, V + 1) ** 2)
    return oh, oh.loss(hidden, targets, torch.Generator().manual_seed(seed))[0]


@pytest.mark.parametrize("bias", [False, True])
def test_sampled_softmax_is_its_formula(bias):
    hidden, targets = torch.randn(5, C, dtype=torch.float64), random_targets(5)
    targets = targets._replace(weights=torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0]))
    oh, loss = sampled(9, 3, targets, hidden, bias)
    pi = oh.head.log_pi.exp()
    drawn = (torch.rand(V, generator=torch.Generator().manual_seed(3)) < pi).nonzero()[:, 0].tolist()
    z, want = project(hidden, oh.projection.draw(None), oh.head).double(), 0.0
    for row, t, weight in zip(z, targets.token, targets.weights):
        others = [row[s].exp() / pi[s] for s in drawn if s != t]
        want += weight * -(row[t].exp() / (row[t].exp() + sum(others))).log()
    torch.testing.assert_close(loss, want, check_dtype=False, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("k", [1, 9, V - 1, V, 10 * V])
def test_as_many_samples_as_are_asked_for_by_frequency(k):
    oh, _ = sampled(k, 0, random_targets(2), torch.zeros(2, C, dtype=torch.float64))
    pi, counts = oh.head.log_pi.exp(), torch.arange(1, V + 1) ** 2
    assert pi.sum().item() == pytest.approx(min(k, V)) and pi.max() <= 1
    below = pi < 1 - 1e-9
    torch.testing.assert_close((pi / counts)[below], (pi / counts)[below].mean().expand(int(below.sum())))


def test_all_samples_are_softmax_and_scoring_is_whole():
    hidden, targets = torch.randn(40, C, dtype=torch.float64) / 2, random_targets(40)
    oh, every = sampled(V, 0, targets, hidden)
    whole = oh.loss(hidden, targets)[0]  # no generator, no draws
    torch.testing.assert_close(every, whole)
    few = [sampled(4, seed, targets, hidden)[1].item() for seed in (0, 0, 1)]
    assert few[0] == few[1] != few[2]
    oh.eval()
    assert oh.loss(hidden, targets, torch.Generator())[0] == whole


@pytest.mark.parametrize("name", ["softmax", "am_softmax"])
def test_a_head_can_be_copied_after_a_loss_with_a_learned_gain(name):
    oh = make_head(name, V, nn.Parameter(torch.randn(64, C)), gain=2.0, learn_gain=True)
    oh.loss(torch.randn(4, C), random_targets(4))[0].backward()
    assert copy.deepcopy(oh).gain == oh.gain


def test_one_backward_only():
    oh, hidden = output_head("softmax", {}), torch.randn(4, C, requires_grad=True)
    loss, _ = oh.loss(hidden, random_targets(4))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward only"):
        loss.backward()


@pytest.mark.parametrize(
    "name, args, key",
    [
        ("sofmax", {}, "sofmax"),
        ("label_smoothing", {"eps": 1.0}, "eps"),
        ("label_smoothing", {"epsilon": 0.1}, "epsilon"),
        ("sigmoid", {"pos_weight": 0.0}, "pos_weight"),
        ("sigmoid", {"sum_weight": -1.0}, "sum_weight"),
        *(("taylor", {"n": n}, "n = ") for n in (3, 4.0, 12)),  # an odd n has a root
        ("taylor_inf", {"published": "false"}, "published"),
        *(("sm_softmax", {"m": m}, "m = ") for m in (-0.1, True, math.nan)),
        ("sparse_softmax", {"top_k": 5, "top_p": 0.5}, "top_k = 5, top_p = 0.5"),
        *(("entmax", {"alpha": alpha}, "alpha") for alpha in (1.0, 2.5)),
        ("perturb_max", {"noise": "cauchy"}, "noise"),
        ("stop_gradient", {"of": "sparse_softmax", "of_args": {"top_k": 2.5}}, "top_k"),
    ],
)
def test_wrong_arguments_are_named(name, args, key):
    with pytest.raises(ValueError, match=key):
        make_head(name, V, nn.Parameter(torch.zeros(64, C)), args)
