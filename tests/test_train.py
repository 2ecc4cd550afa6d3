"""Batches, one step, the loop: a run is its configuration, however it is cut up, stopped or watched."""

import copy
import functools
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import heads
import train
import training.text
from data.batches import Windows, batch_indices
from data.prepared import prepared
from data.tokens import open_tokens
from evaluation.scoring import Score
from measures.curve import evaluations
from model import GPT, GPTConfig
from runtime import checkpoint, device
from runtime.gpt2 import to_gpt2
from tests.fixtures import TINY, VOCAB, curve, handlers_kept, log, progress, train_in_process, weights

ROOT = Path(__file__).resolve().parents[1]
# every source of randomness but dropout
SIG = dict(head="sigmoid", bayesian=True, labels="soft", candidates=5, label_store=False)


def steps(out, key="loss") -> list[int]:
    return [entry["step"] for entry in log(out) if key in entry]


def recorded(out, key: str):
    """What the configuration of a run's last checkpoint says."""
    return checkpoint.load(Path(out) / "last", weights=False).config[key]


# ---- batches -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n, batch", [(12, 4), (10, 4), (7, 3), (3, 8)])
def test_every_epoch_visits_each_window_once(n, batch):
    order = np.concatenate([batch_indices(n, batch, step, seed=1) for step in range(5 * n)])
    epochs = order.reshape(-1, n)[:4]
    assert all(sorted(e) == list(range(n)) for e in epochs.tolist())
    assert len({tuple(e) for e in epochs.tolist()}) > 1  # each in an order of its own
    np.testing.assert_array_equal(
        batch_indices(n, batch, 4, 1), order[4 * batch : 5 * batch]
    )  # asked out of order, the same
    assert not np.array_equal(
        np.concatenate([batch_indices(n, batch, step, seed=2) for step in range(5 * n)]), order
    )


def test_windows(token_folder):
    tokens = open_tokens(token_folder / "train.bin")
    w = Windows(tokens, 16)
    assert len(w) == (len(tokens.ids) - 1) // 16
    x, y = w.get(np.array([2, len(w) - 1]))
    assert x.dtype == y.dtype == torch.int64 and x.shape == y.shape == (2, 16)
    assert x[0].tolist() == tokens.ids[32:48].tolist() and y[0].tolist() == tokens.ids[33:49].tolist()
    with pytest.raises(ValueError, match="fewer than one window"):
        Windows(tokens, len(tokens.ids))


def test_a_validation_split_without_one_window_is_refused(run, tiny, token_folder):
    short = len(open_tokens(token_folder / "validation.bin").ids)
    assert short < len(open_tokens(token_folder / "train.bin").ids)
    with pytest.raises(ValueError, match=f"validation.bin holds {short} tokens, fewer than one window of"):
        run(tiny(block_size=short))


# ---- one step ----------------------------------------------------------------------------------------------


def gradients(t: train.Trainer) -> tuple[float, dict]:
    """The loss of the next step and the gradients that the optimizer would see; the model stays as it is."""
    seen = {}
    t.optimizer.step = lambda: seen.update({n: p.grad.clone() for n, p in t.model.named_parameters()})
    return t.train_step().item(), seen


def test_the_loss_is_the_mean_over_all_tokens(trainer, tiny):
    t = trainer(tiny(batch_size=4))
    x, y = t.task.windows.get(batch_indices(len(t.task.windows), 4, 0, t.config.seed))
    logits = t.model.trunk(x) @ t.model.trunk.wte.weight[:VOCAB].t()
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
    loss.backward()
    want = t.model.trunk.wte.weight.grad.clone()
    t.optimizer.zero_grad()
    mean, grads = gradients(trainer(tiny(batch_size=4, grad_clip=0.0)))
    assert mean == pytest.approx(loss.item(), rel=1e-5)
    torch.testing.assert_close(grads["trunk.wte.weight"], want)


@pytest.mark.parametrize("kind", [dict(), SIG])
def test_micro_batches_change_nothing(trainer, tiny, trained, kind):
    kind = kind | dict(teacher=str(trained), grad_clip=0.0)
    mean, grads = gradients(trainer(tiny(**kind)))
    assert any(g.abs().max() > 1e-3 for g in grads.values())
    for micro in (1, 2):
        m, g = gradients(trainer(tiny(micro_batch=micro, **kind)))
        assert m == pytest.approx(mean, rel=1e-5)
        for name in grads:
            torch.testing.assert_close(g[name], grads[name], rtol=1e-4, atol=1e-6)


def test_the_kl_counts_once_per_training_token(trainer, tiny):
    made = [trainer(tiny(bayesian=True, grad_clip=0.0, kl_weight=w)) for w in (0.0, 3.0)]
    log_sigma = "head.projection.bayes.weight_log_sigma"
    for t in made:  # they start as wide as the prior, where the KL has no gradient by them
        with torch.no_grad():
            dict(t.model.named_parameters())[log_sigma].add_(0.3)
    without, with_kl = (gradients(t)[1] for t in made)
    model = made[0].model
    (3.0 * model.head.projection.kl() / len(made[0].task.train.ids)).backward()
    for name in (log_sigma, "trunk.wte.weight"):
        share = dict(model.named_parameters())[name].grad
        assert share.abs().max() > 1e-4
        torch.testing.assert_close(with_kl[name] - without[name], share, rtol=1e-2, atol=1e-6)


def test_a_bias_starts_at_the_log_frequencies(trainer, tiny):
    t = trainer(tiny(head="sigmoid", unigram_bias=True))
    ids = t.task.train.ids.tolist()
    want = [math.log((ids.count(v) + 1) / (len(ids) + VOCAB)) for v in range(VOCAB)]
    torch.testing.assert_close(t.model.head.projection.bias.data, torch.tensor(want))
    with pytest.raises(ValueError, match="unigram_bias"):
        trainer(tiny(unigram_bias=True))  # softmax has none


def test_gradient_clipping(trainer, tiny):
    norm = lambda grads: torch.stack([g.norm() for g in grads.values()]).norm().item()
    free = norm(gradients(trainer(tiny(grad_clip=0.0)))[1])
    assert norm(gradients(trainer(tiny(grad_clip=free / 2)))[1]) == pytest.approx(free / 2, rel=1e-3)
    assert norm(gradients(trainer(tiny(grad_clip=free * 2)))[1]) == pytest.approx(free, rel=1e-5)


