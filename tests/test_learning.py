"""That training learns: minutes of CPU time. Run with: make test-slow."""

from statistics import mean

import pytest

from data.prepared import prepared
from tests.fixtures import TINY, curve, log, train_in_process
from train import TrainConfig

pytestmark = pytest.mark.slow

SOURCE = "seed=3 train=200000 validation=6000 test=1500 themes=5 nouns=12 verbs=8 adjectives=6 adverbs=4"
# its loss is not a likelihood, and its gradient vanishes where the true token has no probability yet
FINE_TUNING = "smooth_accuracy"
FAST = dict(learning_rate=1e-2, min_lr=1e-3, log_interval=100)


def evaluations(config: TrainConfig) -> list[dict]:
    return [entry for entry in log(config.out_dir) if "val_nll" in entry]


def test_fine_tuning_raises_the_accuracy(tiny, run, trained):
    """Minus the loss of smooth accuracy is the mean probability of the true token: in a hundred steps from
    another head's run it rises by half."""
    config = tiny(head=FINE_TUNING, init_from=str(trained), max_steps=100, learning_rate=3e-3)
    assert run(config) == 0
    accuracy = [-loss for loss in curve(config.out_dir)]
    assert mean(accuracy[-10:]) > 1.5 * mean(accuracy[:10])


def test_a_model_comes_near_the_truth(tmp_path):
    """On a small language whose distributions are known, KL(truth || model) falls at every evaluation, to
    less than 0.2 nats. Its estimate from the text alone, cross-entropy minus entropy, agrees."""
    folder = prepared("grammar", "words", SOURCE, tmp_path / "data")
    size = dict(block_size=64, batch_size=16, n_layer=2, n_embd=64, n_head=4)
    length = dict(max_steps=800, warmup_steps=40, eval_interval=200)
    names = dict(dataset="grammar", tokenizer="words", out_dir=str(tmp_path / "out"))
    config = TrainConfig(**TINY | FAST | size | length | names)
    assert train_in_process(config, folder) == 0
    kl = [entry["kl_truth_model"] for entry in evaluations(config)]
    assert len(kl) == 4 and kl == sorted(kl, reverse=True)
    assert kl[-1] < 0.2
    last = evaluations(config)[-1]
    assert last["document_nll"] - last["document_true_nll"] == pytest.approx(kl[-1], abs=0.03)
    assert last["mass_invalid"] < 0.1
