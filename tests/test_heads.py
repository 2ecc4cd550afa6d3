"""What holds for every head in HEADS, then what holds for some."""

import math
from collections.abc import Callable
from itertools import permutations, product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from heads import HEADS, Entmax, Head, OutputHead, Projection, Targets, chunked_loss, make_head, project
from heads.output import sizes

V, C, K = 31, 7, 4  # odd on purpose; the embedding has 64 rows
# every head as it is by default, and with arguments that take its other branches
VARIANTS = [(name, {}) for name in HEADS] + [
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
    ("confidence_penalty", {"beta": 0.5}),
    ("softcap", {"cap": 12.0}),
    ("sigmoid_cap", {"cap": 30.0, "shift": 0.0}),
    ("power_loss", {"alpha": 0.2}),
    ("z_loss", {"alpha": 0.1}),
    ("unlikelihood", {"alpha": 0.3}),
    ("stop_gradient", {"of": "entmax15"}),
    ("stop_gradient", {"of": "am_softmax"}),
]


def ids(variants: list[tuple[str, dict]]) -> list[str]:
    return [name + "".join(f",{k}={v}" for k, v in args.items()) for name, args in variants]


heads = pytest.mark.parametrize("name, args", VARIANTS, ids=ids(VARIANTS))


# their gradient is by definition not that of the loss they report, but p - onehot
OWN_GRADIENT = ("taylor_inf", "stop_gradient")
# the minimum of their loss is by design not the data's distribution
NOT_PROPER = (
    "label_smoothing",
    "sm_softmax",
    "sm_taylor",
    "am_softmax",
    "confidence_penalty",
    "smooth_accuracy",
    "power_loss",
)


def random_targets(n: int, vocab: int = V, seed: int = 0, name: str = "") -> Targets:
    """Soft multi-label targets: distinct ids in a row, some of them padding; tokens to avoid for the head
    that takes those."""
    g = torch.Generator().manual_seed(seed)
    ids = (
        torch.stack([torch.randperm(vocab, generator=g)[:K] for _ in range(n)])
        if n
        else torch.empty(0, K, dtype=torch.long)
    )
    values = torch.rand(n, K, generator=g)
    values[:, 0] = 1
    drop = torch.rand(n, K, generator=g) < 0.3
    drop[:, 0] = False
    if name == "unlikelihood":
        values[:, 1:] = -1
    return Targets(ids.masked_fill(drop, -1), values.masked_fill(drop, 0))


def output_head(
    name: str, args: dict, bayesian: bool = False, seed: int = 0, dtype=torch.float32
) -> OutputHead:
    torch.manual_seed(seed)
    return make_head(name, V, nn.Parameter(torch.randn(64, C)), args, bayesian).to(dtype)


def gradients(hidden: torch.Tensor, oh: OutputHead) -> list[torch.Tensor]:
    """Those of the hidden states and of all parameters; 0 for what a loss does not touch."""
    return [hidden.grad, *(torch.zeros_like(p) if p.grad is None else p.grad for p in oh.parameters())]


# -----------------------------------------------------------------------------
# Every head


