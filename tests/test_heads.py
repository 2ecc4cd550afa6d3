"""What holds for every head in HEADS, then what holds for some."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heads import HEADS, Head, OutputHead, Projection, Targets, chunked_loss, make_head, project

V, C, K = 31, 7, 4  # odd on purpose; the embedding has 64 rows
# every head as it is by default, and with arguments that take its other branches
VARIANTS = [(name, {}) for name in HEADS] + [("label_smoothing", {"eps": 0.3}), ("gs_softmax_f1", {"alpha": 7.0}), ("gs_softmax_f2", {"alpha": 0.1}),
                                             ("sigmoid", {"pos_weight": 20.0}), ("sigmoid", {"sum_weight": 2.0}), ("sigmoid", {"pos_weight": 3.0, "sum_weight": 0.5})]
heads = pytest.mark.parametrize("name, args", VARIANTS, ids=[n + "".join(f",{k}={v}" for k, v in a.items()) for n, a in VARIANTS])


def random_targets(n: int, vocab: int = V, seed: int = 0) -> Targets:
    """Soft multi-label targets: distinct ids in a row, some of them padding."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.stack([torch.randperm(vocab, generator=g)[:K] for _ in range(n)])
    values = torch.rand(n, K, generator=g)
    values[:, 0] = 1
    drop = torch.rand(n, K, generator=g) < 0.3
    drop[:, 0] = False
    return Targets(ids.masked_fill(drop, -1), values.masked_fill(drop, 0))


def output_head(name: str, args: dict, bayesian: bool = False, seed: int = 0, dtype=torch.float32) -> OutputHead:
    torch.manual_seed(seed)
    return make_head(name, V, nn.Parameter(torch.randn(64, C)), args, bayesian).to(dtype)


# -----------------------------------------------------------------------------
# Every head

@heads
def test_gradcheck(name, args):
    head, targets = HEADS[name](V, **args).double(), random_targets(5)
    z = (3 * torch.randn(5, V, dtype=torch.float64, generator=torch.Generator().manual_seed(1))).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: head.loss(z, targets), (z,))


@heads
def test_log_probs_sum_to_one(name, args):
    z = 5 * torch.randn(50, V)
    assert torch.allclose(HEADS[name](V, **args).log_probs(z).exp().sum(1), torch.ones(50), atol=1e-5)


@heads
@pytest.mark.parametrize("chunk", [1, 3, 10, 1000])
@pytest.mark.parametrize("bayesian", [False, True], ids=["point", "bayesian"])
def test_chunked_equals_unchunked(name, args, chunk, bayesian):
    """Value and every gradient, in float64, rows not a multiple of the chunk."""
    n, grads, values = 10, [], []
    targets = random_targets(n)
    for chunked in (True, False):
        oh = output_head(name, args, bayesian, dtype=torch.float64)
        hidden = torch.randn(n, C, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
        weights = oh.projection.draw(torch.Generator().manual_seed(4))
        if chunked:
            loss = chunked_loss(hidden, weights, oh.head, targets, chunk)
        else:
            logits = (hidden @ weights.weight.t())[:, :V] + (0 if weights.bias is None else weights.bias)
            loss = oh.head.loss(logits, targets).sum()
        (loss * 0.7).backward()
        values.append(loss.item())
        grads.append([hidden.grad, *(p.grad for p in oh.parameters())])
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@heads
def test_only_some_inputs_need_gradients(name, args):
    """A frozen projection still gives the hidden states their gradient, and the loss alone needs none."""
    oh, targets = output_head(name, args).requires_grad_(False), random_targets(4)
    hidden = torch.randn(4, C, requires_grad=True)
    chunked_loss(hidden, oh.projection.draw(), oh.head, targets, 3).backward()
    reference = hidden.detach().clone().requires_grad_()
    oh.head.loss(project(reference, oh.projection.draw(), V), targets).sum().backward()
    torch.testing.assert_close(hidden.grad, reference.grad)
    assert not chunked_loss(hidden.detach(), oh.projection.draw(), oh.head, targets, 3).requires_grad


@heads
@pytest.mark.parametrize("scale", [1e4, -1e4, 0.0])
def test_extreme_logits_stay_finite(name, args, scale):
    head, targets = HEADS[name](V, **args), random_targets(8)
    z = torch.zeros(8, V)
    z[torch.arange(8), torch.arange(8)] = scale
    z.requires_grad_()
    loss = head.loss(z, targets)
    loss.sum().backward()
    assert loss.isfinite().all() and z.grad.isfinite().all()
    lp = head.log_probs(z.detach())
    assert not lp.isnan().any() and torch.allclose(lp.exp().sum(1), torch.ones(8), atol=1e-5)


@heads
def test_ties_share_alike(name, args):
    lp = HEADS[name](V, **args).log_probs(torch.full((2, V), -3.0))
    assert torch.allclose(lp, torch.full((2, V), -math.log(V)), atol=1e-5)


@heads
def test_padded_vocabulary_has_no_probability(name, args):
    """Rows of the embedding beyond V change neither loss nor probabilities, and get no gradient."""
    oh, targets, hidden = output_head(name, args), random_targets(6), torch.randn(6, C)
    with torch.no_grad():
        before = oh.log_probs(hidden, oh.draws(1, 0)), chunked_loss(hidden, oh.projection.draw(), oh.head, targets)
        oh.projection.weight[V:] += 100
        after = oh.log_probs(hidden, oh.draws(1, 0)), chunked_loss(hidden, oh.projection.draw(), oh.head, targets)
    assert before[0].shape == (6, V) and torch.equal(before[0], after[0]) and torch.equal(before[1], after[1])
    chunked_loss(hidden, oh.projection.draw(), oh.head, targets).backward()
    assert oh.projection.weight.grad[:V].abs().sum() > 0 and not oh.projection.weight.grad[V:].any()


@heads
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_as_good_as_plain_pytorch(name, args, dtype):
    """Chunked under autocast against float32: at most plain PyTorch's own error at that dtype, plus a tenth of it and 1e-3 (relative)."""
    torch.manual_seed(5)
    hidden, weight, targets = torch.randn(64, C), torch.randn(64, C), random_targets(64)
    def run(mode):
        oh = make_head(name, V, nn.Parameter(weight.clone()), args)
        h = hidden.clone().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=mode != "float32"):
            if mode == "chunked":
                loss = chunked_loss(h, oh.projection.draw(), oh.head, targets, 16)
            else:
                z = F.linear(h, oh.projection.weight)[:, :V].float()
                loss = oh.head.loss(z if oh.projection.bias is None else z + oh.projection.bias, targets).sum()
        loss.backward()
        return [loss.detach(), h.grad, *(p.grad for p in oh.parameters())]
    exact, plain, ours = run("float32"), run("plain"), run("chunked")
    for e, p, o in zip(exact, plain, ours):
        assert (o - e).norm() <= 1.1 * (p - e).norm() + 1e-3 * e.norm()


