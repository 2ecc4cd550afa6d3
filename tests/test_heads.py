"""The heads of the core: the contract of tests/head_contract.py, and what holds for some of them."""

import math
from collections.abc import Callable
from itertools import permutations, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from heads import HEADS, Head, OutputHead, Projection, Targets, chunked_loss, make_head, project
from heads.output import sizes
from tests.head_contract import *  # noqa: F403
from tests.head_contract import (
    C,
    V,
    check_learned,
    dense,
    each,
    gradients,
    learned,
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
pytest_generate_tests = each(FORMULAS, VARIANTS, NOT_PROPER, own_gradient=("taylor_inf", "stop_gradient"))


def test_every_head_has_a_formula():
    assert FORMULAS.keys() == HEADS.keys()


def test_a_slow_head_is_right_and_a_wrong_one_is_not():
    """Of the contract's own test: a head whose logits grow to V / 2, and one scored by another link."""

    class Asinh(HEADS["softmax"]):
        def link(self, z):
            return z.asinh()

    class Wrong(Asinh):
        def log_probs(self, z):
            return F.log_softmax(z / 2, -1)

    check_learned(learned(Asinh(V)))
    with pytest.raises(AssertionError):
        check_learned(learned(Wrong(V)))


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


def test_no_grad_computes_no_gradient(monkeypatch):
    """Though the weights are parameters: validation takes the products of the logits alone."""

    def product(*args, **kwargs):
        raise AssertionError("the weight's gradient is computed")

    oh, hidden, targets = output_head("softmax", {}), torch.randn(4, C), random_targets(4)
    want = chunked_loss(hidden, oh.projection.draw(), oh.head, targets)
    monkeypatch.setattr(torch.Tensor, "addmm_", product)
    with torch.no_grad():
        assert torch.equal(chunked_loss(hidden, oh.projection.draw(), oh.head, targets), want)


def test_heads_of_the_speed_table_have_a_closed_form():
    """Without one the loss is right, too, and half as fast on a CPU: these heads are README's speed."""
    table = {"softmax", "label_smoothing", "sigmoid", "gs_softmax_f1", "gs_softmax_f2", "sigsoftmax"}
    slowest = {"taylor", "sparsemax", "entmax15", "entmax", "perturb_max"}
    assert all(HEADS[name].gradient for name in table | slowest | {"sm_softmax", "am_softmax"})


@pytest.mark.parametrize("name", ["softmax", "sigmoid"])
def test_heads_need_no_closed_forms(name, monkeypatch):
    """Without `gradient`, training has the same losses and gradients but for rounding. Rows have
    weights."""
    results = []
    for closed in (True, False):
        if not closed:
            monkeypatch.setattr(HEADS[name], "gradient", None)
        oh, targets = output_head(name, {}), random_targets(10)
        targets = targets._replace(weights=torch.linspace(0.5, 1.5, 10))
        hidden = torch.randn(10, C, generator=torch.Generator().manual_seed(3)).requires_grad_()
        loss = chunked_loss(hidden, oh.projection.draw(), oh.head, targets, 3)
        loss.backward()
        results.append([loss.detach(), *gradients(hidden, oh)])
    for ours, plain in zip(*results):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-5)


def test_a_subclass_does_not_inherit_anothers_closed_form():
    class Doubled(HEADS["softmax"]):
        def link(self, z):
            return 2 * z

    hidden, weight, targets = (
        torch.randn(4, C, requires_grad=True),
        nn.Parameter(torch.randn(64, C)),
        random_targets(4),
    )
    ours = chunked_loss(hidden, Projection(weight, V, None).draw(), Doubled(V), targets)
    want = F.cross_entropy(2 * hidden @ weight[:V].t(), targets.token, reduction="sum")
    torch.testing.assert_close(ours, want)
    torch.testing.assert_close(*(torch.autograd.grad(loss, hidden)[0] for loss in (ours, want)))