def test_learning_rate():
    c = train.TrainConfig(learning_rate=1.0, min_lr=0.1, warmup_steps=10, max_steps=110)
    lr = lambda step: train.learning_rate(c, step)
    assert [lr(0), lr(4), lr(9)] == pytest.approx([0.1, 0.5, 1.0])
    assert [lr(10), lr(35), lr(60), lr(110), lr(500)] == pytest.approx(
        [1.0, 0.1 + 0.45 * (1 + math.sqrt(0.5)), 0.55, 0.1, 0.1]
    )
    c.lr_decay_steps = 60
    assert [lr(35), lr(60), lr(100)] == pytest.approx([0.55, 0.1, 0.1])
    c.warmup_steps = 0
    assert lr(0) == 1.0


@pytest.mark.parametrize("bayesian", [False, True])
def test_weight_decay_groups(trainer, tiny, bayesian):
    """Weights with a prior have no weight decay beside it; their mean is the token embedding."""
    t = trainer(tiny(head="sigmoid", bayesian=bayesian, weight_decay=0.3))
    names = {id(p): n for n, p in t.model.named_parameters()}
    decayed, rest = ({names[id(p)] for p in g["params"]} for g in t.optimizer.param_groups)
    assert [g["weight_decay"] for g in t.optimizer.param_groups] == [0.3, 0.0]
    assert decayed | rest == set(names.values()) and not decayed & rest
    matrices = {"wpe", "c_attn", "c_proj", "c_fc"} | ({"wte"} if not bayesian else set())
    assert {n.split(".")[-2] for n in decayed} == matrices and all(n.endswith(".weight") for n in decayed)
    assert {"head.projection.bias", "trunk.ln_f.weight"} < rest
    assert any(n.endswith("log_sigma") for n in rest) == bayesian


def test_seeds_are_all_different():
    seen = {
        train.derived_seed(1337, kind, step, rank)
        for kind in (1, 2)
        for step in range(200)
        for rank in range(4)
    } | {train.derived_seed(1338, 1, s, 0) for s in range(200)}
    assert len(seen) == 2 * 200 * 4 + 200 and all(0 <= s < 2**62 for s in seen)


def test_dropout_differs_by_step_and_process(trainer, tiny):
    t, seeds = trainer(tiny(dropout=0.1)), []
    for t.procs.rank in (0, 0, 1):
        t.train_step()
        seeds.append(torch.initial_seed())
    assert len(set(seeds)) == 3
    t.step, t.procs.rank = 0, 0
    t.train_step()
    assert torch.initial_seed() == seeds[0]
    t.step, t.procs.rank = 0, 1
    t.train_step()
    assert torch.initial_seed() not in seeds


# ---- the loop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [dict(dropout=0.3), SIG | dict(dropout=0.1), dict(optimizer="muon")],
    ids=["softmax", "bayes-sigmoid-soft", "muon"],
)
def test_a_resumed_run_is_the_unbroken_run(run, tiny, trained, tmp_path, equal_state, kind):
    c = tiny(lr_decay_steps=6, teacher=str(trained), **kind)
    half, whole = copy.copy(c), copy.copy(c)
    half.max_steps, whole.out_dir = 3, str(tmp_path / "whole")
    assert run(half) == run(whole) == 0
    at_three = weights(c.out_dir)
    c.resume = True
    assert run(c) == 0
    assert equal_state(weights(c.out_dir), weights(whole.out_dir))
    assert not equal_state(weights(c.out_dir), at_three)
    files = [Path(out) / "last" / "optimizer.pt" for out in (c.out_dir, whole.out_dir)]
    a, b = (torch.load(file, weights_only=True) for file in files)
    for part in ("AdamW", "Muon") if "Muon" in a else ("",):
        of_a, of_b = (state[part] if part else state for state in (a, b))
        assert equal_state(of_a["state"], of_b["state"]) and of_a["param_groups"] == of_b["param_groups"]
    for out in (c.out_dir, whole.out_dir):
        assert progress(out)["step"] == 6 and progress(out)["tokens"] == 6 * 8 * 16
    assert steps(c.out_dir) == [1, 2, 3, 4, 5, 6] and curve(c.out_dir) == curve(whole.out_dir)
    assert progress(c.out_dir)["best_val_nll"] == min(e["val_nll"] for e in log(c.out_dir) if "val_nll" in e)


@pytest.mark.parametrize(
    "tail",
    ['{"step": 3, "loss": 1.0}\n{"step": 4, "loss": 1.0}\n', '{"step": 3, "lo'],
    ids=["killed two steps after saving", "torn"],
)
def test_a_resume_drops_what_the_log_has_after_the_checkpoint(run, tiny, tail):
    c = tiny(max_steps=2, lr_decay_steps=4)
    assert run(c) == 0
    with open(Path(c.out_dir) / "log.jsonl", "a") as f:
        f.write(tail)
    c.max_steps, c.resume = 4, True
    assert run(c) == 0 and steps(c.out_dir) == [1, 2, 3, 4] and steps(c.out_dir, "val_nll") == [2, 4]


def test_watching_does_not_disturb(run, tiny, equal_state):
    often, seldom = (
        tiny(dropout=0.2, bayesian=True, eval_interval=e, log_interval=e, out_dir=tiny().out_dir + str(e))
        for e in (1, 5)
    )
    assert run(often) == run(seldom) == 0
    assert equal_state(weights(often.out_dir), weights(seldom.out_dir))
    for key in ("val_nll", "loss"):
        assert steps(often.out_dir, key) == [1, 2, 3, 4, 5, 6] and steps(seldom.out_dir, key) == [5, 6]


def test_evaluations_at_chosen_steps(run, tiny, equal_state):
    """And at the last; a resumed run may choose others, and none of it disturbs the training."""
    chosen = tiny(eval_interval=1, eval_steps=[4, 1, 99], out_dir=tiny().out_dir + "-1", max_steps=5)
    assert run(chosen) == 0 and steps(chosen.out_dir, "val_nll") == [1, 4, 5]
    broken = tiny(eval_steps=[3], lr_decay_steps=6, max_steps=5)
    assert run(broken) == 0
    broken.max_steps, broken.resume, broken.eval_steps = 6, True, [2]
    assert run(broken) == 0 and steps(broken.out_dir, "val_nll") == [3, 5, 6]
    whole = tiny(out_dir=tiny().out_dir + "-2")
    assert run(whole) == 0 and equal_state(weights(whole.out_dir), weights(broken.out_dir))