@heads
def test_bf16_logits_are_accepted(name, args):
    head, targets = HEADS[name](V, **args), random_targets(8)
    z = (4 * torch.randn(8, V)).bfloat16().float()
    assert torch.isfinite(head.loss(z, targets)).all() and torch.allclose(head.log_probs(z).exp().sum(1), torch.ones(8), atol=1e-5)


@heads
def test_sampling_frequencies_match_log_probs(name, args):
    """Chi-square of 20,000 draws, through the code that samples; the threshold is the 1 - 1e-6 quantile of 30 degrees of freedom."""
    from sample import truncate
    lp = HEADS[name](V, **args).log_probs(torch.randn(1, V, generator=torch.Generator().manual_seed(6)))
    n, p = 20_000, lp.exp()[0].double()
    drawn = torch.multinomial(truncate(lp)[0], n, replacement=True, generator=torch.Generator().manual_seed(7)).bincount(minlength=V)
    assert ((drawn - n * p).square() / (n * p)).sum() < 82


@heads
def test_temperature_is_a_power_of_p(name, args):
    from sample import truncate
    lp = HEADS[name](V, **args).log_probs(2 * torch.randn(3, V))
    q = lp.exp() ** (1 / 0.7)
    torch.testing.assert_close(truncate(lp, 0.7), q / q.sum(1, keepdim=True), rtol=1e-4, atol=1e-7)


@heads
def test_the_true_token_alone_is_learned(name, args):
    """Gradient descent on the logits drives p towards the data: a head whose loss and log_probs disagreed would not get there."""
    head, data = HEADS[name](V, **args), torch.tensor([0] * 6 + [1] * 3 + [2])
    z = torch.full((1, V), head.bias or 0.0, requires_grad=True)
    opt = torch.optim.Adam([z], lr=0.05)
    for _ in range(600):
        opt.zero_grad()
        head.loss(z.expand(10, V), Targets.single(data)).mean().backward()
        opt.step()
    p = head.log_probs(z.detach()).exp()[0]
    assert p[0] > p[1] > p[2] > p[3:].max()
    if not args and name != "label_smoothing":
        assert torch.allclose(p[:3], torch.tensor([0.6, 0.3, 0.1]), atol=0.02)


# -----------------------------------------------------------------------------
# Known closed forms and libraries

def test_softmax_is_cross_entropy():
    z, t = torch.randn(9, V), torch.randint(V, (9,))
    torch.testing.assert_close(HEADS["softmax"](V).loss(z, Targets.single(t)), F.cross_entropy(z, t, reduction="none"))


def test_label_smoothing_is_eq_1():
    """Against dense targets, and against torch, whose eps spreads over all V: eps_torch = eps V / (V - 1)."""
    z, t, eps = torch.randn(9, V), torch.randint(V, (9,)), 0.1
    y = torch.full((9, V), eps / (V - 1)).scatter(1, t[:, None], 1 - eps)
    loss = HEADS["label_smoothing"](V, eps).loss(z, Targets.single(t))
    torch.testing.assert_close(loss, -(y * F.log_softmax(z, 1)).sum(1))
    torch.testing.assert_close(loss, F.cross_entropy(z, t, reduction="none", label_smoothing=eps * V / (V - 1)))