@pytest.mark.parametrize("name", ["softmax", "smooth_accuracy"], ids=["closed form", "autograd"])
def test_any_number_of_threads_gives_the_same_bits(name):
    """Chunks belong to threads, but the sums and their order do not depend on which thread was first."""
    vocab, n, results = 20_000, 300, []
    targets, before = random_targets(n, vocab), torch.get_num_threads()
    for workers in (1, 2, 5):
        torch.manual_seed(0)
        oh = make_head(name, vocab, nn.Parameter(0.1 * torch.randn(vocab, C)))
        hidden = torch.randn(n, C, requires_grad=True)
        try:
            torch.set_num_threads(workers)
            assert sizes(n, vocab, torch.device("cpu")).workers == workers
            loss = chunked_loss(hidden, oh.projection.draw(), oh.head, targets, 32)
            assert torch.get_num_threads() == workers
        finally:
            torch.set_num_threads(before)
        loss.backward()
        results.append([loss.detach(), *gradients(hidden, oh)])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_no_rows_no_loss_no_gradient():
    oh, hidden = output_head("gs_softmax_f1", {}), torch.zeros(0, C, requires_grad=True)
    loss = chunked_loss(hidden, oh.projection.draw(), oh.head, random_targets(0))
    loss.backward()
    assert loss == 0 and hidden.grad.shape == (0, C) and not any(p.grad.any() for p in oh.parameters())


def test_one_thread_adds_up_low_precision_products_in_float32():
    """Chunks and slices of one thread share one buffer of products: the weight's gradient is that of the same
    chunks in two threads, to the last bit."""
    vocab, n, threads, results = 9_000, 500, torch.get_num_threads(), []
    targets = random_targets(n, vocab)
    for workers in (1, 2):
        torch.manual_seed(0)
        oh = make_head("softmax", vocab, nn.Parameter(0.1 * torch.randn(vocab, C)))
        hidden = torch.randn(n, C, requires_grad=True)
        try:
            torch.set_num_threads(workers)
            cut = sizes(n, vocab, torch.device("cpu"), 200)
            assert cut.workers == workers and cut.columns < vocab
            with torch.autocast("cpu", torch.bfloat16):
                loss = chunked_loss(hidden, oh.projection.draw(), oh.head, targets, 200)
        finally:
            torch.set_num_threads(threads)
        loss.backward()
        results.append([loss.detach(), *gradients(hidden, oh)])
    assert all(torch.equal(*pair) for pair in zip(*results))


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


def test_label_smoothing_is_torchs():
    """torch's eps spreads over all V: eps_torch = eps V / (V - 1)."""
    z, t, eps = torch.randn(9, V), torch.randint(V, (9,)), 0.1
    loss = HEADS["label_smoothing"](V, eps).loss(z, Targets.single(t))
    want = F.cross_entropy(z, t, reduction="none", label_smoothing=eps * V / (V - 1))
    torch.testing.assert_close(loss, want)


@pytest.mark.parametrize("name", ["sigmoid", "gs_softmax_f1", "gs_softmax_f2"])
def test_prior_bias_starts_the_sum_at_one(name):
    head = HEADS[name](V)
    link = {
        "sigmoid": torch.sigmoid,
        "gs_softmax_f1": torch.sigmoid,
        "gs_softmax_f2": lambda z: head.link(z).exp(),
    }[name]
    assert link(torch.full((V,), head.bias)).sum().item() == pytest.approx(1, rel=0.05)
    assert make_head(name, V, nn.Parameter(torch.zeros(64, C))).projection.bias.eq(head.bias).all()


def test_f2_has_slope_one_where_its_branches_meet():
    z = torch.tensor([[0.0, -1e-30, 1e-30]], requires_grad=True)
    HEADS["gs_softmax_f2"](3).link(z).sum().backward()
    assert z.grad.tolist() == [[1.0, 1.0, 1.0]]