def test_evaluations_of_a_part(run, tiny, equal_state, capsys):
    """The same windows each time, said to be a part; at the end all of them, as in any other run."""
    whole = tiny(eval_interval=2, out_dir=tiny().out_dir + "-1")
    assert run(whole) == 0
    capsys.readouterr()
    c = tiny(eval_interval=2, eval_windows=3)
    assert run(c) == 0
    said = capsys.readouterr().out
    assert said.count("validation, 3 windows of it, ") == 2 and "; its 3 windows of all evaluations" in said
    assert "best validation perplexity of at most 3 windows" in said
    assert equal_state(weights(c.out_dir), weights(whole.out_dir))
    mine, theirs = ([e for e in log(o.out_dir) if "val_nll" in e] for o in (c, whole))
    assert [e.get("val_windows") for e in mine] == [3, 3, None]
    assert all(e["val_nll"] != t["val_nll"] for e, t in zip(mine[:2], theirs))
    judged = [e["val_nll"] for e in mine[:2]] + [mine[2].pop("val_nll_windows")]
    assert mine[2] == theirs[2]
    assert progress(c.out_dir)["best_val_nll"] == min(judged)
    assert [e["step"] for e in evaluations(Path(c.out_dir))] == [6]  # what a table's curve is made of


def test_a_part_that_is_all_of_it(run, tiny):
    c, whole = (tiny(eval_windows=n, out_dir=f"{tiny().out_dir}-{n}") for n in (10**6, 0))
    assert run(c) == run(whole) == 0
    mine, theirs = (log(o.out_dir)[-1] for o in (c, whole))
    assert mine == theirs


def test_what_best_is_judged_by_stays(run, tiny):
    c = tiny(max_steps=2, lr_decay_steps=4)
    assert run(c) == 0
    c.max_steps, c.resume, c.eval_windows = 4, True, 3
    with pytest.raises(ValueError, match="eval_windows was 0 and is now 3"):
        run(c)


def scores_are(monkeypatch, *nll: float) -> None:
    """What the evaluations find, in turn."""
    values = iter(nll)
    score = lambda self, evaluator, order, part: Score(next(values), 1, 0, 1.0)
    monkeypatch.setattr(training.text.TextTask, "score", score)


def at(step: int, val_nll: float, best: float) -> dict:
    """progress.json"""
    nlls = {"val_nll": val_nll, "judged_nll": val_nll, "best_val_nll": best}
    return {"step": step, "tokens": step * 8 * 16, **nlls}


def test_best_is_the_best(run, tiny, monkeypatch):
    scores_are(monkeypatch, 3.0, 2.0, 4.0)
    c = tiny(eval_interval=2)
    assert run(c) == 0
    assert progress(c.out_dir, "best") == at(4, 2.0, best=2.0)
    assert progress(c.out_dir) == at(6, 4.0, best=2.0)
    assert not (Path(c.out_dir) / "best" / "optimizer.pt").exists()
    assert (Path(c.out_dir) / "last" / "optimizer.pt").is_file()


def test_best_is_remembered_by_a_resume(run, tiny, monkeypatch):
    scores_are(monkeypatch, 1.0, 2.0)
    c = tiny(max_steps=2, lr_decay_steps=4)
    assert run(c) == 0
    c.max_steps, c.resume = 4, True
    assert run(c) == 0
    assert progress(c.out_dir, "best")["step"] == 2 and progress(c.out_dir) == at(4, 2.0, best=1.0)


def at_step(monkeypatch, step: int, act) -> None:
    """Calls `act` just before training step `step` (from 1)."""
    real = train.Trainer.train_step

    def train_step(self):
        if self.step + 1 == step:
            act()
        return real(self)

    monkeypatch.setattr(train.Trainer, "train_step", train_step)


