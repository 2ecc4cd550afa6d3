"""AdamW, and Muon for the trunk's matrices beside it."""

import pytest
import torch
from torch import nn

from runtime.errors import UserError
from runtime.optimizer import Several, make_optimizer


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
    assert {g["weight_decay"] for g in muon.param_groups} == {0.3}
    kept = next(g for g in adamw.param_groups if g["weight_decay"] == 0)
    assert "head.log_gain" in names_of(t.model, kept["params"])


def test_a_step_of_a_matrix_is_orthogonal_and_as_large_as_adamws(trainer, tiny):
    """Up to the five iterations: singular values are within .7 and 1.2 of 0.2 lr sqrt(longest side)."""
    t = trainer(tiny(optimizer="muon", weight_decay=0.0, warmup_steps=0, learning_rate=1e-2))
    before = {n: p.detach().clone() for n, p in t.model.named_parameters()}
    t.train_step()
    for n, p in t.model.named_parameters():
        if n.endswith("mlp.c_fc.weight"):
            size = 1e-2 * 0.2 * max(p.shape) ** 0.5
            values = torch.linalg.svdvals(p.detach() - before[n]) / size
            assert 0.5 < values.median() and values.max() < 1.3
        assert not torch.equal(p, before[n]) or n.endswith("bias")


def test_a_trunk_without_linear_layers_is_refused(trainer, tiny):
    model = trainer(tiny()).model
    model.trunk = nn.LayerNorm(8)
    with pytest.raises(UserError, match="optimizer = 'muon': the trunk has no linear layers"):
        make_optimizer(model, "muon", 1e-3, (0.9, 0.95), 0.1)


@pytest.mark.parametrize("had, now", [("adamw", "muon"), ("muon", "adamw")])
def test_another_optimizer_is_another_run(run, tiny, had, now):
    c = tiny(optimizer=had, max_steps=2)
    assert run(c) == 0
    c.resume, c.optimizer, c.max_steps = True, now, 4
    with pytest.raises(UserError, match=f"optimizer was '{had}' and is now '{now}'"):
        run(c)


@pytest.mark.parametrize("harm", [lambda s: s.pop("Muon"), lambda s: s["Muon"]["state"][0].clear()])
def test_a_state_of_another_model_is_refused(run, tiny, tmp_path, harm):
    c = tiny(optimizer="muon", max_steps=2)
    assert run(c) == 0
    path = tmp_path / "out" / "last" / "optimizer.pt"
    state = torch.load(path, weights_only=True)
    harm(state)
    torch.save(state, path)
    c.resume, c.max_steps = True, 4
    with pytest.raises(UserError, match="optimizer.pt is not of this model"):
        run(c)


def test_an_unknown_optimizer_is_named(run, tiny):
    with pytest.raises(UserError, match="optimizer = 'sgd': use one of adamw, muon"):
        run(tiny(optimizer="sgd"))


def test_a_float16_training_steps_both(run, tiny):
    assert run(tiny(optimizer="muon", dtype="float16", max_steps=3)) == 0


def test_several_optimizers_are_stepped_and_cleared_as_one():
    weights = [nn.Parameter(torch.ones(2, 2)) for _ in range(2)]
    both = Several(torch.optim.AdamW(weights[:1], lr=0.1), torch.optim.Muon(weights[1:], lr=0.1))
    sum(w.sum() for w in weights).backward()
    both.step()
    assert all((w < 1).any() for w in weights)
    both.zero_grad()
    assert all(w.grad is None for w in weights)
