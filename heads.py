"""Output heads: hidden states -> a distribution over the next token.

A head answers two questions about logits z (N, V), in float32: `loss`, what training minimises, and `log_probs`, the normalised
distribution. Everything that scores or samples calls `log_probs`, so what is sampled is what is scored. To add a head, write a
class of about ten lines, enter it in HEADS, and give it a file in config/; the tests pick it up from HEADS.

`OutputHead` joins a head to its projection (an ordinary or a Bayesian one, tied to the token embedding) and never
materialises the logits of a whole batch: see `chunked_loss`.
"""

import math
from typing import Callable, Iterator, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class Targets(NamedTuple):
    """Sparse labels of N positions: `ids` (N, K), padded with -1, the true next token in column 0; `values` (N, K), their label values y in [0, 1]."""
    ids: Tensor
    values: Tensor

    @classmethod
    def single(cls, token: Tensor) -> "Targets":
        """The true token alone. `token` has any shape; it is flattened to (N, 1)."""
        ids = token.reshape(-1, 1)
        return cls(ids, torch.ones_like(ids, dtype=torch.float32))

    @property
    def token(self) -> Tensor:
        """The true next token (N,)."""
        return self.ids[:, 0]

    def rows(self, start: int, end: int) -> "Targets":
        return Targets(self.ids[start:end], self.values[start:end])


# -----------------------------------------------------------------------------
# Losses that find their gradient on the way: what plain PyTorch computes, in fewer passes over (N, V)

class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, token, rest):
        p, V, at = torch.softmax(u, dim=1), u.shape[1], token[:, None]
        lse = u.amax(1) - p.amax(1).log()  # log p_j = u_j - lse for any j; the largest p_j is at least 1/V, so its log is exact
        u_t = u.gather(1, at).squeeze(1)
        if not rest:
            loss = lse - u_t
        else:  # sum_v y_v (lse - u_v) with y_t = 1 - rest (V - 1) and y_v = rest elsewhere
            loss = lse - rest * u.sum(1) - (1 - rest * V) * u_t
            p -= rest
        ctx.save_for_backward(p.scatter_add_(1, at, p.new_full((1, 1), rest * V - 1).expand(len(p), 1)))
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad[:, None], None, None


def cross_entropy(u: Tensor, token: Tensor, rest: float = 0.0) -> Tensor:
    """-sum_v y_v log softmax(u)_v (N,) of scores u (N, V), with y = `rest` everywhere but at the tokens t (N,), where it is what is left to 1.

    Its gradient is softmax(u) - y.
    """
    return _CrossEntropy.apply(u, token, rest)


def _sum_softplus(z: Tensor, s: Tensor) -> Tensor:
    """sum_v log(1 + e^(z_v)) (N,) given s = sigma(z): as sum_v max(z_v, 0) - log(1 - q_v) with q = sigma(-|z|). Logarithms are dear, so they are
    taken of products of eight factors, (1 - a)(1 - b) = 1 - (a + b - ab), in which a small q keeps all of its digits."""
    q = torch.minimum(s, 1 - s)
    n = q.shape[1] // 8
    folded, rest = q[:, :8 * n].unflatten(1, (8, n)), q[:, 8 * n:]
    for _ in range(3):
        a, b = folded.chunk(2, dim=1)
        folded = torch.addcmul(a + b, a, b, value=-1)
    return z.relu().sum(1) - folded[:, 0].neg().log1p().sum(1) - rest.neg().log1p().sum(1)


class _BinaryCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z, ids, values, pos_weight, sum_weight):
        at = ids.clamp(min=0)  # the padding's values are 0
        z_at, d = z.gather(1, at), torch.sigmoid(z)
        # a positive adds y (w softplus(-z) - softplus(z)) = y ((w - 1) softplus(-z) - z)
        positive, d_positive = -z_at, -values.to(d.dtype)
        if pos_weight != 1:
            positive = positive + (pos_weight - 1) * F.softplus(-z_at)
            d_positive = d_positive * (1 + (pos_weight - 1) * torch.sigmoid(-z_at))
        loss = _sum_softplus(z, d) + (values * positive).sum(1)
        if sum_weight:
            excess = d.sum(1, keepdim=True) - 1
            loss += sum_weight * excess.squeeze(1).square()
            d = torch.addcmul(d, d * (1 - d), 2 * sum_weight * excess)
        ctx.save_for_backward(d.scatter_add_(1, at, d_positive))
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        return ctx.saved_tensors[0] * grad[:, None], None, None, None, None