@pytest.mark.parametrize("sig, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_stops(run, tiny, tmp_path, monkeypatch, equal_state, capsys, sig, code):
    c = tiny(dropout=0.2)
    at_step(monkeypatch, 3, lambda: signal.raise_signal(sig))
    assert run(c) == code
    assert progress(c.out_dir)["step"] == 3 and "--resume goes on" in capsys.readouterr().out
    monkeypatch.undo()
    c.resume = True
    whole = tiny(dropout=0.2, out_dir=str(tmp_path / "whole"))
    assert run(c) == run(whole) == 0 and equal_state(weights(c.out_dir), weights(whole.out_dir))


def test_a_signal_in_the_last_step(run, tiny, monkeypatch):
    c = tiny()
    at_step(monkeypatch, 6, lambda: signal.raise_signal(signal.SIGTERM))
    assert run(c) == 143
    monkeypatch.undo()
    c.resume = True
    assert run(c) == 0
    assert progress(c.out_dir, "best")["step"] == 6 and steps(c.out_dir, "val_nll") == [6]


def test_a_signal_in_an_evaluation_saves_and_the_evaluation_comes_later(run, tiny, monkeypatch):
    """As does one in the step before: what is evaluated, and what is best, is as without the signal."""
    whole = tiny(eval_interval=3)
    assert run(whole) == 0
    whole_evaluations = steps(whole.out_dir, "val_nll")
    c = tiny(eval_interval=3, out_dir=whole.out_dir + "-2")
    real = training.text.score

    def interrupted(*args, progress, **kwargs):
        signal.raise_signal(signal.SIGTERM)
        return real(*args, progress=progress, **kwargs)

    monkeypatch.setattr(training.text, "score", interrupted)
    assert run(c) == 143 and progress(c.out_dir, "last")["step"] == 3 and not steps(c.out_dir, "val_nll")
    monkeypatch.undo()
    c.resume = True
    assert run(c) == 0 and steps(c.out_dir, "val_nll") == whole_evaluations == [3, 6]
    assert progress(c.out_dir, "last")["best_val_nll"] == progress(whole.out_dir, "last")["best_val_nll"]


def test_a_lost_terminal_saves_and_stops(run, tiny, monkeypatch):
    """Its SIGHUP can come after the first line that cannot be written."""
    c, real, away = tiny(), print, []

    def lost(text, **kwargs):
        if text.startswith("step 3"):
            raise OSError(5, "Input/output error")
        real(text, **kwargs)

    monkeypatch.setattr("builtins.print", lost)
    monkeypatch.setattr(train.os, "dup2", lambda new, old: away.append(new))
    monkeypatch.setattr(train.sys, "stdout", open(os.devnull, "w"))
    assert run(c) == 129 and progress(c.out_dir)["step"] == 3 and away


def killed_at(monkeypatch, save: int) -> None:
    """KeyboardInterrupt in place of save number `save` (from 0): what SIGKILL or a full disk there leaves."""
    left, real = [save], checkpoint.save

    def saving(*args):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        real(*args)

    monkeypatch.setattr(checkpoint, "save", saving)


@pytest.mark.parametrize(
    "save, more", [*((save, {}) for save in range(4)), (1, {"head": "sparsemax"}), (1, {"eval_windows": 2})]
)
def test_killed_at_any_save_a_run_goes_on(run, tiny, tmp_path, monkeypatch, equal_state, save, more):
    """Also between `last` and the first `best`; in the end `best` is the unbroken run's."""
    c, whole = (tiny(eval_interval=3, **at, **more) for at in ({}, {"out_dir": str(tmp_path / "whole")}))
    with monkeypatch.context() as patch:
        killed_at(patch, save)
        with pytest.raises(KeyboardInterrupt):
            run(c)
    c.resume = save > 0  # before the first save nothing is there, and a new start is accepted
    if save == 1:
        c.max_steps = 6
        assert not (Path(c.out_dir) / "best").exists() and (Path(c.out_dir) / "last").is_dir()
    assert run(c) == run(whole) == 0
    for which in ("best", "last"):
        assert equal_state(weights(c.out_dir, which), weights(whole.out_dir, which))
        assert progress(c.out_dir, which) == progress(whole.out_dir, which)


def test_the_best_is_saved_by_the_resume_if_it_was_not_before(run, tiny, monkeypatch, equal_state):
    """Though no later evaluation is as good."""
    scores_are(monkeypatch, 2.0, 1.0, 3.0)
    c = tiny(eval_interval=2)
    with monkeypatch.context() as patch:
        killed_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            run(c)
    assert progress(c.out_dir, "best")["step"] == 2 and progress(c.out_dir)["step"] == 4
    c.resume = True
    assert run(c) == 0 and progress(c.out_dir, "best") == at(4, 1.0, best=1.0)


def test_a_best_that_is_lost_is_not_replaced_by_a_worse_one(run, tiny, monkeypatch, capsys):
    """Only `last` was copied, say: it was not the best."""
    scores_are(monkeypatch, 1.0, 2.0, 1.5)
    c = tiny(max_steps=4, lr_decay_steps=6, eval_interval=2)
    assert run(c) == 0
    shutil.rmtree(Path(c.out_dir) / "best")
    c.max_steps, c.resume = 6, True
    assert run(c) == 0 and "has no checkpoint `best`" in capsys.readouterr().out
    assert progress(c.out_dir, "best") == at(6, 1.5, best=1.5)


def test_a_resumed_run_needs_its_source_no_more(run, tiny, trained, tmp_path):
    source = shutil.copytree(trained, tmp_path / "source")
    c = tiny(init_from=str(source), max_steps=2, lr_decay_steps=3)
    assert run(c) == 0
    shutil.rmtree(source)
    c.max_steps, c.resume = 3, True
    assert run(c) == 0


def test_a_resumed_run_may_part_its_batches_otherwise(run, tiny, capsys):
    c = tiny(max_steps=2, lr_decay_steps=3, dropout=0.1)
    assert run(c) == 0
    c.max_steps, c.micro_batch, c.resume = 3, 4, True
    assert run(c) == 0
    said = capsys.readouterr().out
    assert "with 1 process and micro_batch = 4, begun with 1 and 0: each step has the same batch" in said
    assert "draws other dropout masks" in said


@pytest.mark.parametrize("wrong", [dict(n_embd=8), dict(wandb=True), dict(micro_batch=3)])
def test_nothing_is_labelled_for_a_run_that_cannot_begin(run, tiny, trained, monkeypatch, wrong):
    """The labels of a large corpus take hours."""
    monkeypatch.setattr("training.text.Labels", None)
    monkeypatch.setattr(train, "missing", lambda *names: list(names))
    with pytest.raises(ValueError, match="another size|wandb is not installed|micro_batch"):
        run(tiny(init_from=str(trained), **wrong))


def test_a_resumed_run_says_that_the_code_of_its_head_has_changed(run, tiny, monkeypatch, capsys, tmp_path):
    """And keeps the digest that it began with."""
    c = tiny(max_steps=2, lr_decay_steps=4)
    assert run(c) == 0
    begun = recorded(c.out_dir, "head_sha256")
    assert begun == heads.head_digest("softmax")
    c.max_steps, c.resume = 3, True
    assert run(c) == 0 and "has changed" not in capsys.readouterr().out
    (tmp_path / "mine.py").write_text("# another formula")
    monkeypatch.setattr(heads, "files_of", lambda name: [tmp_path / "mine.py"])
    c.max_steps = 4
    assert run(c) == 0 and recorded(c.out_dir, "head_sha256") == begun
    assert "; the code of its head (mine.py) has changed since it began" in capsys.readouterr().out


def test_a_head_of_a_notebook_has_no_file(monkeypatch):
    mine = type("Mine", (heads.Softmax,), {"__module__": "__main__"})
    monkeypatch.setitem(heads.HEADS, "mine", mine)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "<stdin>", raising=False)
    assert [path.name for path in heads.files_of("mine")] == ["softmax.py"]
    assert heads.head_digest("mine") == heads.head_digest("softmax")


def test_a_rate_that_would_rise_is_refused(tiny):
    with pytest.raises(ValueError, match="min_lr = 0.01: the rate would rise from learning_rate = 0.001"):
        tiny(learning_rate=1e-3, min_lr=0.01).check()


def test_a_cosine_that_ends_in_the_warm_up_is_refused(tiny):
    with pytest.raises(ValueError, match="lr_decay_steps = 5 < warmup_steps = 10: make it 0"):
        tiny(warmup_steps=10, lr_decay_steps=5).check()


def test_labels_without_the_truth_are_for_the_head_that_learns_from_them(tiny):
    with pytest.raises(ValueError, match="keep_true = False: leave it out; only the head 'sigmoid' learns"):
        tiny(head="soft_targets", labels="hard", keep_true=False).check()


def test_sgd_without_momentum(run, tiny):
    c = tiny(optimizer="sgd", beta1=0.0, max_steps=2, lr_decay_steps=3)
    assert run(c) == 0
    c.max_steps, c.resume = 3, True
    assert run(c) == 0