def test_am_softmax_is_of_cosines():
    """Lengths of hidden states and embeddings change nothing, in loss, log_probs or their blocks; logits are
    cosines times sqrt(C)."""
    oh, hidden, targets = output_head("am_softmax", {}), torch.randn(9, C), random_targets(9)
    cos = F.cosine_similarity(hidden[:, None], oh.projection.weight[None, :V], dim=2)
    want = F.log_softmax(cos * math.sqrt(C), 1)
    torch.testing.assert_close(oh.log_probs(hidden, oh.draws(1, 0)), want, rtol=1e-4, atol=1e-4)
    loss = oh.loss(hidden, targets)[0]
    z = cos * math.sqrt(C) - 0.6 * F.one_hot(targets.token, V)
    torch.testing.assert_close(loss, F.cross_entropy(z, targets.token, reduction="sum"))
    with torch.no_grad():
        oh.projection.weight *= torch.rand(64, 1) + 0.5
    torch.testing.assert_close(oh.loss(7 * hidden, targets)[0], loss)
    blocks = torch.cat([lp for _, lp in oh.log_prob_blocks(0.1 * hidden, oh.draws(1, 0))])
    torch.testing.assert_close(blocks, want, rtol=1e-4, atol=1e-4)


def test_sparse_softmax_finds_the_same_top_p_as_sorting():
    from evaluation.decoding import Decoding
    from evaluation.truncation import truncate

    z = 0.5 * torch.randn(3, 5000, dtype=torch.float64)
    p = HEADS["sparse_softmax"](5000, top_p=0.9).log_probs(z).exp()
    torch.testing.assert_close(p, truncate(z.log_softmax(1), Decoding(top_p=0.9)))