def binary_cross_entropy(z: Tensor, targets: Targets, pos_weight: float = 1.0, sum_weight: float = 0.0) -> Tensor:
    """sum_v BCE(sigma(z_v), y_v) of sparse labels y, positives weighted by w, + lambda (sum_v sigma(z_v) - 1)^2: see `Sigmoid`. (N, V) -> (N,)."""
    return _BinaryCrossEntropy.apply(z, targets.ids, targets.values, pos_weight, sum_weight)


# -----------------------------------------------------------------------------
# Heads

class Head(nn.Module):
    """Base of all heads; its parameters, if any, are trained. `vocab_size` is V."""
    multi_label = False      # reads all of Targets, not the true token alone
    bias: float | None = None  # initial value of the projection's output bias; None: the projection has none

    def __init__(self, vocab_size: int):
        super().__init__()
        self.vocab_size = vocab_size

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        """(N, V) float32 logits -> (N,) what training minimises, in nats."""
        raise NotImplementedError

    def log_probs(self, logits: Tensor) -> Tensor:
        """(N, V) float32 logits -> (N, V) log of the normalised distribution."""
        raise NotImplementedError


class Softmax(Head):
    """p = softmax(u(z)) with the link u(z) = z; loss = -log p_t.

    Every head of the form p_i = F(z_i) / sum_j F(z_j) is this one with u = log F: subclasses give `link`.
    """

    def link(self, z: Tensor) -> Tensor:
        return z

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(self.link(logits), targets.token)

    def log_probs(self, logits: Tensor) -> Tensor:
        return F.log_softmax(self.link(logits), dim=-1)


class LabelSmoothing(Softmax):
    """Softmax trained towards y_t = 1 - eps, eps/(V-1) elsewhere; scored without smoothing.

    Source: Shamula et al. 2024, "Altering and Evaluating GPT-Based Text Generation", eq. 1 (torch's own smoothing spreads eps/V over all V).
    """

    def __init__(self, vocab_size: int, eps: float = 0.05):
        super().__init__(vocab_size)
        if not 0 <= eps < 1:
            raise ValueError(f"eps = {eps}: label smoothing takes 0 <= eps < 1")
        self.eps = eps

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return cross_entropy(logits, targets.token, self.eps / (self.vocab_size - 1))


class GSSoftmaxF1(Softmax):
    """GS-Softmax with F1(z) = alpha sigma(z). Source: the GS-Softmax paper, eq. 7 and 9.

    alpha (its Table 4, the "range factor") cancels in the normalisation and cannot change anything; it is kept to show that.
    The sigmoid saturates, hence the bias: it starts at -log V so that sum_v F(z_v) starts at 1 (Lin et al. 2017, arXiv 1708.02002, sec. 4.1).
    """

    def __init__(self, vocab_size: int, alpha: float = 1.0):
        super().__init__(vocab_size)
        if not 0 < alpha < math.inf:
            raise ValueError(f"alpha = {alpha}: the range factor must be positive and finite")
        self.log_alpha, self.bias = math.log(alpha), -math.log(vocab_size)

    def link(self, z: Tensor) -> Tensor:
        return F.logsigmoid(z) + self.log_alpha


class GSSoftmaxF2(GSSoftmaxF1):
    """GS-Softmax with F2(z) = e^z for z < 0, 1 + z from 0 on, times alpha. Source: the GS-Softmax paper, eq. 8.

    Linear above 0, so a confident prediction among V tokens that start at F = 1 needs z ~ V: the bias of -log V starts them at F = 1/V.
    """

    def link(self, z: Tensor) -> Tensor:
        # a sum of two branches, not where: the one not taken must not reach the gradient (log1p is infinite at -1). clamp passes the gradient
        # at 0 and relu does not: together 1, the slope of both sides
        return z.clamp(max=0) + z.relu().log1p() + self.log_alpha


