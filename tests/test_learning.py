"""That training learns: minutes of CPU time. Run with: make test-slow."""

import math
from statistics import mean

import pytest

from heads import HEADS
from tests.fixtures import VOCAB, curve, log
from train import TrainConfig

pytestmark = pytest.mark.slow

# its loss is not a likelihood, and its gradient vanishes where the true token has no probability yet
FINE_TUNING = "smooth_accuracy"
FAST = dict(learning_rate=1e-2, min_lr=1e-3, log_interval=100)


def evaluations(config: TrainConfig) -> list[dict]:
    return [entry for entry in log(config.out_dir) if "val_nll" in entry]


@pytest.mark.parametrize("bayesian", [False, True], ids=["point", "bayesian"])
@pytest.mark.parametrize("head", [name for name in HEADS if name != FINE_TUNING])
def test_every_head_learns(tiny, run, head, bayesian):
    """A hundred steps bring it half a nat below the uniform distribution or further. By PPL_eps: a head with
    exact zeros has no finite perplexity."""
    config = tiny(head=head, bayesian=bayesian, max_steps=100, warmup_steps=10, **FAST)
    assert run(config) == 0
    (last,) = evaluations(config)
    assert math.log(last["val_ppl_eps"]) < math.log(VOCAB) - 0.5


def test_fine_tuning_raises_the_accuracy(tiny, run, trained):
    """Minus the loss of smooth accuracy is the mean probability of the true token: in a hundred steps from
    another head's run it rises by half."""
    config = tiny(head=FINE_TUNING, init_from=str(trained), max_steps=100, learning_rate=3e-3)
    assert run(config) == 0
    accuracy = [-loss for loss in curve(config.out_dir)]
    assert mean(accuracy[-10:]) > 1.5 * mean(accuracy[:10])