def test_a_run_whose_cosine_has_an_end_of_its_own_goes_on_after_it(run, tiny, tmp_path, equal_state):
    c = tiny(max_steps=4)
    whole = tiny(max_steps=8, lr_decay_steps=4, out_dir=str(tmp_path / "whole"))
    assert run(c) == run(whole) == 0
    c.resume, c.max_steps = True, 8
    with pytest.raises(ValueError, match="max_steps.* was 4 and is now 8"):
        run(c)
    c.lr_decay_steps = 4
    assert run(c) == 0
    assert equal_state(weights(c.out_dir), weights(whole.out_dir))
    assert curve(c.out_dir, "lr") == curve(whole.out_dir, "lr")


def test_fewer_steps_than_are_done_are_refused(run, tiny):
    c = tiny(max_steps=4, lr_decay_steps=9)
    assert run(c) == 0
    c.resume, c.max_steps = True, 3
    with pytest.raises(ValueError, match="max_steps = 3, but .* is at step 4"):
        run(c)


def test_resume_with_a_retrained_teacher_is_refused(run, tiny, trained, tmp_path):
    teacher = tmp_path / "teacher"
    shutil.copytree(trained, teacher)
    labels = dict(head="sigmoid", labels="soft", teacher=str(teacher), candidates=3, label_store=False)
    c = tiny(**labels, lr_decay_steps=6, max_steps=2)
    assert run(c) == 0
    other = {k: v * 1.01 for k, v in weights(teacher, "best").items()}
    save_file(other, teacher / "best" / "model.safetensors")
    c.resume, c.max_steps = True, 4
    with pytest.raises(ValueError, match="teacher_sha256"):
        run(c)


def test_resume_on_another_validation_text_is_refused(run, tiny, token_folder, tmp_path):
    """Its best checkpoint would be judged by two texts. A run that does not say which it had goes on."""
    c = tiny(max_steps=2, lr_decay_steps=4)
    assert run(c) == 0
    folder = shutil.copytree(token_folder, tmp_path / "tokens")
    for end in ("bin", "json"):
        shutil.copy(folder / f"test.{end}", folder / f"validation.{end}")
    c.resume, c.max_steps = True, 3
    with pytest.raises(ValueError, match="validation_sha256 was '.{64}' and is now"):
        run(c, folder)
    record = Path(c.out_dir) / "last" / "config.json"
    config = json.loads(record.read_text())
    assert config.pop("validation_sha256")
    record.write_text(json.dumps(config))
    assert run(c, folder) == 0


def explode(monkeypatch, step: int) -> None:
    """An absurd learning rate in training step `step` (from 1)."""
    real = train.learning_rate
    monkeypatch.setattr(train, "learning_rate", lambda c, s: 1e30 if s + 1 == step else real(c, s))


def test_divergence_stops_and_keeps_the_last_good_checkpoint(run, tiny, monkeypatch, capsys, equal_state):
    c = tiny(eval_interval=3, max_steps=9)
    explode(monkeypatch, 4)
    assert run(c) == 1
    said = capsys.readouterr().out
    assert "step 5: the " in said and "is not finite" in said and f"{c.out_dir}/last (step 3)" in said
    assert progress(c.out_dir)["step"] == progress(c.out_dir, "best")["step"] == 3
    assert all(w.isfinite().all() and w.abs().max() < 10 for w in weights(c.out_dir).values())
    assert steps(c.out_dir) == [1, 2, 3, 4]


def test_divergence_before_any_checkpoint(run, tiny, monkeypatch, capsys):
    explode(monkeypatch, 1)
    assert run(tiny()) == 1
    assert "step 2" in (said := capsys.readouterr().out) and "there is no checkpoint yet" in said


def test_an_evaluation_that_is_no_number_overwrites_nothing(run, tiny, monkeypatch):
    c = tiny(eval_interval=2, max_steps=8)
    explode(monkeypatch, 4)  # the loss of step 4 is fine, the weights after it are not
    assert run(c) == 1
    assert progress(c.out_dir)["step"] == 2


# ---- precision ---------------------------------------------------------------------------------------------


@pytest.fixture
def cpu_with(monkeypatch):
    """cpu_with(True): a CPU with bfloat16; cpu_with(False): one that emulates it."""
    return lambda bf16: monkeypatch.setattr(device, "capabilities", lambda *_: {"avx512_bf16": bf16})


@pytest.mark.parametrize(
    "bf16, dtype, why",
    [
        (True, "bfloat16", "this CPU has avx512_bf16"),
        (False, "float32", "this CPU has no bfloat16 instructions"),
    ],
)
def test_auto_is_settled_said_and_kept(run, tiny, cpu_with, capsys, bf16, dtype, why):
    cpu_with(bf16)
    c = tiny(dtype="auto", max_steps=1)
    assert run(c) == 0
    said = capsys.readouterr().out
    assert f"cpu, {dtype} ({why})\n" in said and "emulated" not in said
    assert recorded(c.out_dir, "dtype") == dtype


def test_a_resume_keeps_the_dtype_wherever_it_runs(run, tiny, cpu_with, capsys):
    c = tiny(dtype="auto", max_steps=1, lr_decay_steps=9)
    cpu_with(True)
    assert run(c) == 0
    cpu_with(False)
    c.resume, c.max_steps = True, 2
    assert run(c) == 0
    said = capsys.readouterr().out
    assert said.count("is emulated") == 1
    assert "slower than in float32; the run was begun in it, and keeps it\n" in said
    assert "cpu, bfloat16 (as the run was begun)" in said
    assert progress(c.out_dir)["step"] == 2 and recorded(c.out_dir, "dtype") == "bfloat16"
    c.dtype, c.max_steps = "float32", 3
    with pytest.raises(ValueError, match="dtype was 'bfloat16' and is now 'float32'"):
        run(c)


def test_an_emulated_dtype_that_is_asked_for_is_warned_of(trainer, tiny, cpu_with, capsys):
    cpu_with(False)
    trainer(tiny(dtype="bfloat16"))
    said = "bfloat16 is emulated on this CPU: matrix products are slower than in float32"
    assert f"{said}; --dtype=auto takes float32\n" in capsys.readouterr().out


def test_the_label_store_is_of_the_settled_dtype(trainer, tiny, trained, cpu_with):
    cpu_with(True)
    labels = dict(labels="soft", teacher=str(trained), candidates=3, label_store=False)
    t = trainer(tiny(dtype="auto", head="sigmoid", **labels))
    assert t.source.labels.source.teacher.dtype == "bfloat16"


def test_float16_learns_what_float32_learns(trainer, tiny):
    losses = {}
    for dtype in ("float32", "float16"):
        t = trainer(tiny(dtype=dtype, learning_rate=1e-2))
        losses[dtype] = [t.train_step().item() for _ in range(6)]
    assert losses["float16"] == pytest.approx(losses["float32"], abs=0.02)
    assert losses["float16"] != losses["float32"]
    assert losses["float16"][-1] < losses["float16"][0] - 0.3