@pytest.mark.parametrize("scale", [0.01, 8.0])
@pytest.mark.parametrize(
    "name, args, alpha", [("sparsemax", {}, 2.0), ("entmax15", {}, 1.5), ("entmax", {"alpha": 1.8}, 1.8)]
)
def test_entmax_is_the_librarys(name, args, alpha, scale):
    """Probabilities, Fenchel-Young loss and its gradient, float64; supports below and above the solver's
    first guess of 128."""
    library = pytest.importorskip("entmax")
    vocab, t = 3000, torch.arange(7)
    g = torch.Generator().manual_seed(0)
    z = (scale * torch.randn(7, vocab, dtype=torch.float64, generator=g)).requires_grad_()
    head = HEADS[name](vocab, **args)
    ours, p = head.loss(z, Targets.single(t)), head.log_probs(z).exp()
    theirs, want = library.entmax_bisect_loss(z, t, alpha, 100), library.entmax_bisect(z, alpha, n_iter=100)
    near = dict(rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(p, want, **near)
    torch.testing.assert_close(ours, theirs, **near)
    torch.testing.assert_close(*(torch.autograd.grad(l.sum(), z)[0] for l in (ours, theirs)), **near)


@pytest.mark.parametrize("place", [0, 255, 256])
def test_entmax_where_the_largest_logit_is_in_the_last_columns(place):
    """257 tokens are 16 groups of 16 and one column; support is broad. 0.0957: bisection, by hand."""
    z = torch.zeros(1, 257, dtype=torch.float64)
    z[0, place] = 0.5
    p = HEADS["entmax15"](257).log_probs(z).exp()
    assert p[0, place].item() == pytest.approx(0.0957, abs=5e-5)
    assert p.sum().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("alpha", [1.25, 2.0])
def test_entmax_of_a_nan_is_nan(alpha):
    """Of its row alone, also where entmax looks at the largest logits only: a diverged run must be seen."""
    z = 8 * torch.randn(5, 3000, generator=torch.Generator().manual_seed(0))
    z[1, 77] = math.nan
    head, bad = HEADS["entmax"](3000, alpha), torch.arange(5) == 1
    assert torch.equal(head.log_probs(z).isnan().all(1), bad)
    assert torch.equal(head.loss(z, Targets.single(torch.arange(5))).isnan(), bad)


def test_exponential_perturb_max_is_permute_and_flip():
    """McKenna & Sheldon 2020, algorithm 1: in a random order of the tokens, the first whose coin of
    probability e^(z_i - max z) falls on heads."""
    z = torch.tensor([[0.0, -0.3, -1.0, 0.0, -2.5], [0.1, 5.0, 4.0, 4.9, -20.0]], dtype=torch.float64)
    want = torch.zeros_like(z)
    orders = list(permutations(range(5)))
    for row, q in enumerate((z - z.amax(1, keepdim=True)).exp().tolist()):
        for order in orders:
            left = 1.0
            for i in order:
                want[row, i] += left * q[i] / len(orders)
                left *= 1 - q[i]
    torch.testing.assert_close(
        HEADS["perturb_max"](5, "exponential").log_probs(z).exp(), want, rtol=1e-10, atol=0
    )


def normal_perturb_max(z: Tensor) -> tuple[Tensor, Callable[[int], Tensor]]:
    """log p (V) of one row z, and the gradient of -log p_t, given t: `PerturbMax`'s integrals by fine
    trapezoids over the logits as they are, in float64."""
    z, step = z.double() - z.max().double(), 1 / 12
    y = torch.arange(-12, 9, step, dtype=torch.float64)[:, None]
    log_F = torch.special.log_ndtr(y - z)
    log_G, log_h = log_F.sum(1, keepdim=True), -(y - z).square() / 2 - math.log(2 * math.pi) / 2 - log_F

    def gradient(token):
        grad = (log_G[:, 0] + log_h[:, token]).softmax(0) @ log_h.exp()
        grad[token] -= grad.sum()
        return grad

    return (log_G + log_h).logsumexp(0) + math.log(step), gradient


ROWS = ["ties", "ties between bins", "flat", "wide", "peaked", "spread of 1e4"]


@pytest.mark.parametrize("vocab, row", [*product((2, 4096), ROWS), (50257, "ties"), (50257, "wide")])
def test_normal_perturb_max_is_its_integral(vocab, row):
    """In float32. The targets: a token drawn from p, and the least probable of those with p > 1e-20."""
    torch.manual_seed(0)
    top, noise = F.one_hot(torch.tensor(1), vocab), torch.randn(vocab)
    z = {
        "ties": torch.zeros(vocab),
        "ties between bins": top / 64 - 1e-6,
        "flat": 0.01 * noise,
        "wide": 3 * noise,
        "peaked": noise + 9 * top,
        "spread of 1e4": 1e4 * (torch.rand(vocab) - top),
    }[row]
    head, (want, gradient) = HEADS["perturb_max"](vocab, "normal"), normal_perturb_max(z)
    lp, likely = head.log_probs(z[None])[0], want > math.log(1e-20)
    # float32's sum over the vocabulary is torch's, and as good as this CPU's: what torch itself loses of
    # these log p is granted, too
    tolerance = 3e-5 + (want.float().log_softmax(0).double() - want)[likely].abs().max().item()
    torch.testing.assert_close(lp[likely].double(), want[likely], rtol=0, atol=tolerance)
    assert (
        lp.isfinite().all()
        and lp.double().exp().sum().item() == pytest.approx(1, abs=tolerance)
        and (lp[~likely] < math.log(2e-20)).all()
    )
    for token in ((z + torch.randn(vocab)).argmax(), want.masked_fill(~likely, math.inf).argmin()):
        x = z[None].clone().requires_grad_()
        loss = head.loss(x, Targets.single(token))
        (grad,) = torch.autograd.grad(loss.sum(), x)
        exact = gradient(token)
        assert loss.item() == pytest.approx(-want[token].item(), rel=1e-5, abs=1e-7)
        assert (
            grad[0] - exact
        ).norm() <= 1e-4 * exact.norm() + 1e-12 and grad.sum().abs() <= 1e-6 * exact.norm() + 1e-12


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
    oh = output_head("softmax", {}, bayesian=True)
    q = torch.distributions.Normal(oh.projection.weight, oh.projection.bayes.weight_log_sigma.exp())
    want = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 0.02)).sum()
    torch.testing.assert_close(oh.projection.kl(), want, rtol=1e-4, atol=0)