class Sigmoid(Head):
    """Multi-label sigmoid: L = sum_v BCE(sigma(z_v), y_v); p = sigma(z) / sum sigma(z).

    With sparse positives S: L = sum_v softplus(z_v) + sum_{j in S} y_j (w softplus(-z_j) - softplus(z_j)) + lambda (sum_v sigma(z_v) - 1)^2.
    `pos_weight` is w, `sum_weight` is lambda. The bias starts at log(w/V): each sigma(z_v) at the optimum of a uniform label.
    Source: Shamula et al. 2024, eq. 3 to 5, summed over v (their 1/N cancels nothing but the scale); eq. 4 on probabilities.
    """
    multi_label = True

    def __init__(self, vocab_size: int, pos_weight: float = 1.0, sum_weight: float = 0.0):
        super().__init__(vocab_size)
        if not 0 < pos_weight < math.inf:
            raise ValueError(f"pos_weight = {pos_weight}: must be positive and finite")
        if not 0 <= sum_weight < math.inf:
            raise ValueError(f"sum_weight = {sum_weight}: must be at least 0 and finite")
        self.pos_weight, self.sum_weight, self.bias = pos_weight, sum_weight, math.log(pos_weight / vocab_size)

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return binary_cross_entropy(logits, targets, self.pos_weight, self.sum_weight)

    def log_probs(self, logits: Tensor) -> Tensor:
        return F.log_softmax(F.logsigmoid(logits), dim=-1)


HEADS: dict[str, type[Head]] = {
    "softmax": Softmax,
    "label_smoothing": LabelSmoothing,
    "sigmoid": Sigmoid,
    "gs_softmax_f1": GSSoftmaxF1,
    "gs_softmax_f2": GSSoftmaxF2,
}


# -----------------------------------------------------------------------------
# Projections: hidden (N, C) -> logits (N, V)

class Weights(NamedTuple):
    """One draw of a projection's weights: `weight` (padded V, C), tied to the token embedding, and `bias` (V,) or None."""
    weight: Tensor
    bias: Tensor | None


class Projection(nn.Module):
    """z = h W^T + b with W the token embedding (Press & Wolf 2017); `bias` is the initial value of b, None for no bias."""

    def __init__(self, weight: nn.Parameter, vocab_size: int, bias: float | None):
        super().__init__()
        self.weight = weight
        self.bias = None if bias is None else nn.Parameter(torch.full((vocab_size,), bias))

    def draw(self, generator: torch.Generator | None = None) -> Weights:
        return Weights(self.weight, self.bias)

    def kl(self) -> Tensor | None:
        """KL(q || prior) of the weights in nats; None where the weights have no distribution."""
        return None


class BayesianProjection(Projection):
    """W ~ N(mu, sigma^2) for each weight, mu tied to the token embedding, prior N(0, prior_sigma^2). The bias is a point.

    Source: Shamula et al. 2024, sec. 2.5; Blundell et al. 2015 (arXiv 1505.05424). The parameters and the KL are torchbnn's; the noise is
    drawn here, because torchbnn takes it from the global generator, and in eval() too.
    """

    def __init__(self, weight: nn.Parameter, vocab_size: int, bias: float | None, prior_sigma: float = 0.02):
        super().__init__(weight, vocab_size, bias)
        import torchbnn
        if not 0 < prior_sigma < math.inf:
            raise ValueError(f"prior_sigma = {prior_sigma}: must be positive and finite")
        self.bayes = torchbnn.BayesLinear(0.0, prior_sigma, weight.shape[1], weight.shape[0], bias=False)
        self.bayes.weight_mu = weight
        self.kl_loss = torchbnn.BKLLoss(reduction="sum")

    def draw(self, generator: torch.Generator | None = None) -> Weights:
        noise = torch.randn(self.weight.shape, generator=generator, device=self.weight.device)
        return Weights(self.weight + self.bayes.weight_log_sigma.exp() * noise, self.bias)

    def kl(self) -> Tensor:
        return self.kl_loss(self.bayes).squeeze(0)


def project(hidden: Tensor, weights: Weights, vocab_size: int) -> Tensor:
    """hidden (N, C) -> float32 logits (N, V)."""
    return logits_of(hidden @ weights.weight.to(hidden.dtype).t(), weights, vocab_size)


def logits_of(products: Tensor, weights: Weights, vocab_size: int) -> Tensor:
    """h W^T (N, padded V) -> float32 logits (N, V): the padding rows of the weights are cut off here, so no head ever sees them."""
    logits = products[:, :vocab_size].float()
    return logits if weights.bias is None else logits + weights.bias


