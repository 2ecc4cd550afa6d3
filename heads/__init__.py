"""Output heads: hidden states -> a distribution over the next token.

A head answers two questions about logits z (N, V), in float32: `loss` is what training minimises, `log_probs`
is the normalised distribution. Everything that scores or samples calls `log_probs`, so what is sampled is
what is scored. To add a head, write a class of about ten lines, enter it in HEADS, write its formula into
tests/test_heads.py, and give it a file in config/: docs/add_a_head.md.

`OutputHead` joins a head to its projection, an ordinary or a Bayesian one, tied to the token embedding or
with weights of its own (`Trunk.new_readout` in model.py). It never makes the logits of a whole batch: see
`chunked_loss`.

    base.py        Targets, Head, cross-entropy            softmax.py    softmax and its links
    projection.py  hidden states -> logits                 sigmoid.py    multi-label sigmoid
    output.py      the loss in chunks, and log p           taylor.py     polynomials in place of exp
    functional.py  linear_loss, for the models of others   margin.py     the true token's logit, lowered
    causal.py      causal_loss, of a whole model           perturb.py    argmax of noisy logits
    sparse.py      exact zeros                             objectives.py softmax, other losses than -log p_t
    sampled.py     softmax, trained on a few tokens
"""

from collections.abc import Callable
from typing import Any, cast

import torch.nn as nn

from .base import Head, Targets, check_arguments, check_choice, check_range, cross_entropy, with_gradient
from .causal import causal_loss
from .functional import linear_loss, log_probs
from .margin import AMSoftmax, SMSoftmax
from .objectives import SmoothAccuracy, SoftTargets, StopGradient
from .output import OutputHead, block_rows, chunk_rows, chunked_loss
from .perturb import PerturbMax
from .projection import BayesianProjection, Projection, Weights, logits_of, project
from .sampled import SampledSoftmax
from .sigmoid import Sigmoid
from .softmax import GSSoftmaxF1, GSSoftmaxF2, LabelSmoothing, SigSoftmax, Softmax, SoftmaxBias
from .sparse import Entmax, Entmax15, Sparsemax, SparseSoftmax
from .taylor import SMTaylor, Taylor, TaylorInf

HEADS: dict[str, Callable[..., Head]] = {  # classes; each takes V and arguments of its own
    "softmax": Softmax,
    "softmax_bias": SoftmaxBias,
    "sampled_softmax": SampledSoftmax,
    "label_smoothing": LabelSmoothing,
    "sigmoid": Sigmoid,
    "gs_softmax_f1": GSSoftmaxF1,
    "gs_softmax_f2": GSSoftmaxF2,
    "sigsoftmax": SigSoftmax,
    "taylor": Taylor,
    "taylor_inf": TaylorInf,
    "sm_softmax": SMSoftmax,
    "sm_taylor": SMTaylor,
    "am_softmax": AMSoftmax,
    "sparse_softmax": SparseSoftmax,
    "sparsemax": Sparsemax,
    "entmax15": Entmax15,
    "entmax": Entmax,
    "perturb_max": PerturbMax,
    "smooth_accuracy": SmoothAccuracy,
    "soft_targets": SoftTargets,
    "stop_gradient": StopGradient,
}


def find_head(name: str) -> type[Head]:
    """The head called `name`, of HEADS or of a lab (labs/LAB/heads.py). ValueError if there is none."""
    known = HEADS
    if name not in HEADS and __name__ == "heads":  # nanoheads.heads of somebody's program has no labs
        from common.places import registered

        known = registered("heads", "HEADS", "heads")
    check_choice(known, head=name)
    return cast(type[Head], known[name])


def named_head(name: str, vocab_size: int, args: dict | None = None) -> Head:
    """The head called `name`, made with `args`. ValueError for an unknown head or argument."""
    head, args = find_head(name), args or {}
    check_arguments(head, args)
    return head(vocab_size, **args)


def make_head(
    name: str,
    vocab_size: int,
    weight: nn.Parameter,
    args: dict | None = None,
    bayesian: bool = False,
    prior_sigma: float = 0.02,
    gain: float = 1.0,
    learn_gain: bool = False,
) -> OutputHead:
    """The head called `name`, made with `args`, on a projection by `weight` (padded V, C).

    `gain`, fixed or learned: see OutputHead. `prior_sigma`: see BayesianProjection.

    ValueError for an unknown head or argument.
    """
    head = named_head(name, vocab_size, args)
    if bayesian:
        projection: Projection = BayesianProjection(weight, vocab_size, head.bias, prior_sigma)
    else:
        projection = Projection(weight, vocab_size, head.bias)
    return OutputHead(head, projection, gain, learn_gain)
