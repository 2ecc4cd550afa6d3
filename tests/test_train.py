"""Batches, one step, the loop: a run is its configuration, however it is cut up, stopped or watched."""

import contextlib
import copy
import functools
import itertools
import math
import os
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import train
import training.text
from common import device
from common.manifest import read_manifest, write_manifest
from data.batches import Windows, batch_indices
from data.tokens import open_tokens
from evaluate.scoring import Score
from heads import named_head
from tables.curve import evaluations
from tests.fixtures import TINY, VOCAB, curve, log, progress, same_tensors, seal, train_in_process, weights
from training import checkpoint
from training.run import Run, difference

# every source of randomness but dropout
SIG = dict(head="sigmoid", bayesian=True, labels="soft", candidates=5)


def steps(out, key="loss") -> list[int]:
    return [entry["step"] for entry in log(out) if key in entry]


def recorded(out, key: str):
    """What the configuration of a run's last checkpoint says."""
    return getattr(Run(out, "last").config, key)


@pytest.mark.parametrize("n, batch", [(12, 4), (10, 4), (7, 3), (3, 8)])
def test_every_epoch_visits_each_window_once(n, batch):
    order = np.concatenate([batch_indices(n, batch, step, seed=1) for step in range(5 * n)])
    epochs = order.reshape(-1, n)[:4]
    assert all(sorted(e) == list(range(n)) for e in epochs.tolist())
    assert len({tuple(e) for e in epochs.tolist()}) > 1  # each in an order of its own
    # asked out of order, the same
    np.testing.assert_array_equal(batch_indices(n, batch, 4, 1), order[4 * batch : 5 * batch])
    assert batch_indices(n, 5 * n, 0, seed=2).tolist() != order[: 5 * n].tolist()


def test_windows(token_folder):
    tokens = open_tokens(token_folder / "train.bin")
    w = Windows(tokens, 16)
    assert len(w) == (len(tokens.ids) - 1) // 16
    x, y = w.get(np.array([2, len(w) - 1]))
    assert x.dtype == y.dtype == torch.int64 and x.shape == y.shape == (2, 16)
    assert x[0].tolist() == tokens.ids[32:48].tolist() and y[0].tolist() == tokens.ids[33:49].tolist()
    with pytest.raises(ValueError, match="block_size"):
        Windows(tokens, len(tokens.ids))


