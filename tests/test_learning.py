"""That training learns: minutes of CPU time. Run with: make test-slow."""

from statistics import mean

import pytest

from tests.fixtures import curve

pytestmark = pytest.mark.slow

# its loss is not a likelihood, and its gradient vanishes where the true token has no probability yet
FINE_TUNING = "smooth_accuracy"


def test_fine_tuning_raises_the_accuracy(tiny, run, trained):
    """Minus the loss of smooth accuracy is the mean probability of the true token: in a hundred steps from
    another head's run it rises by half."""
    config = tiny(head=FINE_TUNING, init_from=str(trained), max_steps=100, learning_rate=3e-3)
    assert run(config) == 0
    accuracy = [-loss for loss in curve(config.out_dir)]
    assert mean(accuracy[-10:]) > 1.5 * mean(accuracy[:10])
