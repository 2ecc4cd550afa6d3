"""linear_loss and log_probs: the loss and the distribution of anybody's hidden states and weights."""

import copy
import math
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import heads
from heads import HEADS, Targets, linear_loss
from tests.head_contract import REDUCTIONS, C, V, assert_equal, inputs, random, with_gradients

PAGE = Path(__file__).resolve().parents[1] / "docs" / "linear_loss.md"


SHAPES = [((12,), [0, 3, 9]), ((12,), [*range(12)]), ((12,), []), ((0,), []), ((), [])]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("index", [-100, -1, 0, 999])
@pytest.mark.parametrize("shape, ignored", SHAPES)
def test_softmax_is_cross_entropy(shape, ignored, index, reduction):
    """As F.cross_entropy where nothing, something or everything is ignored, for no position, and for one."""
    tensors, ids = inputs(*shape)
    if shape:
        ids[ignored] = index
    hidden, weight, bias = tensors
    plain = F.cross_entropy(F.linear(*tensors), ids, reduction=reduction, ignore_index=index)
    ours = linear_loss(hidden, weight, ids, bias=bias, reduction=reduction, ignore_index=index)
    assert_equal(with_gradients(ours, tensors), with_gradients(plain, tensors))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("shape", [(1,), (3, 1, 2), (300,)])
def test_layouts_and_chunks(shape, reduction, monkeypatch):
    """Tensors that are not contiguous, ids of int32, more rows than a chunk has."""
    monkeypatch.setattr(sys.modules[linear_loss.__module__], "chunk_rows", lambda *size: 64)
    hidden, weight = random(C, *shape).movedim(0, -1), random(C, V, seed=1).T
    ids = inputs(*shape, 2)[1].int()[..., 0]
    ours = linear_loss(hidden, weight, ids, reduction=reduction)
    plain = F.cross_entropy((hidden @ weight.T).view(-1, V), ids.long().flatten(), reduction=reduction)
    want = with_gradients(plain.view(ours.shape), (hidden, weight))
    assert_equal(with_gradients(ours, (hidden, weight)), want)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision(dtype, autocast, reduction):
    """float32 losses, from inputs of `dtype` or products under autocast, no worse than plain PyTorch's."""
    exact, ids = inputs(40)
    low = exact if autocast else tuple(t.detach().to(dtype).requires_grad_() for t in exact)
    with torch.autocast("cpu", dtype, enabled=autocast):
        ours = linear_loss(*low[:2], ids, bias=low[2], reduction=reduction)
        plain = F.cross_entropy(F.linear(*low).float(), ids, reduction=reduction)
    exact = [t.detach().float().requires_grad_() for t in low]
    want = with_gradients(F.cross_entropy(F.linear(*exact), ids, reduction=reduction), tuple(exact))
    assert ours.dtype == torch.float32
    for o, p, w in zip(with_gradients(ours, low), with_gradients(plain, low), want):
        assert o.dtype == p.dtype and (o - w).norm() <= 1.1 * (p - w).norm() + 1e-3 * w.norm()


# Labels of several tokens, the first of them repeated nowhere: position 2 has none
IDS = torch.tensor([[4, 30, 0], [7, -1, -1], [-1, -1, -1], [1, 2, -1]])
VALUES = torch.tensor([[1.0, 0.5, 0.25], [1.0, -1.0, -1.0], [9.0, 9.0, 9.0], [0.75, 0.25, 3.0]])


def dense(dtype: torch.dtype) -> Tensor:
    return torch.zeros(4, V + 1, dtype=dtype).scatter(1, IDS % (V + 1), VALUES.to(dtype))[:, :V]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("name", ["soft_targets", "sigmoid"])