SPLIT = [dict(), dict(micro_batch=2), dict(head="sigmoid", bayesian=True)]


@pytest.mark.parametrize("changes", SPLIT, ids=str)
def test_float16_gradients_are_unscaled_before_they_are_clipped(trainer, tiny, changes):
    """Of every micro-batch, and of the KL, which has a backward of its own."""
    seen = {}
    for dtype in ("float32", "float16"):
        t = trainer(tiny(dtype=dtype, grad_clip=0.1, kl_weight=100.0, **changes))
        parameters = dict(t.model.named_parameters())
        t.optimizer.step = lambda: seen.update({dtype: {n: p.grad.clone() for n, p in parameters.items()}})
        t.optimizer._step_supports_amp_scaling = False  # the scaler calls a step that knows nothing of it
        t.train_step()
    for name, want in seen["float32"].items():
        atol = 0.01 * want.abs().max().item()
        torch.testing.assert_close(seen["float16"][name], want, rtol=0.05, atol=atol)


def test_a_resumed_float16_run_is_the_unbroken_run(run, tiny, tmp_path, equal_state):
    """The scale has moved before the break, so a resume that began at the usual one would not be the same."""
    whole = tiny(dtype="float16", max_steps=4, lr_decay_steps=4)
    broken = tiny(dtype="float16", max_steps=2, lr_decay_steps=4, out_dir=str(tmp_path / "broken"))
    with pytest.MonkeyPatch.context() as patch:
        begins = functools.partialmethod(torch.amp.GradScaler.__init__, init_scale=2.0**30, growth_interval=3)
        patch.setattr(torch.amp.GradScaler, "__init__", begins)
        assert run(whole) == 0 and run(broken) == 0
    broken.resume, broken.max_steps = True, 4
    assert run(broken) == 0
    a, b = (checkpoint.load(Path(o) / "last", optimizer=True) for o in (whole.out_dir, broken.out_dir))
    assert equal_state(a.weights, b.weights) and equal_state(a.optimizer["state"], b.optimizer["state"])
    assert a.optimizer["scaler"] == b.optimizer["scaler"] and a.optimizer["scaler"]["scale"] != 2.0**16
    assert curve(whole.out_dir) == curve(broken.out_dir)


def test_a_checkpoint_without_a_scaler_is_resumed(run, tiny):
    c = tiny(max_steps=1, lr_decay_steps=9)
    assert run(c) == 0
    path = Path(c.out_dir) / "last" / "optimizer.pt"
    state = torch.load(path, weights_only=True)
    del state["scaler"]
    torch.save(state, path)
    c.resume, c.max_steps = True, 2
    assert run(c) == 0


def weights_now(t: train.Trainer) -> dict:
    return {n: p.detach().clone() for n, p in t.model.named_parameters()}


def test_a_float16_step_whose_gradient_overflows_is_skipped(trainer, tiny, capsys, equal_state):
    t = trainer(tiny(dtype="float16"))
    t.train_step()
    before, scale = weights_now(t), t.scaler.get_scale()
    hook = t.model.trunk.wpe.weight.register_hook(lambda g: torch.full_like(g, math.inf))
    assert math.isfinite(t.train_step())
    hook.remove()
    assert equal_state(before, weights_now(t)) and t.step == 2 and t.scaler.get_scale() == scale / 2
    said = capsys.readouterr().out
    assert f"step 2 is skipped: its gradient overflows float16; the loss scale is now {scale / 2:g}\n" in said
    t.train_step()
    assert not equal_state(before, weights_now(t)) and all(p.isfinite().all() for p in t.model.parameters())


def test_float16_gradients_that_overflow_at_any_scale_diverge(trainer, tiny):
    t = trainer(tiny(dtype="float16", max_steps=100))
    t.model.trunk.wpe.weight.register_hook(lambda g: torch.full_like(g, math.inf))
    with pytest.raises(train.Diverged, match="overflows float16 at any scale"):
        for _ in range(40):
            t.train_step()
    assert t.scaler.get_scale() < train.SMALLEST_SCALE and t.step == 16


def test_a_float16_loss_that_is_not_finite_diverges_at_once(trainer, tiny):
    t = trainer(tiny(dtype="float16"))
    with torch.no_grad():
        t.model.trunk.ln_f.bias.fill_(math.inf)
    t.train_step()
    with pytest.raises(train.Diverged, match="step 1: the loss or its gradient is not finite"):
        t.checked_loss()


# ---- folders, starts, mistakes -----------------------------------------------------------------------------


def test_a_folder_in_use_is_refused(run, tiny):
    c = tiny(max_steps=1)
    with checkpoint.in_use(Path(c.out_dir)), pytest.raises(ValueError, match="in use by another run"):
        run(c)


OTHER_RUNS = dict(head="sigmoid", n_embd=16, n_layer=2, seed=1, batch_size=4, learning_rate=0.02, dropout=0.1)
OTHER_RUNS |= dict(bayesian=True, lr_decay_steps=9, max_steps=9, dtype="float16")