class _ChunkedLoss(torch.autograd.Function):
    """sum_n loss_n, the gradient taken in the same pass. Matrix products run on chunks of rows, whose logits become their own gradient
    in place; between the products the head's arithmetic runs on blocks of rows, few enough to stay in a CPU's caches."""

    @staticmethod
    def forward(ctx, hidden, weight, bias, head, targets, chunk, block, dtype, *params):
        # dtype: what autocast uses for matrix products; nothing else is to be lowered, the head's own arithmetic least of all
        with torch.autocast(hidden.device.type, enabled=False):
            return _ChunkedLoss.run(ctx, hidden, weight, bias, head, targets, chunk, block, dtype, *params)

    @staticmethod
    def run(ctx, hidden, weight, bias, head, targets, chunk, block, dtype, *params):
        needs, V = ctx.needs_input_grad, head.vocab_size
        make = [torch.empty_like, torch.empty_like] + [torch.zeros_like] * (1 + len(params))  # the first two are written before they are added to
        ctx.grads = [new(p) if need else None for new, p, need in zip(make, (hidden, weight, bias, *params), needs[:3] + needs[8:])]
        d_hidden, d_weight, d_bias, *d_params = ctx.grads
        wanted = [p for p, d in zip(params, d_params) if d is not None]
        h_all, w = hidden.to(dtype), weight.to(dtype)
        work = torch.promote_types(hidden.dtype, torch.float32)  # of the head's own arithmetic: float32, or float64 in the tests
        total = torch.zeros((), dtype=work, device=hidden.device)
        buffer = h_all.new_empty(min(chunk, len(h_all)), len(w))
        for start in range(0, len(h_all), chunk):
            h = h_all[start:start + chunk]
            z = torch.mm(h, w.t(), out=buffer[:len(h)])
            for i in range(0, len(h), block):
                logits = z[i:i + block, :V].to(work, copy=True)
                if bias is not None:
                    logits += bias
                rows = targets.rows(start + i, start + i + len(logits))
                if not any(needs):
                    total += head.loss(logits, rows).sum()
                    continue
                with torch.enable_grad():
                    loss = head.loss(logits.requires_grad_(), rows).sum()
                    dz, *dp = torch.autograd.grad(loss, (logits, *wanted), allow_unused=True)
                total += loss.detach()
                z[i:i + block, :V] = dz
                if d_bias is not None:
                    d_bias += dz.sum(0)
                for d, g in zip((d for d in d_params if d is not None), dp):
                    if g is not None:
                        d += g
            z[:, V:] = 0  # the padding has no gradient
            if d_hidden is not None:
                d_hidden[start:start + chunk] = z @ w
            if d_weight is not None:
                _add_product(d_weight, z, h, new=start == 0)
        return total

    @staticmethod
    def backward(ctx, grad):
        if ctx.grads is None:
            raise RuntimeError("chunked_loss keeps its gradients for one backward only")
        # scaled in place: a copy would be another (V, C)
        grads, ctx.grads = [g if g is None else g.mul_(grad) for g in ctx.grads], None
        d_hidden, d_weight, d_bias, *d_params = grads
        return d_hidden, d_weight, d_bias, None, None, None, None, None, *d_params


def _add_product(total: Tensor, z: Tensor, h: Tensor, new: bool) -> None:
    """total (V, C) += z^T h, or = if `new`; summed in total's precision whatever that of z (n, V) and h (n, C)."""
    if z.dtype == total.dtype:
        torch.addmm(total, z.t(), h, beta=0 if new else 1, out=total)
        return
    step = 2048 if z.device.type == "cpu" else z.shape[1]  # on a CPU the product is to be added while it is in the caches
    for v in range(0, z.shape[1], step):
        part = z[:, v:v + step].t() @ h
        total[v:v + step].copy_(part) if new else total[v:v + step].add_(part)


