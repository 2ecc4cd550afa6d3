"""A trunk joined to a head: the loss of tokens and targets, positions without a loss, other trunks,
projections with weights of their own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import model as model_module
from evaluate.decoding import Decoding
from evaluate.sampling import generate
from heads import Targets, chunked_loss
from model import GPTConfig, LanguageModel, Trunk, build
from training.checkpoint import save
from training.run import Progress, RunConfig, load_model

V, T, C = 70, 8, 16
SIZE = dict(vocab_size=V, block_size=T, n_layer=1, n_head=2, n_embd=C, dropout=0.0)
SOFTMAX = dict(head="softmax", head_args={}, bayesian=False, prior_sigma=0.02)


class CNN(Trunk):
    """A trunk that is no transformer: two causal convolutions."""

    def __init__(self, config: GPTConfig, width: int = 3):
        super().__init__()
        self.config, self.width = config, width
        self.tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers = nn.ModuleList(nn.Conv1d(config.n_embd, config.n_embd, width) for _ in range(2))

    def forward(self, tokens, positions=None):
        x = self.tokens(tokens).transpose(1, 2)  # (B, C, T)
        for layer in self.layers:
            x = x + torch.tanh(layer(F.pad(x, (self.width - 1, 0))))
        return x.transpose(1, 2)


@pytest.fixture
def cnn(monkeypatch):
    monkeypatch.setitem(model_module.TRUNKS, "cnn", CNN)


def tokens(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    text = torch.randint(V, (3, T + 1), generator=torch.Generator().manual_seed(seed))
    return text[:, :-1], text[:, 1:]


def made(seed: int = 0, **changes) -> LanguageModel:
    torch.manual_seed(seed)
    return build(SIZE | SOFTMAX | changes)


@pytest.mark.parametrize("head", ["softmax", "taylor"])
def test_positions_without_a_loss_are_left_out(head):
    """Value, count and gradients are those of the other positions alone."""
    model, (x, y) = made(head=head), tokens()
    masked = y.clone()
    masked[0], masked[1, 3:] = -1, -1
    loss, count = model(x, masked)
    loss.backward()
    got = {k: p.grad.clone() for k, p in model.named_parameters()}
    model.zero_grad()
    targets = model.head.head.targets(x, y)
    rows = (masked.flatten() >= 0).nonzero().squeeze(1)
    hidden = model.trunk(x).flatten(0, 1)[rows]
    chosen = Targets(targets.ids[rows], targets.values[rows])
    want = chunked_loss(hidden, model.head.projection.draw(), model.head.head, chosen)
    want.backward()
    assert count == len(rows) and torch.equal(loss, want)
    for k, p in model.named_parameters():
        torch.testing.assert_close(got[k], p.grad)


@pytest.mark.parametrize("head", ["softmax", "stop_gradient", "smooth_accuracy"])
def test_no_position_with_a_loss_is_no_loss(head):
    model, (x, y) = made(head=head), tokens()
    loss, count = model(x, torch.full_like(y, -1))
    loss.backward()
    assert count == 0 and loss == 0
    assert not any(p.grad.any() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_labels_of_half_the_bytes_change_nothing(head):
    """int32 ids and float16 values, where these are exact."""
    model, (x, y) = made(head=head), tokens()
    ids = torch.cat((y.reshape(-1, 1), (y.reshape(-1, 1) + torch.tensor([[1, 2]])) % V), 1)
    ids[::3, 2] = -1
    values = torch.where(ids < 0, 0.0, torch.tensor([[1.0, 0.5, 0.125]]))
    results = []
    for targets in (Targets(ids, values), Targets(ids.int(), values.half())):
        loss, _ = model(x, targets)
        model.zero_grad()
        loss.backward()
        results.append((loss.detach(), model.trunk.wte.weight.grad.clone()))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])


def test_an_untied_projection_has_weights_of_its_own(tmp_path):
    tied, untied = made(), made(tied=False)
    names = {k for k, _ in untied.named_parameters()} - {k for k, _ in tied.named_parameters()}
    assert names == {"head.projection.weight"}
    x, y = tokens()
    untied.train()
    loss, _ = untied(x, y)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(untied.parameters(), 1.0)
    assert not torch.equal(untied.trunk.wte.weight.grad, untied.head.projection.weight.grad)
    about = dict(name="own", tokenizer="gpt2", tokenizer_fingerprint="x", tied=False)
    config = RunConfig(**SIZE | SOFTMAX | about)
    save(tmp_path / "run" / "best", untied, config, Progress(1))
    again, _ = load_model(tmp_path / "run")
    assert torch.equal(again.log_probs(x), untied.eval().log_probs(x))


@torch.no_grad()
def test_another_trunk_is_sampled_without_a_cache(cnn):
    model, text = made(trunk="cnn", tied=False).eval(), tokens()[0][:, :3]
    for token, _ in generate(model, text, T - 3, model.head.draws(1, 0), Decoding(temperature=0)):
        assert torch.equal(token, model.log_probs(text)[:, -1].argmax(1))
        text = torch.cat((text, token[:, None]), 1)


def test_another_trunk_trains_from_the_command_line(cnn, run, tiny):
    c = tiny(trunk="cnn", tied=False, max_steps=2)
    assert run(c) == 0
    loaded, ckpt = load_model(c.out_dir)
    assert ckpt.config.trunk == "cnn" and isinstance(loaded.trunk, CNN)