@pytest.fixture(scope="module")
def stopped(token_folder, tmp_path_factory) -> train.TrainConfig:
    """A run of three steps that a signal stopped after the second. Read only."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    config = train.TrainConfig(**TINY | dict(name="tiny", out_dir=str(out), max_steps=3))
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 2, lambda: signal.raise_signal(signal.SIGTERM))
        assert train_in_process(config, token_folder) == 143
    return config


def contents(folder) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


@pytest.mark.parametrize("key, value", OTHER_RUNS.items())
def test_resuming_something_else_is_refused(run, stopped, key, value):
    before = contents(stopped.out_dir)
    with pytest.raises(ValueError, match=rf"{key}\b.*{value}|{value}.*{key}") as refused:
        run(replace(stopped, resume=True, **{key: value}))
    assert f"--init_from={stopped.out_dir} with a new --out_dir" in str(refused.value)
    assert contents(stopped.out_dir) == before


def test_a_runs_folder_is_its_configuration(run, stopped, token_folder, tmp_path, monkeypatch, equal_state):
    """--resume FOLDER goes on as the run began, wherever the folder lies; without --resume it starts anew."""
    monkeypatch.setattr(training.text, "prepared", lambda *_: token_folder)
    moved = shutil.copytree(stopped.out_dir, tmp_path / "moved")
    with handlers_kept():
        assert train.main(["--resume", str(moved)]) == 0
        assert train.main([str(moved), f"--out_dir={tmp_path / 'anew'}"]) == 0
    assert equal_state(weights(moved), weights(tmp_path / "anew"))
    again, anew = (checkpoint.load(tmp_path / name / "last") for name in ("moved", "anew"))
    same = {key: value for key, value in again.config.items() if key != "out_dir"}
    assert same == {key: value for key, value in anew.config.items() if key != "out_dir"}
    assert again.config["resume"] is False and again.config["name"] == "tiny" and again.config["row"] == ""
    assert again.progress["step"] == 3
    with pytest.raises(ValueError, match="holds a run already"):
        train.main([str(moved)])
    with pytest.raises(ValueError, match="seed was 1337 and is now 3"):
        train.main(["--resume", str(moved), "--seed=3"])
    with pytest.raises(OSError, match="config.json"):
        train.main(["--resume", str(tmp_path)])


def test_a_changed_bit_of_the_weights_is_not_resumed(run, stopped, tmp_path):
    out = shutil.copytree(stopped.out_dir, tmp_path / "out")
    file = out / "last" / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    c = replace(stopped, resume=True, out_dir=str(out))
    with pytest.raises(ValueError, match="model.safetensors.*SHA-256"):
        run(c)
    progress_file = out / "last" / "progress.json"
    before = json.loads(progress_file.read_text())
    del before["weights_sha256"]  # of an earlier version
    progress_file.write_text(json.dumps(before))
    assert run(c) == 0


def test_the_rates_of_a_resumed_run_are_the_configurations(run, stopped, tmp_path, equal_state):
    """Whatever optimizer.pt says of them."""
    ends = []
    for wrong in ({}, {"lr": "x", "weight_decay": "x", "betas": "x"}):
        out = shutil.copytree(stopped.out_dir, tmp_path / f"out{len(ends)}")
        file = out / "last" / "optimizer.pt"
        state = torch.load(file, weights_only=True)
        for group in state["param_groups"]:
            group |= wrong
        torch.save(state, file)
        assert run(replace(stopped, resume=True, out_dir=str(out))) == 0
        ends.append(weights(out))
    assert equal_state(*ends)


def test_a_folder_with_a_run_is_refused(run, stopped):
    before = contents(stopped.out_dir)
    with pytest.raises(ValueError, match="holds a run already: --resume"):
        run(stopped)
    assert contents(stopped.out_dir) == before


def test_init_from_a_run(trainer, run, tiny, trained, tmp_path, capsys):
    want = weights(trained, "best")
    for path in (trained, trained / "best"):
        t = trainer(tiny(init_from=str(path)))
        assert t.step == 0 and all(torch.equal(p, want[n]) for n, p in t.model.named_parameters())
    capsys.readouterr()
    t = trainer(tiny(init_from=str(trained), head="sigmoid"))
    # what the other head lacks stays as initialised, and it says so
    assert "as initialised: head.projection.bias" in capsys.readouterr().out
    assert torch.equal(t.model.trunk.wte.weight, want["trunk.wte.weight"])
    assert (t.model.head.projection.bias == -math.log(VOCAB)).all()
    assert "its gain" not in capsys.readouterr().out
    trainer(tiny(init_from=str(trained), gain=2.5, learn_gain=True))
    assert "its gain was 1, here 2.5\n" in capsys.readouterr().out
    learnt = tiny(name="learnt", out_dir=str(tmp_path / "learnt"), gain=1.5, learn_gain=True, max_steps=2)
    assert run(learnt) == 0
    again = trainer(tiny(init_from=learnt.out_dir, gain=2.5, learn_gain=True))
    assert (
        float(again.model.head.gain.detach()) == pytest.approx(2.5)
        and ", here 2.5\n" in capsys.readouterr().out
    )
    with pytest.raises(ValueError, match="init_from.*another size"):
        trainer(tiny(init_from=str(trained), n_embd=16))


@pytest.mark.parametrize(
    "head, args, lacks",
    [("stop_gradient", {"of": "entmax15"}, ""), ("taylor", {"n": 6}, "head.projection.bias")],
)
def test_heads_for_fine_tuning_start_from_another_heads_run(run, tiny, trained, capsys, head, args, lacks):
    c = tiny(init_from=str(trained), head=head, head_args=args, max_steps=3, eval_interval=3)
    assert run(c) == 0
    out = capsys.readouterr().out
    assert f"started from {trained}" + (f"; as initialised: {lacks}" if lacks else "") + "\n" in out
    assert steps(c.out_dir, "val_nll") == [3]
    start, end = (weights(*which)["trunk.wte.weight"] for which in ((trained, "best"), (c.out_dir, "last")))
    assert not torch.equal(start, end)


def test_a_head_with_exact_zeros_trains_while_its_perplexity_is_infinite(run, tiny, capsys):
    c = tiny(head="sparsemax", max_steps=4, eval_interval=2)
    assert run(c) == 0
    out = capsys.readouterr().out
    assert "validation inf nats/token, perplexity inf, PPL_eps " in out and " (best)" in out
    assert "best validation PPL_eps " in out
    best = progress(c.out_dir, "best")
    assert best["val_nll"] == math.inf and math.isfinite(best["best_val_nll"])
    c.resume = True
    assert run(c) == 0


@pytest.fixture
def gpt2_folder(tmp_path, token_folder):
    def make(block=16) -> GPT:
        torch.manual_seed(5)
        trunk = GPT(GPTConfig(VOCAB, block, 1, 2, 32))
        to_gpt2(trunk, tmp_path / "gpt2")
        shutil.copy(token_folder / "tokenizer.json", tmp_path / "gpt2")
        return trunk

    return make


def test_init_from_says_what_it_does_not_use(run, trainer, tiny, tmp_path, capsys):
    untied = tiny(tied=False, max_steps=1, out_dir=str(tmp_path / "untied"))
    assert run(untied) == 0
    trainer(tiny(init_from=untied.out_dir))
    assert capsys.readouterr().out.endswith("; not used: head.projection.weight\n")


def test_init_from_another_trunk_is_refused(trainer, tiny, trained):
    """Whose tensors have the same names and shapes, or some of them."""
    for changes, wanted in (({"trunk": "modern", "tied": False}, "'modern', 2"), ({"n_head": 4}, "'gpt', 4")):
        with pytest.raises(ValueError, match=rf"n_head \('gpt', 2\), this configuration \({wanted}\)"):
            trainer(tiny(init_from=str(trained), **changes))


def test_init_from_a_transformers_folder(trainer, tiny, tmp_path, gpt2_folder):
    want = dict(gpt2_folder().named_parameters())
    t = trainer(tiny(init_from=str(tmp_path / "gpt2")))
    assert all(torch.equal(p, want[n]) for n, p in t.model.trunk.named_parameters())


def test_init_from_a_longer_block_takes_its_first_positions(trainer, tiny, tmp_path, gpt2_folder):
    want = gpt2_folder(block=32)
    t = trainer(tiny(init_from=str(tmp_path / "gpt2")))
    assert torch.equal(t.model.trunk.wpe.weight, want.wpe.weight[:16])


@pytest.mark.parametrize(
    "flags, says",
    [
        ("--batch_size=0 --grad_clip=-1.0", ["batch_size = 0", "grad_clip = -1.0"]),
        ("--labels=soft", ["labels = 'soft': the head 'softmax' takes the true token alone"]),
        ("--labels=both", ["labels = 'both'"]),
        ("--head=sigmoid --labels=hard --label_weight=2.0", ["label_weight"]),
        ("--dtype=half", ["dtype = 'half'"]),
        ("--candidates=0", ["candidates"]),
        ("--ppl_form=half", ["ppl_form"]),
        ("--eval_steps=[25,0]", ["eval_steps", "must be at least 1"]),
        ("--eval_steps=[2.5]", ["eval_steps", "must be a valid integer"]),
    ],
)
def test_what_cannot_work_is_said_at_once(flags, says):
    with pytest.raises(ValueError) as e:
        train.TrainConfig.read(flags.split())
    assert all(part in str(e.value) for part in says)


@pytest.mark.parametrize(
    "changes, match",
    [
        (dict(head="sofmax"), "unknown head"),
        (dict(head_args={"eps": 0.1}), "head_args"),
        (dict(micro_batch=3), "micro_batch"),
        (dict(n_head=3), "n_embd"),
        (dict(dropout=1.0), "dropout"),
        (dict(device="tpu"), "device"),
        (dict(resume=True), "no checkpoint"),
        (dict(block_size=100_000), "block_size"),
        (dict(init_from="/nowhere"), "/nowhere"),
        (dict(beta1=2.0), "beta"),
        (dict(head="sigmoid", labels="soft", teacher="/nowhere"), "/nowhere"),
        (dict(block_size=0), "block_size"),
        (dict(seed=-1), "seed"),
    ],
)
def test_a_users_mistake_leaves_nothing_behind(run, tiny, changes, match):
    c = tiny(**changes)
    with pytest.raises((ValueError, OSError), match=match):
        run(c)
    assert not Path(c.out_dir).exists()


def test_help_lists_the_keys(capsys):
    assert train.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"    {key}: " in text for key in vars(train.TrainConfig()))
    assert "python train.py config/baseline.py" in text and "def " not in text


def test_wandb_only_if_asked_for(run, tiny, monkeypatch):
    class Fake:
        lines, finished = [], False

        def log(self, entry, step):
            self.lines.append((step, entry))

        def finish(self):
            self.finished = True

    assert train.TrainConfig().wandb is False
    asked, fake = [], Fake()
    monkeypatch.setattr(train, "start_wandb", lambda config, settings: asked.append(settings) or fake)
    c = tiny(max_steps=2, wandb=True)
    assert run(c) == 0 and len(asked) == 1 and asked[0]["vocab_size"] == VOCAB and fake.finished
    assert [{"step": step} | entry for step, entry in fake.lines] == log(c.out_dir)


def test_a_resumed_run_goes_on_with_its_wandb_run(run, tiny, monkeypatch):
    """And a run that begins in the same folder has another."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    c, seen, real = tiny(max_steps=2, lr_decay_steps=4, wandb=True), [], wandb.init
    monkeypatch.setattr(wandb, "init", lambda **how: seen.append((started := real(**how)).id) or started)
    assert run(c) == 0
    c.max_steps, c.resume = 4, True
    assert run(c) == 0
    folders = [path.name for path in (Path(c.out_dir) / "wandb").glob("offline-run-*")]
    assert seen[0] == seen[1] and all(name.endswith(f"-{seen[0]}") for name in folders) and folders
    for which in ("last", "best"):
        shutil.rmtree(Path(c.out_dir) / which)
    c.resume = False
    assert run(c) == 0 and seen[2] != seen[0]