@pytest.mark.parametrize("w, lam", [(1.0, 0.0), (20.0, 0.0), (1.0, 2.0)])
def test_sigmoid_is_binary_cross_entropy(w, lam):
    """Sparse labels against torch's dense ones; the sum regulariser is on probabilities."""
    z, targets = 3 * torch.randn(9, V), random_targets(9)
    y = torch.zeros(9, V + 1).scatter(1, targets.ids.where(targets.ids >= 0, torch.tensor(V)), targets.values)[:, :V]
    want = F.binary_cross_entropy_with_logits(z, y, reduction="none", pos_weight=torch.full((V,), w)).sum(1) + lam * (z.sigmoid().sum(1) - 1) ** 2
    torch.testing.assert_close(HEADS["sigmoid"](V, w, lam).loss(z, targets), want)


@pytest.mark.parametrize("name, link", [("sigmoid", torch.sigmoid), ("gs_softmax_f1", torch.sigmoid), ("gs_softmax_f2", lambda z: torch.where(z < 0, z.exp(), 1 + z))])
def test_link_heads_normalise_their_link(name, link):
    z = 2 * torch.randn(9, V)
    torch.testing.assert_close(HEADS[name](V).log_probs(z).exp(), link(z) / link(z).sum(1, keepdim=True))


@pytest.mark.parametrize("name", ["gs_softmax_f1", "gs_softmax_f2"])
def test_the_range_factor_cancels(name):
    """GS-Softmax, table 4: alpha F / sum alpha F = F / sum F, so as written alpha changes nothing."""
    z, targets = torch.randn(9, V, dtype=torch.float64), random_targets(9)
    one, ten = HEADS[name](V), HEADS[name](V, alpha=10.0)
    torch.testing.assert_close(one.log_probs(z), ten.log_probs(z))
    torch.testing.assert_close(one.loss(z, targets), ten.loss(z, targets))


@pytest.mark.parametrize("name", [n for n in HEADS if HEADS[n](V).bias is not None])
def test_prior_bias_starts_the_sum_at_one(name):
    head = HEADS[name](V)
    link = {"sigmoid": torch.sigmoid, "gs_softmax_f1": torch.sigmoid, "gs_softmax_f2": lambda z: head.link(z).exp()}[name]
    assert link(torch.full((V,), head.bias)).sum().item() == pytest.approx(1, rel=0.05)
    assert make_head(name, V, nn.Parameter(torch.zeros(64, C))).projection.bias.eq(head.bias).all()


def test_f2_has_slope_one_where_its_branches_meet():
    z = torch.tensor([[0.0, -1e-30, 1e-30]], requires_grad=True)
    HEADS["gs_softmax_f2"](3).link(z).sum().backward()
    assert z.grad.tolist() == [[1.0, 1.0, 1.0]]


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
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(draws, oh.draws(6, seed=1)))  # of the seed alone


# -----------------------------------------------------------------------------
# Adding a head; mistakes

def test_a_head_with_parameters_of_its_own_is_trained():
    class Scaled(Head):
        def __init__(self, vocab_size):
            super().__init__(vocab_size)
            self.log_scale = nn.Parameter(torch.tensor(0.3))

        def loss(self, z, targets):
            return F.cross_entropy(z * self.log_scale.exp(), targets.token, reduction="none")

    head, weight, hidden, targets = Scaled(V), nn.Parameter(torch.randn(64, C)), torch.randn(10, C), random_targets(10)
    p = Projection(weight, V, None)
    chunked_loss(hidden, p.draw(), head, targets, 3).backward()
    chunked = head.log_scale.grad.clone()
    head.log_scale.grad = None
    head.loss(project(hidden, p.draw(), V), targets).sum().backward()
    torch.testing.assert_close(chunked, head.log_scale.grad)


def test_one_backward_only():
    loss = chunked_loss(torch.randn(4, C, requires_grad=True), Projection(nn.Parameter(torch.zeros(64, C)), V, None).draw(), HEADS["softmax"](V), random_targets(4))
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward only"):
        loss.backward()


@pytest.mark.parametrize("name, args, says", [
    ("sofmax", {}, "sofmax.*known: softmax"), ("label_smoothing", {"eps": 1.0}, "eps = 1.0"), ("label_smoothing", {"epsilon": 0.1}, "epsilon"),
    ("sigmoid", {"pos_weight": 0.0}, "pos_weight = 0.0"), ("sigmoid", {"sum_weight": -1.0}, "sum_weight = -1.0"), ("gs_softmax_f1", {"alpha": -1.0}, "alpha = -1.0")])
def test_wrong_arguments_are_named(name, args, says):
    with pytest.raises(ValueError, match=says):
        make_head(name, V, nn.Parameter(torch.zeros(64, C)), args)


def test_rows_must_agree():
    with pytest.raises(ValueError, match="3 rows of targets for 4 rows"):
        chunked_loss(torch.zeros(4, C), Projection(nn.Parameter(torch.zeros(64, C)), V, None).draw(), HEADS["softmax"](V), random_targets(3))