@pytest.mark.parametrize("micro_batch", [0, 2])
def test_the_loader_loads_what_is_asked(trainer, tiny, micro_batch, monkeypatch):
    t = trainer(tiny(micro_batch=micro_batch))
    for step in range(3):
        for part, batch in enumerate(t.loader.batches(step)):
            want = t.loader.source.batch(step, part)
            assert torch.equal(batch.tokens, want.tokens) and torch.equal(batch.targets.ids, want.targets.ids)
    # as after a resume: what was loaded for another step is not taken for this one
    batch, *_ = t.loader.batches(17)
    assert torch.equal(batch.tokens, t.loader.source.batch(17, 0).tokens)
    monkeypatch.setattr(t.task.windows, "get", lambda indices: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # an error of the loader reaches the loop
        train.train_step(t)


# ---- one step ----------------------------------------------------------------------------------------------


def gradients(t: train.Training) -> tuple[float, dict]:
    """The loss of the next step and the gradients that the optimizer would see; the model stays as it is."""
    seen = {}
    t.optimizer.step = lambda: seen.update({n: p.grad.clone() for n, p in t.model.named_parameters()})
    return train.train_step(t).item(), seen


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


@pytest.mark.parametrize("begun", [False, True])
def test_a_bias_starts_at_the_log_frequencies(trainer, tiny, trained, begun):
    """Also where the other weights are those of a run that has no bias."""
    t = trainer(tiny(head="sigmoid", unigram_bias=True, init_from=str(trained) if begun else ""))
    ids = t.task.train.ids.tolist()
    want = [math.log((ids.count(v) + 1) / (len(ids) + VOCAB)) for v in range(VOCAB)]
    torch.testing.assert_close(t.model.head.projection.bias.data, torch.tensor(want))


def test_sampled_softmax_draws_by_the_frequencies_of_the_text(trainer, tiny):
    t = trainer(tiny(head="sampled_softmax", head_args={"samples": 7}))
    counts = np.bincount(t.task.train.ids, minlength=VOCAB) + 1
    want = named_head("sampled_softmax", VOCAB, {"samples": 7})
    want.use_frequencies(torch.from_numpy(counts))
    torch.testing.assert_close(t.model.head.head.log_pi, want.log_pi)
    assert want.log_pi.min() < want.log_pi.max()


def test_learning_rate():
    c = train.TrainConfig(learning_rate=1.0, min_lr=0.1, warmup_steps=10, max_steps=110)
    lr = lambda step: train.learning_rate(c, step)
    assert [lr(0), lr(4), lr(9)] == pytest.approx([0.1, 0.5, 1.0])
    want = [1.0, 0.1 + 0.45 * (1 + math.sqrt(0.5)), 0.55, 0.1, 0.1]
    assert [lr(10), lr(35), lr(60), lr(110), lr(500)] == pytest.approx(want)
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
    parts = [*itertools.product([1337, 1338], [1, 2], range(100), range(4))]
    seen = {train.derived_seed(*each) for each in parts}
    assert len(seen) == len(parts) and all(0 <= s < 2**62 for s in seen)


# ---- the loop ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [dict(dropout=0.3), SIG | dict(dropout=0.1), dict(optimizer="muon")])
def test_a_resumed_run_is_the_unbroken_run(run, tiny, trained, tmp_path, kind):
    c = tiny(lr_decay_steps=6, teacher=str(trained), **kind)
    half, whole = copy.copy(c), copy.copy(c)
    half.max_steps, whole.out_dir = 3, str(tmp_path / "whole")
    assert run(half) == run(whole) == 0
    at_three = weights(c.out_dir)
    c.resume = True
    assert run(c) == 0
    assert same_tensors(weights(c.out_dir), weights(whole.out_dir))
    assert not same_tensors(weights(c.out_dir), at_three)
    assert same_tensors(*(Run(out, "last").optimizer() for out in (c.out_dir, whole.out_dir)))
    for out in (c.out_dir, whole.out_dir):
        assert progress(out)["step"] == 6 and progress(out)["tokens"] == 6 * 8 * 16
    assert steps(c.out_dir) == [1, 2, 3, 4, 5, 6] and curve(c.out_dir) == curve(whole.out_dir)
    assert progress(c.out_dir)["best_val_nll"] == min(e["val_nll"] for e in log(c.out_dir) if "val_nll" in e)


@pytest.mark.parametrize("tail", ['{"step": 3, "loss": 1.0}\n{"step": 4, "loss": 1.0}\n', '{"step": 3, "lo'])
def test_a_resume_drops_what_the_log_has_after_the_checkpoint(run, tiny, tail):
    c = tiny(max_steps=2, lr_decay_steps=4)
    assert run(c) == 0
    with open(Path(c.out_dir) / "log.jsonl", "a") as f:
        f.write(tail)
    c.max_steps, c.resume = 4, True
    assert run(c) == 0 and steps(c.out_dir) == [1, 2, 3, 4] and steps(c.out_dir, "val_nll") == [2, 4]


def test_watching_does_not_disturb(run, tiny):
    """Often or seldom, at chosen steps, of a part, with others after a resume; always at the end, of all."""

    def out_of(name: str, **watching) -> str:
        c = tiny(dropout=0.2, bayesian=True, lr_decay_steps=6, out_dir=f"{tiny().out_dir}-{name}", **watching)
        assert run(c) == 0
        if c.max_steps == 5:
            c.max_steps, c.resume, c.eval_steps = 6, True, [2]
            assert run(c) == 0
        return c.out_dir

    often, seldom = out_of("often", eval_interval=1), out_of("seldom", eval_interval=5, log_interval=5)
    chosen = out_of("chosen", eval_interval=1, eval_steps=[4, 1])
    resumed = out_of("resumed", max_steps=5, eval_steps=[3])
    part = out_of("part", eval_interval=2, eval_windows=3)
    at = {often: [1, 2, 3, 4, 5, 6], seldom: [5, 6], chosen: [1, 4, 6], resumed: [3, 5, 6], part: [2, 4, 6]}
    assert {out: steps(out, "val_nll") for out in at} == at
    assert steps(often) == at[often] and steps(seldom) == at[seldom]
    assert all(same_tensors(weights(out), weights(often)) for out in at)
    mine, whole = ([e for e in log(out) if "val_nll" in e and e["step"] in at[part]] for out in (part, often))
    assert [e.get("val_windows") for e in mine] == [3, 3, None]
    assert all(e["val_nll"] != w["val_nll"] for e, w in zip(mine[:2], whole))
    judged = [e["val_nll"] for e in mine[:2]] + [mine[2].pop("val_nll_windows")]
    assert mine[2] == whole[2] and progress(part)["best_val_nll"] == min(judged)
    assert [e["step"] for e in evaluations(Path(part))] == [6]  # what a table's curve is made of


def test_best_is_the_best(run, tiny, monkeypatch):
    """Of a finished run that has lost it: the best of what is left."""
    values = iter((3.0, 2.0, 4.0))  # what the evaluations find
    score = lambda self, evaluator, order, part: Score(next(values), 1, 0, 1.0)
    monkeypatch.setattr(training.text.TextTask, "validation_score", score)
    c = tiny(eval_interval=2)
    assert run(c) == 0
    for which, step, nll in (("best", 4, 2.0), ("last", 6, 4.0)):
        nlls = {"val_nll": nll, "judged_nll": nll, "best_val_nll": 2.0}
        assert progress(c.out_dir, which) == {"step": step, "tokens": step * 8 * 16, **nlls}
    assert not (Path(c.out_dir) / "best" / "optimizer.pt").exists()
    assert (Path(c.out_dir) / "last" / "optimizer.pt").is_file()
    shutil.rmtree(Path(c.out_dir) / "best")
    c.resume = True
    assert run(c) == 0 and progress(c.out_dir, "best")["step"] == 6


@pytest.mark.parametrize("error", [OSError("disk full"), None])
def test_whatever_ends_a_training_its_tracker_is_told(run, tiny, monkeypatch, error):
    told: list[int] = []
    tracker = SimpleNamespace(log=lambda *_, **__: None, finish=lambda exit_code: told.append(exit_code))
    monkeypatch.setattr(train, "start_wandb", lambda *_: tracker)
    if error:
        at_step(monkeypatch, 3, functools.partial(throw, error))
    with pytest.raises(OSError, match="disk full") if error else contextlib.nullcontext():
        run(tiny(wandb=True))
    assert told == [1 if error else 0]


def throw(error: Exception) -> None:
    raise error


def at_step(monkeypatch, step: int, act) -> None:
    """Calls `act` just before training step `step` (from 1)."""
    real = train.train_step

    def train_step(t):
        if t.progress.step + 1 == step:
            act()
        return real(t)

    monkeypatch.setattr(train, "train_step", train_step)


@pytest.mark.parametrize("sig, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_saves_and_stops(run, tiny, tmp_path, monkeypatch, sig, code):
    c = tiny(dropout=0.2)
    at_step(monkeypatch, 3, lambda: signal.raise_signal(sig))
    assert run(c) == code
    assert progress(c.out_dir)["step"] == 3
    monkeypatch.undo()
    c.resume = True
    whole = tiny(dropout=0.2, out_dir=str(tmp_path / "whole"))
    assert run(c) == run(whole) == 0 and same_tensors(weights(c.out_dir), weights(whole.out_dir))


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
    monkeypatch.setattr(os, "dup2", lambda new, old: away.append(new))
    monkeypatch.setattr(sys, "stdout", open(os.devnull, "w"))
    assert run(c) == 129 and progress(c.out_dir)["step"] == 3 and away


@pytest.mark.parametrize(
    "save, more", [*((save, {}) for save in range(4)), (1, {"head": "sparsemax"}), (1, {"eval_windows": 2})]
)
def test_killed_at_any_save_a_run_goes_on(run, tiny, tmp_path, monkeypatch, save, more):
    """Also between `last` and the first `best`; in the end both are those of the unbroken run."""
    c, whole = (tiny(eval_interval=3, **at, **more) for at in ({}, {"out_dir": str(tmp_path / "whole")}))
    real, left = checkpoint.save, iter(range(save))

    def saving(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", saving)
        with pytest.raises(KeyboardInterrupt):
            run(c)
    c.resume = save > 0  # before the first save nothing is there, and a new start is accepted
    if save == 1:
        c.max_steps = 6
        assert not (Path(c.out_dir) / "best").exists() and (Path(c.out_dir) / "last").is_dir()
    assert run(c) == run(whole) == 0
    for which in ("best", "last"):
        assert same_tensors(weights(c.out_dir, which), weights(whole.out_dir, which))
        assert progress(c.out_dir, which) == progress(whole.out_dir, which)


def test_a_run_whose_cosine_has_an_end_of_its_own_goes_on_after_it(run, tiny, tmp_path):
    c = tiny(max_steps=4)
    whole = tiny(max_steps=8, lr_decay_steps=4, out_dir=str(tmp_path / "whole"))
    assert run(c) == run(whole) == 0
    c.resume, c.max_steps = True, 8
    with pytest.raises(ValueError, match="max_steps"):
        run(c)
    c.lr_decay_steps = 4
    assert run(c) == 0
    assert same_tensors(weights(c.out_dir), weights(whole.out_dir))
    assert curve(c.out_dir, "lr") == curve(whole.out_dir, "lr")


def test_another_teacher_or_validation_text_is_refused(run, tiny, trained, token_folder, tmp_path):
    """By a resumed run: its best checkpoint would be judged by two texts."""
    teacher, folder = (shutil.copytree(f, tmp_path / f.name) for f in (trained, token_folder))
    c = tiny(**SIG | dict(teacher=str(teacher), lr_decay_steps=6, max_steps=2))
    assert run(c) == 0
    c.resume, c.max_steps = True, 4
    shutil.copy(folder / "test.bin", folder / "validation.bin")
    made = read_manifest(folder)
    made["splits"]["validation"] = made["splits"]["test"]
    write_manifest(folder, made, made.pop("files"))
    with pytest.raises(ValueError, match="validation_sha256"):
        run(c, folder)
    other = {k: v * 1.01 for k, v in weights(teacher, "best").items()}
    save_file(other, teacher / "best" / "model.safetensors")
    seal(teacher / "best")
    with pytest.raises(ValueError, match="teacher_sha256"):
        run(c)


@pytest.mark.parametrize("interval, kept", [(3, 3), (2, 2)], ids=["in a step", "in an evaluation"])
def test_divergence_stops_and_keeps_the_last_good_checkpoint(run, tiny, monkeypatch, interval, kept):
    c, rate = tiny(eval_interval=interval, max_steps=9), train.learning_rate
    # an absurd one in step 4: its loss is fine, the weights after it are not
    monkeypatch.setattr(train, "learning_rate", lambda c, step: 1e30 if step == 3 else rate(c, step))
    assert run(c) == 1 and "diverged" in log(c.out_dir)[-1]
    assert progress(c.out_dir)["step"] == progress(c.out_dir, "best")["step"] == kept
    assert all(w.isfinite().all() and w.abs().max() < 10 for w in weights(c.out_dir).values())
    assert steps(c.out_dir) == [1, 2, 3, 4]


# ---- precision ---------------------------------------------------------------------------------------------


def test_a_resume_keeps_the_dtype_and_the_commit_that_began_it(run, tiny, monkeypatch, capsys):
    """Wherever it runs; it says that another commit goes on."""
    has_bfloat16 = lambda yes: monkeypatch.setattr(device, "capabilities", lambda *_: {"avx512_bf16": yes})
    has_bfloat16(True)
    c = tiny(dtype="auto", max_steps=1, lr_decay_steps=9)
    assert run(c) == 0
    has_bfloat16(False)
    begun = recorded(c.out_dir, "commit")
    monkeypatch.setattr(train, "commit", lambda: "another commit")
    c.resume, c.max_steps = True, 2
    assert run(c) == 0 and progress(c.out_dir)["step"] == 2
    assert recorded(c.out_dir, "dtype") == "bfloat16"
    assert recorded(c.out_dir, "commit") == begun and "another commit" in capsys.readouterr().out
    c.dtype, c.max_steps = "float32", 3
    with pytest.raises(ValueError, match="dtype"):
        run(c)


@pytest.mark.parametrize("changes", [{}, dict(micro_batch=2), dict(head="sigmoid", bayesian=True)], ids=str)
def test_float16_gradients_are_unscaled_before_they_are_clipped(trainer, tiny, changes):
    """Of every micro-batch, and of the KL, which has a backward of its own."""
    seen = {}
    for dtype in ("float32", "float16"):
        t = trainer(tiny(dtype=dtype, grad_clip=0.1, kl_weight=100.0, **changes))
        parameters = dict(t.model.named_parameters())
        t.optimizer.step = lambda: seen.update({dtype: {n: p.grad.clone() for n, p in parameters.items()}})
        t.optimizer._step_supports_amp_scaling = False  # the scaler calls a step that knows nothing of it
        train.train_step(t)
    for name, want in seen["float32"].items():
        atol = 0.01 * want.abs().max().item()
        torch.testing.assert_close(seen["float16"][name], want, rtol=0.05, atol=atol)


def test_a_resumed_float16_run_is_the_unbroken_run(run, tiny, tmp_path):
    """The scale has moved before the break, so a resume that began at the usual one would not be the same."""
    whole = tiny(dtype="float16", max_steps=4, lr_decay_steps=4)
    broken = tiny(dtype="float16", max_steps=2, lr_decay_steps=4, out_dir=str(tmp_path / "broken"))
    with pytest.MonkeyPatch.context() as patch:
        begins = functools.partialmethod(torch.amp.GradScaler.__init__, init_scale=2.0**30, growth_interval=3)
        patch.setattr(torch.amp.GradScaler, "__init__", begins)
        assert run(whole) == 0 and run(broken) == 0
    broken.resume, broken.max_steps = True, 4
    assert run(broken) == 0
    a, b = (Run(c.out_dir, "last") for c in (whole, broken))
    assert same_tensors(a.weights(), b.weights()) and same_tensors(a.optimizer(), b.optimizer())
    assert a.optimizer()["scaler"]["scale"] != 2.0**16
    assert curve(whole.out_dir) == curve(broken.out_dir)


def test_a_float16_step_whose_gradient_overflows_is_skipped(trainer, tiny):
    t = trainer(tiny(dtype="float16"))
    train.train_step(t)
    weights_now = lambda: {n: p.detach().clone() for n, p in t.model.named_parameters()}
    before, scale = weights_now(), t.scaler.get_scale()
    hook = t.model.trunk.wpe.weight.register_hook(lambda g: torch.full_like(g, math.inf))
    assert math.isfinite(train.train_step(t))
    hook.remove()
    assert same_tensors(before, weights_now()) and t.progress.step == 2 and t.scaler.get_scale() == scale / 2
    train.train_step(t)
    assert not same_tensors(before, weights_now()) and all(p.isfinite().all() for p in t.model.parameters())


def test_float16_gradients_that_overflow_at_any_scale_diverge(trainer, tiny):
    t = trainer(tiny(dtype="float16", max_steps=100))
    t.model.trunk.wpe.weight.register_hook(lambda g: torch.full_like(g, math.inf))
    with pytest.raises(train.Diverged):
        for _ in range(40):
            train.train_step(t)
    assert t.scaler.get_scale() < train.SMALLEST_SCALE and t.progress.step == 16


# ---- folders, starts, mistakes -----------------------------------------------------------------------------


OTHER_RUNS = dict(head="sigmoid", n_embd=16, learning_rate=0.02, max_steps=1, row="c", overlay="c")


@pytest.fixture(scope="module")
def stopped(token_folder, tmp_path_factory) -> train.TrainConfig:
    """A run of three steps that a signal stopped after the second. Read only."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    named = dict(name="tiny", row="a", overlay="b")
    config = train.TrainConfig(**TINY | named | dict(out_dir=str(out), max_steps=3))
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 2, lambda: signal.raise_signal(signal.SIGTERM))
        assert train_in_process(config, token_folder) == 143
    return config


def contents(folder) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


@pytest.mark.parametrize("key, value", OTHER_RUNS.items())
def test_resuming_something_else_is_refused(run, stopped, key, value):
    before = contents(stopped.out_dir)
    with pytest.raises(ValueError, match=key):
        run(replace(stopped, resume=True, **{key: value}))
    with pytest.raises(ValueError, match="--resume"):
        run(stopped)
    assert contents(stopped.out_dir) == before


def test_a_runs_folder_is_its_configuration(stopped, token_folder, tmp_path):
    """--resume FOLDER goes on as the run began, wherever the folder lies; without --resume it starts anew."""
    moved = shutil.copytree(stopped.out_dir, tmp_path / "moved")
    for argv in (["--resume", str(moved)], [str(moved), f"--out_dir={tmp_path / 'anew'}"]):
        assert train_in_process(stopped, token_folder, lambda flags: train.main(argv)) == 0
    assert same_tensors(weights(moved), weights(tmp_path / "anew"))
    again, anew = (Run(tmp_path / name, "last") for name in ("moved", "anew"))
    assert not difference(vars(again.config), vars(anew.config), but={"out_dir"})
    assert again.config.resume is False and again.config.name == "tiny" and again.config.row == "a"
    assert again.progress.step == 3
    with pytest.raises(OSError, match="config.json"):
        train.main(["--resume", str(tmp_path)])


def test_init_from_a_run(trainer, run, tiny, trained, tmp_path):
    want = weights(trained, "best")
    for path in (trained, trained / "best"):
        t = trainer(tiny(init_from=str(path)))
        assert t.progress.step == 0 and all(torch.equal(p, want[n]) for n, p in t.model.named_parameters())
    t = trainer(tiny(init_from=str(trained), head="sigmoid"))  # what it lacks stays as initialised
    assert torch.equal(t.model.trunk.wte.weight, want["trunk.wte.weight"])
    assert (t.model.head.projection.bias == -math.log(VOCAB)).all()
    learnt = tiny(name="learnt", out_dir=str(tmp_path / "learnt"), gain=1.5, learn_gain=True, max_steps=2)
    assert run(learnt) == 0
    again = trainer(tiny(init_from=learnt.out_dir, gain=2.5, learn_gain=True))
    assert float(again.model.head.gain.detach()) == pytest.approx(2.5)
    # whose tensors may have the same names and shapes
    for other in (dict(n_embd=16), dict(n_head=4), dict(block_size=32)):
        with pytest.raises(ValueError, match="init_from"):
            trainer(tiny(init_from=str(trained), **other))


@pytest.mark.slow
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
