"""AdamW, and Muon for the trunk's matrices beside it."""

import pytest
import torch
from torch import nn

import train
from common.errors import UserError
from tests.fixtures import seal
from training.optimizer import Muon, iteration_dtype, orthogonal


def names_of(model, params) -> set[str]:
    ids = {id(p) for p in params}
    return {name for name, p in model.named_parameters() if id(p) in ids}


def test_each_parameter_has_one_optimizer(trainer, tiny):
    t = trainer(tiny(optimizer="muon", weight_decay=0.3, learn_gain=True))
    adamw, muon = t.optimizer.parts
    held = [p for g in t.optimizer.param_groups for p in g["params"]]
    assert len(held) == len({id(p) for p in held}) == len(list(t.model.parameters()))
    linear = {f"{n}.weight" for n, m in t.model.named_modules() if isinstance(m, nn.Linear)}
    assert linear and names_of(t.model, (p for g in muon.param_groups for p in g["params"])) == linear
    assert {g["weight_decay"] for g in muon.param_groups} == {0.3} and muon.dtype == torch.float32
    kept = next(g for g in adamw.param_groups if g["weight_decay"] == 0)
    assert "head.log_gain" in names_of(t.model, kept["params"])


@pytest.mark.parametrize("harm", [lambda s: s.pop("Muon"), lambda s: s["Muon"]["state"][0].clear()])
def test_a_state_of_another_model_is_refused(run, tiny, tmp_path, harm):
    c = tiny(optimizer="muon", max_steps=2)
    assert run(c) == 0
    path = tmp_path / "out" / "last" / "optimizer.pt"
    state = torch.load(path, weights_only=True)
    harm(state)
    torch.save(state, path)
    seal(path.parent)
    c.resume = True
    with pytest.raises(UserError, match="optimizer.pt"):
        run(c)


def test_a_float16_training_steps_both(run, tiny):
    assert run(tiny(optimizer="muon", dtype="float16", max_steps=3)) == 0


def stepped(optimizer, weights, gradients) -> list[torch.Tensor]:
    for w, g in zip(weights, gradients):
        w.grad = g.clone()
    optimizer.step()
    return [w.detach() for w in weights]


@pytest.mark.parametrize("shape", [(24, 8), (8, 24), (16, 16)])
def test_muon_is_torchs_up_to_the_rounding_of_its_bfloat16(shape):
    torch.manual_seed(1)
    start, same = [torch.randn(shape) for _ in range(3)], [torch.randn(shape) for _ in range(3)]

    def after(make, steps=4):
        torch.manual_seed(2)
        weights = [nn.Parameter(w.clone()) for w in start]
        optimizer = make(weights)
        for _ in range(steps):  # gradients that have much in common, so that momentum counts
            out = stepped(optimizer, weights, [g + 0.3 * torch.randn(shape) for g in same])
        return torch.cat([(w - s).flatten() for w, s in zip(out, start)])

    theirs = after(lambda w: torch.optim.Muon(w, 0.1, 0.3, adjust_lr_fn="match_rms_adamw"))
    ours = {
        dtype: after(lambda w: Muon([{"params": w}], 0.1, 0.3, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    }
    for moved in ours.values():
        assert (moved - theirs).norm() < 0.03 * theirs.norm()
    exact = after(lambda w: Muon([{"params": w}], 0.1, 0.3, dtype=torch.float64))
    assert (ours[torch.float32] - exact).norm() < 1e-4 * exact.norm()


def test_blocks_of_a_fused_matrix_are_orthogonal_each_by_itself():
    torch.manual_seed(1)
    w = nn.Parameter(torch.zeros(24, 8))
    gradient = torch.randn(24, 8) * torch.tensor([100.0, 1.0, 0.01]).repeat_interleave(8)[:, None]
    (moved,) = stepped(Muon([{"params": [w], "blocks": 3}], 0.1, 0.0), [w], [gradient])
    apart = orthogonal(gradient.view(3, 8, 8), torch.float32).view(24, 8)
    assert torch.allclose(moved, -0.1 * 0.2 * 8**0.5 * apart, rtol=1e-4, atol=1e-5)


def test_the_fused_matrices_are_queries_keys_and_values(trainer, tiny):
    t = trainer(tiny(optimizer="muon"))
    fused = next(g for g in t.optimizer.parts[1].param_groups if g["blocks"] == 3)
    assert {n.rpartition(".")[0][-6:] for n in names_of(t.model, fused["params"])} == {"c_attn"}


def test_muon_iterates_in_what_the_run_and_the_device_compute(monkeypatch):
    cpu = torch.device("cpu")
    monkeypatch.setattr("common.device.capabilities", lambda device: {"avx512_bf16": True})
    assert iteration_dtype("bfloat16", cpu) == torch.bfloat16
    assert iteration_dtype("float32", cpu) == iteration_dtype("float16", cpu) == torch.float32
    monkeypatch.setattr("common.device.capabilities", lambda device: {})
    assert iteration_dtype("bfloat16", cpu) == torch.float32


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_readout_has_a_rate_of_its_own(trainer, tiny, optimizer):
    c = tiny(optimizer=optimizer, learning_rate=1e-3, min_lr=1e-4, readout_lr=4e-3, warmup_steps=2)
    t = trainer(c)
    for share in (0.5, 1.0):  # of the warm-up
        train.train_step(t)
        rates = {n: g["lr"] for g in t.optimizer.param_groups for n in names_of(t.model, g["params"])}
        assert rates.pop("trunk.wte.weight") == pytest.approx(4e-3 * share)
        for name in [n for n in rates if n.startswith("head.projection")]:
            assert rates.pop(name) == pytest.approx(4e-3 * share)
        assert rates and set(rates.values()) == {1e-3 * share}