@heads
def test_gradcheck(name, args):
    head, targets = HEADS[name](V, **args).double(), random_targets(3, name=name)
    z = 3 * torch.randn(3, V, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    z.requires_grad_()
    if name not in OWN_GRADIENT:
        assert torch.autograd.gradcheck(lambda z: head.loss(z, targets), (z,))
        return
    head.loss(z, targets).sum().backward()
    intended = head.log_probs(z).exp() - F.one_hot(targets.token, V)
    if name == "taylor_inf":  # turned where the polynomial falls
        falls = sum(z**i / math.factorial(i) for i in range(head.n)) < 0
        intended = intended * torch.where(falls & (not args.get("published")), -1, 1)
    torch.testing.assert_close(z.grad, intended)
    assert not torch.autograd.gradcheck(lambda z: head.loss(z, targets), (z,), raise_exception=False)


@heads
def test_log_probs_sum_to_one(name, args):
    z = 5 * torch.randn(50, V)
    assert torch.allclose(HEADS[name](V, **args).log_probs(z).exp().sum(1), torch.ones(50), atol=1e-5)


@heads
@pytest.mark.parametrize("chunk, bayesian", [(3, False), (1000, True)], ids=["point", "bayesian"])
def test_chunked_equals_unchunked(name, args, chunk, bayesian):
    """Value and every gradient, in float64, rows not a multiple of the chunk."""
    n, grads, values = 10, [], []
    targets = random_targets(n, name=name)
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


@pytest.mark.parametrize("name", ["softmax", "z_loss"], ids=["closed form", "autograd"])
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


CLOSED_FORMS = [(name, args) for name, args in VARIANTS if HEADS[name].gradient]


@pytest.mark.parametrize("scale, shift", [(2, 0), (30, 0), (3, -500), (3, 500), (1e4, 0), (0, 0)])
@pytest.mark.parametrize("name, args", CLOSED_FORMS, ids=ids(CLOSED_FORMS))
def test_a_closed_form_is_the_loss(name, args, scale, shift):
    """Value and gradient, for ordinary logits and where the short way's sums would vanish."""
    head, targets = HEADS[name](V, **args), random_targets(9, name=name)
    z = scale * torch.randn(9, V, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + shift
    x = z.clone().requires_grad_()
    loss = head.loss(x, targets)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    ours, gradient, at_ids = head.gradient(z, targets)
    for k in reversed(range(at_ids.shape[1])):
        rows = (targets.ids[:, k] >= 0).nonzero()[:, 0]
        gradient[rows, targets.ids[rows, k]] = at_ids[rows, k]
    torch.testing.assert_close(ours, loss.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(gradient, grad, rtol=1e-8, atol=1e-10)


def test_heads_of_the_speed_table_have_a_closed_form():
    """Without one the loss is right, too, and half as fast on a CPU: these heads are README's speed."""
    table = {"softmax", "label_smoothing", "sigmoid", "gs_softmax_f1", "gs_softmax_f2", "sigsoftmax"}
    slowest = {"taylor", "sparsemax", "entmax15", "entmax", "perturb_max"}
    assert {name for name, _ in CLOSED_FORMS} >= table | slowest | {"sm_softmax", "am_softmax"}


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


@pytest.mark.parametrize("name", ["softmax", "z_loss"], ids=["closed form", "autograd"])
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


@heads
@pytest.mark.parametrize("scale", [1e4, -1e4, 0.0])
def test_extreme_logits_stay_finite(name, args, scale):
    """At scale 0 all tokens tie."""
    head, targets = HEADS[name](V, **args), random_targets(8, name=name)
    z = torch.zeros(8, V)
    z[torch.arange(8), torch.arange(8)] = scale
    z.requires_grad_()
    loss = head.loss(z, targets)
    loss.sum().backward()
    assert loss.isfinite().all() and z.grad.isfinite().all()
    lp = head.log_probs(z.detach())
    assert not lp.isnan().any() and torch.allclose(lp.exp().sum(1), torch.ones(8), atol=1e-5)
    assert head.sparse or lp.isfinite().all()
    assert scale or torch.allclose(lp, torch.tensor(-math.log(V)), atol=1e-5)
    if isinstance(head, Entmax) and scale > 0:
        assert (lp == -math.inf).sum() == 8 * (V - 1)


@heads
def test_padded_vocabulary_has_no_probability(name, args):
    """Rows of the embedding beyond V change neither loss nor probabilities, and get no gradient."""
    oh, targets, hidden = output_head(name, args), random_targets(6, name=name), torch.randn(6, C)
    scores = lambda: (oh.log_probs(hidden, oh.draws(1, 0)), oh.loss(hidden, targets)[0])
    before = scores()
    with torch.no_grad():
        oh.projection.weight[V:] += 100
    log_p, loss = scores()
    assert log_p.shape == (6, V) and torch.equal(before[0], log_p) and torch.equal(before[1], loss)
    loss.backward()
    assert oh.projection.weight.grad[:V].abs().sum() > 0 and not oh.projection.weight.grad[V:].any()


@heads
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_as_good_as_plain_pytorch(name, args, dtype):
    """Chunked under autocast against float32: at most plain PyTorch's own error at that dtype, plus a tenth
    of it and 1e-3 (relative); twice it where small distances make either error a matter of chance."""
    torch.manual_seed(5)
    hidden, weight, targets = torch.randn(64, C), torch.randn(64, C), random_targets(64, name=name)

    def run(mode):
        oh = make_head(name, V, nn.Parameter(weight.clone()), args)
        h = hidden.clone().requires_grad_()
        with torch.autocast("cpu", dtype, enabled=mode != "float32"):
            if mode == "chunked":
                loss = chunked_loss(h, oh.projection.draw(), oh.head, targets, 16)
            else:
                loss = oh.head.loss(project(h, oh.projection.draw(), oh.head), targets).sum()
        loss.backward()
        return [loss.detach(), *gradients(h, oh)]

    exact, plain, ours = run("float32"), run("plain"), run("chunked")
    times = 2 if name == "harmonic" else 1.1
    for e, p, o in zip(exact, plain, ours):
        assert (o - e).norm() <= times * (p - e).norm() + 1e-3 * e.norm()


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


@heads
def test_float32_is_enough_for_a_real_vocabulary(name, args):
    """At V = 50,257 float32's loss, gradient and distribution are those of float64."""
    vocab, n = 50257, 3
    head, targets = HEADS[name](vocab, **args), random_targets(n, vocab, name=name)
    z, out = 2 * torch.randn(n, vocab, generator=torch.Generator().manual_seed(2)), []
    for dtype in (torch.float32, torch.float64):
        head, x = head.to(dtype), z.to(dtype, copy=True).requires_grad_()
        loss = head.loss(x, Targets(targets.ids, targets.values.to(dtype)))
        loss.sum().backward()
        out.append([t.double() for t in (loss.detach(), x.grad, head.log_probs(x.detach()).exp())])
    (loss, grad, p), (loss64, grad64, p64) = out
    assert torch.allclose(loss, loss64, rtol=1e-5, atol=1e-5)
    assert ((grad - grad64).norm(dim=1) <= 3e-4 * grad64.norm(dim=1)).all() and (
        (p - p64).abs().sum(1) < 1e-4
    ).all()


@heads
def test_bf16_hidden_states_and_weights(name, args):
    """Of small integers, whose products bf16 holds exactly: so the rest has to be as good as in float32."""
    g = torch.Generator().manual_seed(8)
    hidden = torch.randint(-2, 3, (40, C), generator=g).float()
    oh = output_head(name, args)
    oh.projection.weight.data = torch.randint(-2, 3, (64, C), generator=g).float() / 2
    targets, results = random_targets(40, name=name), []
    for dtype in (torch.float32, torch.bfloat16):
        oh.zero_grad()
        h = hidden.to(dtype, copy=True).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss, count = oh.loss(h, targets)
            lp = oh.log_probs(h.detach(), oh.draws(1, 0, dtype))
        loss.backward()
        assert loss.dtype == lp.dtype == torch.float32 and h.grad.dtype == dtype and count == 40
        results.append((loss.detach(), lp.exp(), h.grad.float(), oh.projection.weight.grad))
    (loss, p, *grads), (low_loss, low_p, *low_grads) = results
    # what is rounded: the gradients of logits and hidden states and, for cosines, the vectors of length 1
    exact = 2e-2 if oh.head.cosine else 1e-5
    torch.testing.assert_close(low_loss, loss, rtol=exact, atol=0)
    torch.testing.assert_close(low_p, p, rtol=10 * exact, atol=exact)
    for grad, low in zip(grads, low_grads):
        assert grad.norm() > 0 and (low - grad).norm() <= 2e-2 * grad.norm()


@heads
def test_sampling_frequencies_match_log_probs(name, args):
    """Chi-square of 5,000 texts of one token, by `generate`; the threshold is the 1 - 1e-6 quantile at 30
    degrees of freedom."""
    from evaluation.sampling import generate
    from model import GPT, GPTConfig, LanguageModel

    torch.manual_seed(6)
    trunk = GPT(GPTConfig(V, 4, 1, 1, 8))
    trunk.wte.weight.data.normal_(std=0.5)
    model = LanguageModel(trunk, make_head(name, V, trunk.wte.weight, args)).eval()
    draws, n = model.head.draws(1, 0), 5000
    prompt = torch.ones(n, 1, dtype=torch.long)
    ((token, hidden),) = generate(model, prompt, 1, draws, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        p = model.head.log_probs(hidden[:1], draws).exp()[0].double()
    assert p.max() > 1.5 / V  # not flat
    drawn = token.bincount(minlength=V)
    assert not drawn[p == 0].any()
    drawn, p = drawn[p > 0], p[p > 0]
    assert ((drawn - n * p).square() / (n * p)).sum() < 82


DATA = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)  # how often the tokens 0, 1 and 2 come


def learned(head: Head) -> torch.Tensor:
    """p (V,) where free logits come to rest under the gradient of DATA's mean loss.

    Rprop uses the gradient's signs alone and lengthens its steps while they stay. So the result is what a
    head is trained towards; how fast it would get there, a matter of its slope, plays no part.
    """
    head = head.double()
    z = torch.full((1, V), head.bias or 0.0, dtype=torch.float64, requires_grad=True)
    opt = torch.optim.Rprop([z], lr=0.1, step_sizes=(1e-12, 100.0))
    for _ in range(150):
        opt.zero_grad()
        (DATA @ head.loss(z.expand(3, V), Targets.single(torch.arange(3)))).backward()
        opt.step()
    return head.log_probs(z.detach()).exp()[0]


@heads
def test_the_true_token_alone_is_learned(name, args):
    """Training the logits ends at the data's distribution: a head whose loss and log_probs disagreed would
    have another."""
    check_learned(name, args, learned(HEADS[name](V, **args)))


class Asinh(HEADS["softmax"]):
    """A correct head that is slow: its logits have to grow to V / 2 and more."""

    def link(self, z):
        return z.asinh()


class AsinhWrong(Asinh):
    """Scored by another link than it is trained with."""

    def log_probs(self, z):
        return F.log_softmax(z / 2, -1)


def test_a_slow_head_is_right_and_a_wrong_one_is_not():
    check_learned("asinh", {}, learned(Asinh(V)))
    with pytest.raises(AssertionError):
        check_learned("asinh", {}, learned(AsinhWrong(V)))


def check_learned(name: str, args: dict, p: torch.Tensor) -> None:
    if args.get("published"):  # ill-posed, as its docstring says
        assert p[0] < 0.1
        return
    assert p.argmax() == 0
    if name == "smooth_accuracy":  # its minimum is the most probable token alone
        assert p[0] > 0.95
    else:
        assert p[0] > p[1] > p[2] > p[3:].max()
    if name not in NOT_PROPER and not (name == "sigmoid" and args):
        torch.testing.assert_close(p[:3], DATA, atol=0.01, rtol=0)


# -----------------------------------------------------------------------------
# Known closed forms and libraries


def dense(targets: Targets) -> torch.Tensor:
    """The sparse labels as (N, V); values below 0, the tokens to avoid, as they are."""
    y = torch.zeros(len(targets.ids), V + 1, dtype=torch.float64)
    ids = targets.ids.where(targets.ids >= 0, torch.tensor(V))  # column V takes the padding
    return y.scatter(1, ids, targets.values.double())[:, :V]


def normalised(f: torch.Tensor) -> torch.Tensor:
    return f / f.sum(1, keepdim=True)


def polynomial(z: torch.Tensor, n: int) -> torch.Tensor:
    """f_n(s z) with the scale that the Taylor heads start with."""
    return sum(z**i / math.factorial(i) for i in range(n + 1))


def perturbed(z: torch.Tensor, noise: str) -> torch.Tensor:
    """P[argmax_j (z_j + eps_j) = i] (N, V): the integral of F'(y - z_i) prod_{j != i} F(y - z_j), by
    Simpson's rule."""
    if noise == "gumbel":
        return z.softmax(1)
    if noise == "normal":
        F_, density = torch.special.ndtr, lambda x: (-x.square() / 2).exp() / math.sqrt(2 * math.pi)
        y = torch.linspace(-12, 12, 1201, dtype=z.dtype)
    else:
        F_, density = lambda x: -torch.expm1(-x), lambda x: (-x).exp()
        y = torch.linspace(0, 40, 4001, dtype=z.dtype)
    weights = torch.ones_like(y)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    weights *= (y[1] - y[0]) / 3
    rows = []
    for row in z - z.amax(1, keepdim=True):  # exponential noise is positive: y begins at the largest
        each = F_(y[:, None] - row)
        before, after = (
            F.pad(x[:, :-1], (1, 0), value=1.0).cumprod(1) for x in (each, each.flip(1))
        )  # the product of the others, without a division by 0
        rows.append(weights @ (density(y[:, None] - row) * before * after.flip(1)))
    return torch.stack(rows)


def library_entmax(z: torch.Tensor, t: torch.Tensor, alpha: float) -> tuple[torch.Tensor, torch.Tensor]:
    import entmax

    return entmax.entmax_bisect_loss(z, t, alpha, 100), entmax.entmax_bisect(z, alpha, n_iter=100)


def plain(name: str, args: dict, z: torch.Tensor, targets: Targets) -> tuple[torch.Tensor, torch.Tensor]:
    """(loss (N,), p (N, V)) of a head at logits z (N, V), as its paper writes it, in plain PyTorch and
    float64."""
    t, onehot = targets.token, F.one_hot(targets.token, V).double()

    def nll(p: torch.Tensor) -> torch.Tensor:
        return -p.gather(1, t[:, None])[:, 0].log()

    softmax = torch.softmax(z, 1)
    categorical = torch.distributions.Categorical(probs=softmax)
    if name in ("softmax", "softmax_bias"):  # the bias is the projection's
        p = softmax
        return nll(p), p
    if name == "label_smoothing":
        eps = args.get("eps", 0.05)
        y = (1 - eps) * onehot + eps / (V - 1) * (1 - onehot)
        return -(y * z.log_softmax(1)).sum(1), softmax
    if name == "sigmoid":
        w, y = torch.tensor(args.get("pos_weight", 1.0)), dense(targets)
        bce = F.binary_cross_entropy_with_logits(z, y, reduction="none", pos_weight=w).sum(1)
        excess = z.sigmoid().sum(1) - 1
        return bce + args.get("sum_weight", 0.0) * excess**2, normalised(z.sigmoid())
    links = {
        "gs_softmax_f1": lambda: z.sigmoid(),
        "gs_softmax_f2": lambda: torch.where(z < 0, z.exp(), 1 + z),
        "sigsoftmax": lambda: z.exp() * z.sigmoid(),
        "sigmoid_cap": lambda: (
            args.get("cap", 23.0) * torch.sigmoid((z + args.get("shift", 5.0)) / 7.5)
        ).exp(),
        "stablemax": lambda: torch.where(z < 0, 1 / (1 - z), 1 + z),
        "harmonic": lambda: (1 - z / 30).clamp(min=1e-4) ** -30.0,  # of cosines z / 30
        "taylor": lambda: polynomial(z, args.get("n", 2)),
        "taylor_inf": lambda: polynomial(z, args.get("n", 2)),
    }
    if name in links:
        p = normalised(links[name]())
        return nll(p), p
    if name in ("sm_softmax", "am_softmax"):  # of any logits; that they are cosines is the projection's
        lowered = z - args.get("m", 0.6) * onehot
        return nll(lowered.softmax(1)), softmax
    if name == "sm_taylor":
        n, m = args.get("n", 2), args.get("m", 0.6)
        lowered = z - m * onehot
        return nll(normalised(polynomial(lowered, n))), normalised(polynomial(z, n))
    if name == "sparse_softmax":
        ordered, order = softmax.sort(1, descending=True)
        first = torch.arange(V) < args.get("top_k", 50)
        if "top_p" in args:
            first = ordered.cumsum(1) - ordered < args["top_p"]
        top = torch.zeros(z.shape, dtype=torch.bool).scatter(1, order, first.expand(z.shape))
        return (z.exp() * top).sum(1).log() - (z * onehot).sum(1), normalised(softmax * top)
    if name in ("sparsemax", "entmax15", "entmax"):
        alpha = {"sparsemax": 2.0, "entmax15": 1.5}.get(name) or args.get("alpha", 1.25)
        return library_entmax(z, t, alpha)
    if name == "perturb_max":
        p = perturbed(z, args.get("noise", "normal"))
        return nll(p), p
    if name == "softcap":
        cap = args.get("cap", 30.0)
        p = (cap * torch.tanh(z / cap)).softmax(1)
        return nll(p), p
    if name == "z_loss":
        return nll(softmax) + args.get("alpha", 1e-4) * z.exp().sum(1).log() ** 2, softmax
    if name == "soft_targets":
        return -(normalised(dense(targets)) * softmax.log()).sum(1), softmax
    if name == "confidence_penalty":
        return -categorical.log_prob(t) - args.get("beta", 0.1) * categorical.entropy(), softmax
    if name == "unlikelihood":
        avoid = dense(targets) < 0
        return nll(softmax) - args.get("alpha", 1.0) * ((1 - softmax).log() * avoid).sum(1), softmax
    if name == "smooth_accuracy":
        return -(softmax * onehot).sum(1), softmax
    p_t = (softmax * onehot).sum(1)
    if name == "power_loss":
        alpha = args.get("alpha", 0.5)
        return (1 - p_t**alpha) / alpha, softmax
    if name == "brier":
        return ((softmax - onehot) ** 2).sum(1), softmax
    if name == "spherical":
        return 1 - p_t / (softmax**2).sum(1).sqrt(), softmax
    if name == "stop_gradient":
        _, p = plain(args.get("of", "softmax"), {}, z, targets)
        return ((p.detach() - onehot) * z).sum(1), p
    pytest.skip(f"write out the formula of {name} in `plain`: nothing else says what it is to be")


@heads
def test_loss_and_distribution_are_the_papers_formulas(name, args):
    """Value, gradient and distribution. taylor_inf's gradient, which is another's, is in test_gradcheck."""
    head = HEADS[name](V, **args).double()
    targets = random_targets(9, name=name)
    z = torch.randn(9, V, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).requires_grad_()
    loss, want = head.loss(z, targets), plain(name, args, z, targets)
    near = dict(rtol=1e-6, atol=1e-8)  # the learned scales are float32 numbers
    if name == "perturb_max":
        near = dict(rtol=1e-4, atol=1e-5)  # its normal noise errs by up to 3e-5 in log p
    torch.testing.assert_close(loss, want[0], **near)
    torch.testing.assert_close(head.log_probs(z).exp(), want[1], **near)
    if name != "taylor_inf":
        ours, theirs = (torch.autograd.grad(l.sum(), z)[0] for l in (loss, want[0]))
        torch.testing.assert_close(ours, theirs, **near)


def test_the_first_sigmoid_cap_is_a_tanh_cap():
    z = 20 * torch.randn(9, V)
    caps = HEADS["sigmoid_cap"](V, cap=30.0, shift=0.0, width=7.5), HEADS["softcap"](V, cap=15.0)
    torch.testing.assert_close(caps[0].log_probs(z), caps[1].log_probs(z))


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


@pytest.mark.parametrize("name", ["taylor", "taylor_inf", "sm_taylor"])
@pytest.mark.parametrize("n", [1, 3, 9])
def test_odd_taylor_orders_are_refused(name, n):
    """f_n of an odd n is negative below its root: it gives no probabilities."""
    assert sum((-10.0) ** i / math.factorial(i) for i in range(n + 1)) < 0
    with pytest.raises(ValueError, match=f"n = {n}: an odd f_n is negative.*even"):
        HEADS[name](V, n=n)


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


def test_harmonic_is_of_distances_on_the_sphere():
    """p ~ |h - w|^-2n of vectors of length 1 with n = gain sqrt(C), inside `stop_gradient`, too."""
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(9, C), nn.Parameter(torch.randn(64, C)), random_targets(9)
    distances = torch.cdist(F.normalize(hidden), F.normalize(weight[:V]))
    want = F.log_softmax(-2 * 1.7 * math.sqrt(C) * distances.log(), 1)
    for name, args in (("harmonic", {}), ("stop_gradient", {"of": "harmonic"})):
        oh = make_head(name, V, weight, args, gain=1.7)
        torch.testing.assert_close(oh.log_probs(hidden, oh.draws(1, 0)), want, rtol=1e-4, atol=1e-4)
        loss = oh.loss(hidden, targets)[0]
        if name == "harmonic":
            torch.testing.assert_close(loss, F.nll_loss(want, targets.token, reduction="sum"))
        with pytest.raises(ValueError, match="is its exponent and cannot be learned"):
            make_head(name, V, weight, args, learn_gain=True)


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
    first guess of 128. At V tokens test_loss_and_distribution_are_the_papers_formulas has it."""
    vocab, t = 3000, torch.arange(7)
    g = torch.Generator().manual_seed(0)
    z = (scale * torch.randn(7, vocab, dtype=torch.float64, generator=g)).requires_grad_()
    head = HEADS[name](vocab, **args)
    ours, p = head.loss(z, Targets.single(t)), head.log_probs(z).exp()
    theirs, want = library_entmax(z, t, alpha)
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


def normal_perturb_max(z: torch.Tensor) -> tuple[torch.Tensor, Callable[[int], torch.Tensor]]:
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


def test_unlikelihood_against_a_loop():
    """Welleck et al. 2019, eq. 5 over the context's distinct tokens without the true one: labels and loss.

    A label is at its distance from the position; of a token that comes again the nearest one counts.
    """
    B, T, alpha = 3, 12, 0.7
    g = torch.Generator().manual_seed(0)
    text = torch.randint(6, (B, T + 1), generator=g)  # few tokens, so that they come again
    x, y, z = text[:, :-1], text[:, 1:], 2 * torch.randn(B * T, V, generator=g)
    p = z.softmax(1)
    for window in (0, 4, 50):
        head = HEADS["unlikelihood"](V, alpha, window)
        targets = head.targets(x, y)
        want = torch.empty(B * T)
        for b in range(B):
            for i in range(T):
                row, token, context = b * T + i, y[b, i].item(), []
                ids, values = [token], [1.0]
                for distance in range(min(window or T, T)):
                    c = x[b, i - distance].item() if distance <= i else -1
                    new = c not in (-1, token, *context)
                    context += [c] * new
                    ids.append(c if new else -1)
                    values.append(-1.0 if new else 0.0)
                assert targets.ids[row].tolist() == ids and targets.values[row].tolist() == values
                want[row] = -p[row, y[b, i]].log() - alpha * sum((1 - p[row, c]).log() for c in context)
        assert targets.ids.dtype == torch.int32 and targets.values.dtype == torch.float16
        given = targets.part(0, B * T)  # what chunked_loss gives to a head
        assert given.ids.dtype == torch.int64 and given.values.dtype == torch.float32
        torch.testing.assert_close(head.loss(z, given), want)
    torch.testing.assert_close(
        head.loss(z, Targets.single(y)), HEADS["softmax"](V).loss(z, Targets.single(y))
    )


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
    "name, args, says",
    [
        ("sofmax", {}, "sofmax.*known: .*softmax"),
        ("label_smoothing", {"eps": 1.0}, "eps = 1.0"),
        ("label_smoothing", {"epsilon": 0.1}, "epsilon"),
        ("sigmoid", {"pos_weight": 0.0}, "pos_weight = 0.0"),
        ("sigmoid", {"sum_weight": -1.0}, "sum_weight = -1.0"),
        ("gs_softmax_f1", {"alpha": -1.0}, "alpha = -1.0"),
        ("taylor", {"n": 12}, "n = 12.*8 or 10"),
        ("sm_softmax", {"m": -1.0}, "m = -1.0"),
        ("am_softmax", {"m": -0.1}, "m = -0.1"),
        ("sparse_softmax", {"top_k": 5, "top_p": 0.5}, "top_k = 5, top_p = 0.5.*not both"),
        ("sparse_softmax", {"top_p": 1.5}, "top_p = 1.5"),
        ("sparse_softmax", {"top_k": 2.5}, "top_k = 2.5 must be a whole number"),
        ("taylor", {"n": 4.0}, "n = 4.0 must be a whole number"),
        ("taylor_inf", {"published": "false"}, "published = 'false' must be True or False"),
        ("sm_softmax", {"m": True}, "m = True must be a number"),
        ("entmax", {"alpha": 1.0}, "alpha = 1.0.*softmax"),
        ("entmax", {"alpha": 2.5}, "alpha = 2.5.*sparsemax"),
        ("perturb_max", {"noise": "cauchy"}, "noise = 'cauchy': use 'gumbel'"),
        ("confidence_penalty", {"beta": -0.1}, "beta = -0.1"),
        ("softcap", {"cap": 0.0}, "cap = 0.0"),
        ("z_loss", {"alpha": -1.0}, "alpha = -1.0"),
        ("unlikelihood", {"alpha": -1.0}, "alpha = -1.0"),
        ("unlikelihood", {"window": -1}, "window = -1"),
        ("stop_gradient", {"of": "tailor"}, "unknown head 'tailor'"),
        (
            "stop_gradient",
            {"of": "sparse_softmax", "of_args": {"top_k": 2.5}},
            "top_k = 2.5 must be a whole number",
        ),
        ("stop_gradient", {"of": "stop_gradient"}, "of = 'stop_gradient'"),
        ("stop_gradient", {"of": "entmax", "of_args": 5}, "of_args = 5 must be a dict"),
    ],
)
def test_wrong_arguments_are_named(name, args, says):
    with pytest.raises(ValueError, match=says):
        make_head(name, V, nn.Parameter(torch.zeros(64, C)), args)


def test_rows_must_agree():
    with pytest.raises(ValueError, match="3 rows of targets for 4 rows"):
        chunked_loss(
            torch.zeros(4, C),
            Projection(nn.Parameter(torch.zeros(64, C)), V, None).draw(),
            HEADS["softmax"](V),
            random_targets(3),
        )