def test_bayesian_mean_is_the_embedding():
    weight = nn.Parameter(torch.randn(64, C))
    oh = make_head("softmax", V, weight, bayesian=True)
    assert oh.projection.bayes.weight_mu is weight and sum(p is weight for p in oh.parameters()) == 1
    assert sum(p.numel() for p in oh.parameters()) == 2 * 64 * C


def test_predictive_is_the_mean_of_probabilities():
    oh, hidden = output_head("sigmoid", {}, bayesian=True), torch.randn(5, C)
    oh.projection.bayes.weight_log_sigma.data.fill_(0.0)
    draws = oh.draws(6, seed=1)
    each = torch.stack([oh.log_probs(hidden, [d]) for d in draws])
    torch.testing.assert_close(oh.log_probs(hidden, draws).exp(), each.exp().mean(0))
    assert len({d.weight.sum().item() for d in draws}) == 6  # different draws
    assert all(
        torch.equal(a.weight, b.weight) for a, b in zip(draws, oh.draws(6, seed=1))
    )  # of the seed alone


# -----------------------------------------------------------------------------
# Adding a head; mistakes


def test_a_head_with_parameters_of_its_own_is_trained():
    class Scaled(Head):
        def __init__(self, vocab_size):
            super().__init__(vocab_size)
            self.log_scale = nn.Parameter(torch.tensor(0.3))

        def loss(self, z, targets):
            return F.cross_entropy(z * self.log_scale.exp(), targets.token, reduction="none")

    head, weight, hidden, targets = (
        Scaled(V),
        nn.Parameter(torch.randn(64, C)),
        torch.randn(10, C),
        random_targets(10),
    )
    p = Projection(weight, V, None)
    chunked_loss(hidden, p.draw(), head, targets, 3).backward()
    chunked = head.log_scale.grad.clone()
    head.log_scale.grad = None
    head.loss(project(hidden, p.draw(), head), targets).sum().backward()
    torch.testing.assert_close(chunked, head.log_scale.grad)


def test_one_backward_only():
    loss = chunked_loss(
        torch.randn(4, C, requires_grad=True),
        Projection(nn.Parameter(torch.zeros(64, C)), V, None).draw(),
        HEADS["softmax"](V),
        random_targets(4),
    )
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
        ("gs_softmax_f1", {"alpha": -1.0}, "alpha"),
        *(("taylor", {"n": n}, "n = ") for n in (1, 3, 4.0, 9, 12)),  # f_n of an odd n has a root
        ("taylor_inf", {"n": 3}, "n = 3"),
        ("taylor_inf", {"published": "false"}, "published"),
        ("sm_taylor", {"n": 3}, "n = 3"),
        ("sm_softmax", {"m": -1.0}, "m = "),
        ("sm_softmax", {"m": True}, "m = "),
        ("am_softmax", {"m": -0.1}, "m = "),
        ("sparse_softmax", {"top_k": 5, "top_p": 0.5}, "top_k = 5, top_p = 0.5"),
        ("sparse_softmax", {"top_p": 1.5}, "top_p"),
        ("sparse_softmax", {"top_k": 2.5}, "top_k"),
        ("entmax", {"alpha": 1.0}, "alpha"),
        ("entmax", {"alpha": 2.5}, "alpha"),
        ("perturb_max", {"noise": "cauchy"}, "noise"),
        ("stop_gradient", {"of": "tailor"}, "tailor"),
        ("stop_gradient", {"of": "sparse_softmax", "of_args": {"top_k": 2.5}}, "top_k"),
        ("stop_gradient", {"of": "stop_gradient"}, "of = "),
        ("stop_gradient", {"of": "entmax", "of_args": 5}, "of_args"),
    ],
)
def test_wrong_arguments_are_named(name, args, key):
    with pytest.raises(ValueError, match=key):
        make_head(name, V, nn.Parameter(torch.zeros(64, C)), args)


def test_rows_must_agree():
    with pytest.raises(ValueError, match="3 rows of targets for 4 rows"):
        chunked_loss(
            torch.zeros(4, C),
            Projection(nn.Parameter(torch.zeros(64, C)), V, None).draw(),
            HEADS["softmax"](V),
            random_targets(3),
        )
