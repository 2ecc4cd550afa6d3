"""What a distribution is cut to: as transformers' processors."""

import math
from dataclasses import fields

import pytest
import torch

from evaluate.decoding import AS_SCORED, CUTS, Decoding, truncate

V = 200
WARPERS = {"top_k": "TopK", "top_p": "TopP", "min_p": "MinP"}  # in transformers' order
VALUES = {"top_k": (1, 7, 60), "top_p": (0.1, 0.5, 0.95), "min_p": (0.02, 0.3, 1.0)}


def theirs(name: str, value: float, scores: torch.Tensor, text: torch.Tensor | None = None) -> torch.Tensor:
    """What a processor of transformers makes of `scores`."""
    from transformers.generation import logits_process  # importing it takes seconds

    return getattr(logits_process, name)(value)(text, scores)


def logits() -> torch.Tensor:
    """Rows (40, V) from nearly flat to nearly certain, in float64."""
    z = torch.randn(40, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return z * torch.linspace(0.05, 6, 40, dtype=torch.float64)[:, None]


def sparse() -> torch.Tensor:
    """log p with exact zeros, as of sparsemax."""
    p = (logits() - logits().mean(1, keepdim=True)).clamp(min=0)
    return (p / p.sum(1, keepdim=True)).log()


@pytest.mark.parametrize("temperature", [0.7, 1.6])
@pytest.mark.parametrize("name, value", [(name, v) for name in WARPERS for v in VALUES[name]])
@pytest.mark.parametrize("source", [logits, sparse])
def test_a_cut_is_that_of_transformers(source, name, value, temperature):
    log_p = source().log_softmax(1)
    warm = theirs("TemperatureLogitsWarper", temperature, log_p)
    want = theirs(f"{WARPERS[name]}LogitsWarper", value, warm).softmax(1)
    got = truncate(log_p, Decoding(temperature=temperature, **{name: value}))
    assert torch.equal(got > 0, want > 0)
    torch.testing.assert_close(got, want, rtol=1e-13, atol=0)
    assert (got == 0).sum() > (log_p == -math.inf).sum()  # it cuts


def test_cuts_apply_in_the_order_of_transformers():
    values = dict(top_k=120, top_p=0.97, min_p=0.01)
    scores = theirs("TemperatureLogitsWarper", 1.3, logits().log_softmax(1))
    for name, warper in WARPERS.items():
        before, scores = scores, theirs(f"{warper}LogitsWarper", values[name], scores)
        assert not torch.equal(before, scores), name  # each has something to cut
    got = truncate(logits().log_softmax(1), Decoding(temperature=1.3, **values))
    torch.testing.assert_close(got, scores.softmax(1), rtol=1e-12, atol=0)
    assert [*WARPERS] == [*CUTS]


@pytest.mark.parametrize("cut", [dict(top_p=1e-50), dict(top_k=1), dict(min_p=1.0)], ids=str)
def test_the_hardest_cut_leaves_the_most_probable_token(cut):
    z = logits().float()
    p = truncate(z.log_softmax(1), Decoding(**cut))
    assert torch.equal(p, torch.nn.functional.one_hot(z.argmax(1), V).float())


def test_without_a_cut_nothing_changes():
    for c in (AS_SCORED, Decoding(top_k=V + 1)):
        torch.testing.assert_close(truncate(sparse(), c), sparse().exp())
    assert {f.name for f in fields(Decoding)} == {"temperature", *CUTS}