def test_labels_of_several_tokens(name, reduction):
    tensors, _ = inputs(2, 2)
    hidden, weight, bias = tensors
    z, y = F.linear(*tensors).view(4, V), dense(torch.float32)
    if name == "sigmoid":
        each = F.binary_cross_entropy_with_logits(z, y, reduction="none").sum(1)
    else:
        each = F.cross_entropy(z, y / y.sum(1, keepdim=True).clamp(min=1e-9), reduction="none")
    each = each * torch.tensor([1.0, 1.0, 0.0, 1.0])
    plain = {"mean": each.sum() / 3, "sum": each.sum(), "none": each.view(2, 2)}[reduction]
    target = IDS.view(2, 2, 3), VALUES.view(2, 2, 3)
    ours = linear_loss(hidden, weight, target, name, bias, reduction=reduction)
    assert_equal(with_gradients(ours, tensors), with_gradients(plain, tensors))


def test_a_pair_is_left_out_by_its_first_id_alone():
    """A padding's id may be a token of the vocabulary, and stand among the labels of others."""
    (hidden, weight, _), ids = inputs(2)[0], torch.tensor([[1, 0, 3], [0, 2, -1]])
    values = torch.tensor([[1.0, 0.9, 0.5], [1.0, 1.0, 0.0]])
    got = linear_loss(hidden, weight, (ids, values), "soft_targets", ignore_index=0)
    want = linear_loss(hidden[:1], weight, (ids[:1], values[:1]), "soft_targets")
    assert_equal([got.detach()], [want.detach()])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_a_second_derivative_is_refused(reduction):
    (hidden, weight, _), ids = inputs(4)
    loss = linear_loss(hidden, weight, ids, "entmax15", reduction=reduction)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(loss.sum(), hidden, create_graph=True)


class Tempered(nn.Module):
    """Softmax at a temperature that is learned."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))

    def loss(self, logits: Tensor, targets: Targets) -> Tensor:
        return F.cross_entropy(self.scale * logits, targets.token, reduction="none")


class Doubled(heads.Softmax):
    """Whose closed gradient is not its base's."""

    scale = 2.0

    def link(self, z: Tensor) -> Tensor:
        return 2 * z


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("head", [Tempered(), Doubled(V)], ids=lambda head: type(head).__name__)
def test_a_head_of_ones_own_whose_parameters_learn(head, reduction):
    (hidden, weight, _), ids = inputs(6)
    tensors = hidden, weight, *head.parameters()
    plain = F.cross_entropy(head.scale * (hidden @ weight.T), ids, reduction=reduction)
    ours = linear_loss(hidden, weight, ids, head, reduction=reduction)
    assert_equal(with_gradients(ours, tensors), with_gradients(plain, tensors))


def test_an_instance_has_its_arguments_and_a_name_the_default():
    (hidden, weight, _), ids = inputs(6)
    for head, eps in ((HEADS["label_smoothing"](V, eps=0.3), 0.3), ("label_smoothing", 0.05)):
        plain = F.cross_entropy(hidden @ weight.T, ids, label_smoothing=eps * V / (V - 1))
        assert_equal([linear_loss(hidden, weight, ids, head).detach()], [plain.detach()])


@pytest.mark.parametrize(
    "key, value",
    [
        ("reduction", "avg"),
        ("head", "hinge"),
        ("head", heads.Softmax(V + 1)),
        ("target", torch.zeros(5, dtype=torch.long)),
        ("target", torch.tensor([0, 1, -1, 2])),
        ("target", (IDS, VALUES)),  # softmax reads one id a position
        ("target", torch.zeros(2, 3, dtype=torch.long)),
        ("weight", torch.zeros(C, V)),
        ("weight", nn.Embedding(V, C)),
        ("token_weights", torch.ones(3)),
        *(("labels", pair) for pair in ((IDS.flip(1), VALUES), (IDS.clamp(max=3), VALUES))),
        *(("labels", (IDS, 0 * VALUES + y)) for y in (math.nan, 5, -1)),
    ],
)
def test_mistakes_are_named(key, value):
    (hidden, weight, _), ids = inputs(4)
    change = dict(target=value, head="sigmoid") if key == "labels" else {key: value}
    with pytest.raises(ValueError, match="target" if key == "labels" else key):
        linear_loss(**dict(hidden=hidden, weight=weight, target=ids) | change)