def chunk_rows(vocab_size: int, device: str) -> int:
    """Rows of logits for one matrix product: on a GPU about half a gigabyte; never too few for it to be efficient."""
    return max(256, (2**22 if device == "cpu" else 2**27) // vocab_size)


def block_rows(vocab_size: int, device: str) -> int:
    """Rows of logits for a head's arithmetic: on a CPU a megabyte, which its caches hold; on a GPU as many as there are."""
    return 4 * max(1, 2**17 // vocab_size) if device == "cpu" else chunk_rows(vocab_size, device)


def chunked_loss(hidden: Tensor, weights: Weights, head: Head, targets: Targets, chunk: int = 0, block: int = 0) -> Tensor:
    """Sum over rows of head.loss(hidden W^T + b, targets), without the (N, V) logits: a scalar in float32.

    hidden (N, C); targets of N rows; chunk: rows of a matrix product, block: rows of the head's arithmetic (0: see `chunk_rows`, `block_rows`).
    Value and gradients (of hidden, weight, bias and the head's parameters) equal the unchunked ones; higher derivatives do not exist. Under
    autocast the matrix products run in its dtype and everything else in float32. As Liger's fused linear cross-entropy (Hsu et al. 2024,
    arXiv 2410.10989), for any row-wise loss.
    """
    if len(targets.ids) != len(hidden):
        raise ValueError(f"{len(targets.ids)} rows of targets for {len(hidden)} rows of hidden states")
    device = hidden.device.type
    chunk, block = chunk or chunk_rows(head.vocab_size, device), block or block_rows(head.vocab_size, device)
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
    return _ChunkedLoss.apply(hidden, weights.weight, weights.bias, head, targets, chunk, block, dtype, *head.parameters())


class OutputHead(nn.Module):
    """A head and its projection: the loss of hidden states, and their predictive distribution."""

    def __init__(self, head: Head, projection: Projection):
        super().__init__()
        self.head, self.projection = head, projection

    def loss(self, hidden: Tensor, targets: Targets, generator: torch.Generator | None = None) -> tuple[Tensor, int]:
        """(sum of the losses in nats, count) over hidden (..., C). A Bayesian projection draws its weights once, from `generator`."""
        hidden = hidden.reshape(-1, hidden.shape[-1])
        return chunked_loss(hidden, self.projection.draw(generator), self.head, targets), len(hidden)

    @torch.no_grad()
    def draws(self, samples: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Weights]:
        """The weights that `log_probs` averages over: `samples` draws, a pure function of the seed; one where weights are points."""
        if not isinstance(self.projection, BayesianProjection):
            samples = 1
        generator = torch.Generator(self.projection.weight.device).manual_seed(seed)
        drawn = (self.projection.draw(generator) for _ in range(samples))
        return [Weights(d.weight.to(dtype), d.bias) for d in drawn]

    def log_probs(self, hidden: Tensor, draws: list[Weights]) -> Tensor:
        """log p (N, V), float32, of the predictive distribution p = mean over draws of p(. | W): log-mean-exp, never the mean NLL."""
        return self._mean([hidden.to(d.weight.dtype) @ d.weight.t() for d in draws], draws)

    def log_prob_blocks(self, hidden: Tensor, draws: list[Weights]) -> Iterator[tuple[slice, Tensor]]:
        """`log_probs` of many rows: (rows, log p of these rows), a few rows at a time, each to be used before the next is asked for."""
        V, device = self.head.vocab_size, hidden.device.type
        chunk, block = max(1, chunk_rows(V, device) // len(draws)), block_rows(V, device)
        for start in range(0, len(hidden), chunk):
            h = hidden[start:start + chunk]
            products = [h.to(d.weight.dtype) @ d.weight.t() for d in draws]
            for i in range(0, len(h), block):
                yield slice(start + i, start + min(i + block, len(h))), self._mean([z[i:i + block] for z in products], draws)

    def _mean(self, products: list[Tensor], draws: list[Weights]) -> Tensor:
        total = None
        with torch.autocast(products[0].device.type, enabled=False):  # lowers the projection only
            for z, weights in zip(products, draws):
                lp = self.head.log_probs(logits_of(z, weights, self.head.vocab_size))
                total = lp if total is None else torch.logaddexp(total, lp)
        return total - math.log(len(draws)) if len(draws) > 1 else total


def make_head(name: str, vocab_size: int, weight: nn.Parameter, args: dict | None = None, bayesian: bool = False, prior_sigma: float = 0.02) -> OutputHead:
    """The head called `name` in HEADS, with its constructor's `args`, on a projection tied to `weight` (padded V, C).

    ValueError for an unknown head or argument, naming the known ones.
    """
    if name not in HEADS:
        raise ValueError(f"unknown head {name!r}; known: {', '.join(HEADS)}")
    try:
        head = HEADS[name](vocab_size, **(args or {}))
    except TypeError as e:
        raise ValueError(f"head {name!r} does not take head_args = {args}: {e}") from None
    kind: Callable = BayesianProjection if bayesian else Projection
    extra = {"prior_sigma": prior_sigma} if bayesian else {}
    return OutputHead(head, kind(weight, vocab_size, head.bias, **extra))