# ---- a process of its own (two of them: test_processes.py) -------------------------------------------------

DEMO = dict(dataset="demo", tokenizer="bpe2048", warmup_steps=1, lr_decay_steps=50, max_steps=3)


def command(config: train.TrainConfig) -> list[str]:
    return [sys.executable, "train.py", *(f"--{k}={v}" for k, v in vars(config).items() if v != "")]


def test_sigterm_to_a_real_process(run, tiny):
    folder = prepared("demo", "bpe2048")
    c = tiny(**DEMO | dict(max_steps=1_000_000))
    path = Path(c.out_dir) / "log.jsonl"
    flags = [f"--{k}={v}" for k, v in vars(c).items() if v != ""]
    process = subprocess.Popen(
        [sys.executable, "train.py", *flags], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        for _ in range(1200):
            if path.is_file() and path.read_text().count("\n") > 3:
                break
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143, process.stderr.read()
    finally:
        process.kill()
        process.stderr.close()
    last = progress(c.out_dir)["step"]
    assert last >= 3 and steps(c.out_dir) == list(range(1, last + 1))
    c.max_steps, c.resume = last + 2, True
    assert run(c, folder) == 0
    assert steps(c.out_dir) == list(range(1, last + 3))
    assert steps(c.out_dir, "val_nll") == [*range(100, last, 100), last + 2]


def test_a_mistake_on_the_command_line_is_one_line(tmp_path):
    command = [sys.executable, str(ROOT / "train.py"), "--haed=softmax"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stdout == "" and not list(tmp_path.iterdir())
    assert done.stderr == "train.py: error: unknown key 'haed'\n"


def test_what_a_gpu_copies_is_contiguous(trainer, tiny, monkeypatch):
    """torch copies a pinned view through memory that is not pinned, and waits for it."""
    t = trainer(tiny())
    t.loader.device, pinned = torch.device("cuda"), []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: pinned.append(self) or self)
    batch = t.loader._load(0, 0)
    assert len(pinned) == 3 and all(tensor.is_contiguous() for tensor in pinned)
    assert batch.tokens is pinned[0] and tuple(batch.targets[:2]) == tuple(pinned[1:])