def code(section: str, language: str = "python") -> str:
    """The blocks of a section of the page."""
    text = PAGE.read_text(encoding="utf-8").partition(f"# {section}\n")[2].partition("\n## ")[0]
    return "\n".join(re.findall(rf"^```{language}\n(.*?)```", text, re.M | re.S))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs code of the page with these names; nanoheads is heads/ here, as in an installed package."""
    monkeypatch.setitem(sys.modules, "nanoheads", heads)
    path = tmp_path / "page.py"

    def run(code: str, **names: object) -> dict:
        path.write_text(f"import torch\nimport torch.nn.functional as F\n{code}")
        return runpy.run_path(str(path), dict(HEADS=HEADS, linear_loss=linear_loss) | names)

    return run


def test_the_page(run):
    (hidden, weight, bias), target = inputs(2)
    names = dict(hidden=hidden, weight=weight, bias=bias, target=target)
    first = run(code("Any model"), **names)
    assert first["loss"] > 0 and first["log_p"].shape == (2, V)
    p_t = F.softmax(hidden @ weight.T, 1)[range(2), target]
    focal = run(code("A head of your own"), **names)["loss"]
    assert_equal([focal.detach()], [(-((1 - p_t) ** 2) * p_t.log()).mean().detach()])
    assert run(code("Labels of several tokens"), **names)["loss"] > 0


def test_the_page_with_transformers(run, tmp_path):
    """Each block of its section on a tiny GPT-2; a Trainer steps once for two micro-batches as for both."""
    transformers = pytest.importorskip("transformers")
    size = dict(vocab_size=V, n_embd=8, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0)
    size |= dict(attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**size))
    ids = torch.randint(1, V, (4, 6), generator=torch.Generator().manual_seed(2))
    names = dict(model=model, input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids), weights=ids / V)
    got = run(code("A model of transformers"), **names)
    assert got["entropy"].shape == (4, 5) and got["text"].shape == (4, 11)
    assert got["accuracy"].dtype == torch.bool
    trainer = run(code("In transformers' Trainer"))["HeadTrainer"]
    labels = ids.clone()
    labels[0, 2:] = -100  # micro-batches of different numbers of tokens
    labels[:, 0] = -100  # which some versions of the Trainer count
    want = copy.deepcopy(model)
    heads.causal_loss(want, ids, labels, "entmax15").backward()
    want = {k: p - 0.1 * p.grad for k, p in want.named_parameters()}
    once = dict(max_steps=1, learning_rate=0.1, optim="sgd", lr_scheduler_type="constant", max_grad_norm=0)
    quiet = dict(report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, use_cpu=True)
    halves = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2)
    arguments = transformers.TrainingArguments(str(tmp_path), **once, **quiet, **halves)
    data = [dict(input_ids=x, labels=y) for x, y in zip(ids, labels)]
    trainer(model=model, args=arguments, train_dataset=data, eval_dataset=data).train()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p, want[name], rtol=1e-4, atol=1e-6)
    assert trainer(model=model, args=arguments, eval_dataset=data).evaluate()["eval_loss"] > 0


@pytest.mark.slow  # torch.compile takes seconds
def test_compiled_programs():
    def step(hidden: Tensor, weight: Tensor, bias: Tensor, reduction: str) -> Tensor:
        return 2 * linear_loss(hidden.tanh(), weight, ids, "entmax15", bias, reduction=reduction)

    tensors, ids = inputs(6)
    for reduction in REDUCTIONS:
        ours, eager = (f(*tensors, reduction) for f in (torch.compile(step), step))
        assert_equal(with_gradients(ours, tensors), with_gradients(eager, tensors))
