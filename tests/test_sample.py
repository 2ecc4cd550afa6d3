"""Sampling: the distribution that is scored, cut as transformers cuts it; the cache never shows; text comes
out whole."""

import math
from dataclasses import fields

import pytest
import torch

import sample
from data.prepare.bpe import train_bpe
from data.tokenizers import BPETokenizer
from evaluate.decoding import AS_SCORED, CUTS, Decoding, truncate
from evaluate.sampling import entropies, generate
from model import LanguageModel
from sample import Stream
from tests.fixtures import chi_square, untrained
from tests.fixtures import random_model as tiny

V = 61


def prompt(batch: int, length: int) -> torch.Tensor:
    return torch.randint(V, (batch, length), generator=torch.Generator().manual_seed(1))


def sampled(
    model: LanguageModel, start: torch.Tensor, length: int, seed: int = 0, cached: bool = True, **how
) -> tuple[torch.Tensor, torch.Tensor]:
    """New tokens (B, length) and the hidden states (B, length, C) they came from."""
    generator, draws = torch.Generator().manual_seed(seed), model.head.draws(3, 7)
    steps = list(generate(model, start, length, draws, Decoding(**how), generator, cached))
    return torch.stack([t for t, _ in steps], 1), torch.stack([h for _, h in steps], 1)


@pytest.mark.parametrize(
    "head, block, start, how",
    [
        ("softmax", 12, 5, {}),
        ("softmax", 13, 13, dict(temperature=0.8, top_k=20)),
        ("sigmoid", 16, 1, dict(top_p=0.9)),
        ("softmax", 2, 2, {}),
        ("softmax", 1, 1, {}),
        ("gs_softmax_f1", 7, 3, dict(temperature=0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("bayesian", [False, True], ids=["point", "bayesian"])
def test_cached_equals_uncached(head, block, start, how, bayesian):
    """Token for token over 60 tokens, some times past block_size, three texts at once."""
    model = tiny(head, block, bayesian=bayesian)
    drawn = lambda cached: sampled(model, prompt(3, start), 60, cached=cached, **how)
    (a, ha), (b, hb) = drawn(True), drawn(False)
    assert a.shape == (3, 60) and torch.equal(a, b)
    torch.testing.assert_close(ha, hb, rtol=0, atol=5e-5)
    assert len({tuple(row) for row in a.tolist()}) == 3 or block == 1


def test_the_context_is_at_least_half_a_block(monkeypatch):
    """All of the text until the block is full, then between the last T // 2 + 1 tokens and the last T."""
    model, seen = tiny(block=12), []
    forward = model.trunk.forward
    monkeypatch.setattr(model.trunk, "forward", lambda x: seen.append(x) or forward(x))
    tokens, _ = sampled(model, prompt(2, 5), 40, cached=False)
    text = torch.cat((prompt(2, 5), tokens), 1)
    lengths = [x.shape[1] for x in seen]
    assert lengths == [*range(5, 13), *list(range(7, 13)) * 5, 7, 8]
    # the last tokens, in order
    assert all(torch.equal(x, text[:, 5 + i - x.shape[1] : 5 + i]) for i, x in enumerate(seen))


@torch.no_grad()
def test_temperature_0_is_argmax():
    model, text = tiny("sigmoid"), prompt(2, 4)
    for _ in range(8):
        lp = model.head.log_probs(model.trunk(text)[:, -1], model.head.draws(1, 0))
        text = torch.cat((text, lp.argmax(1, keepdim=True)), 1)
    state = torch.random.get_rng_state()
    greedy, _ = sampled(model, prompt(2, 4), 8, temperature=0)
    assert torch.equal(greedy, text[:, 4:])
    assert torch.equal(sampled(model, prompt(2, 4), 8, top_k=1)[0], greedy)
    assert torch.equal(torch.random.get_rng_state(), state)


@torch.no_grad()
@pytest.mark.parametrize("head", ["softmax", "sparsemax"])
def test_first_tokens_come_as_often_as_scored(head):
    """By the mean of three draws of the weights, which is not the distribution of one."""
    model, start = tiny(head, bayesian=True, spread=0.2), prompt(1, 3)
    counts = torch.bincount(sampled(model, start.expand(30_000, 3), 1)[0][:, 0], minlength=V).numpy()
    hidden, draws = model.trunk(start)[:, -1], model.head.draws(3, 7)
    p = lambda draws: model.head.log_probs(hidden, draws)[0].double().exp().numpy()
    assert abs(chi_square(counts, p(draws))) < 5 and chi_square(counts, p(draws[:1])) > 20
    assert not counts[p(draws) == 0].any() and (p(draws) == 0).any() == (head == "sparsemax")


@torch.no_grad()
@pytest.mark.parametrize("head", ["softmax", "sigmoid"])
def test_entropies_by_definition(head):
    model = tiny(head, bayesian=True)
    hidden, draws = model.trunk(prompt(4, 6)).flatten(0, 1), model.head.draws(6, 2)
    p = torch.stack([model.head.log_probs(hidden, [d]).double().exp() for d in draws])  # (6, N, V)
    H = lambda p: -(p * p.log()).sum(-1)
    total, aleatoric, epistemic = entropies(model, hidden, draws)
    torch.testing.assert_close(total.double(), H(p.mean(0)), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(aleatoric.double(), H(p).mean(0), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(total, aleatoric + epistemic)
    assert (epistemic > 0.01).all()  # these draws disagree
    one = entropies(model, hidden, draws[:1])
    assert (one[2] == 0).all() and torch.equal(one[0], one[1])  # as of point weights
    same = entropies(model, hidden, draws[:1] * 5)
    assert (same[2].abs() < 1e-5).all()  # and so do draws that agree, up to rounding


@pytest.fixture(scope="module")
def tokenizer() -> BPETokenizer:
    """All bytes and eight merges of plain English: anything else is split within its characters."""
    return train_bpe(["the history of the other one there in the north"] * 3, 264)


def streamed(tokenizer, ids: list[int], capsys):
    """Yields all of stdout after each id."""
    stream, out = Stream(tokenizer.decode, ids[:1]), ""
    for i in range(len(ids)):
        stream.show(ids[i : i + 1] if i else [], last=i == len(ids) - 1)
        out += capsys.readouterr().out
        yield out


def test_a_stream_prints_whole_characters_and_everything_in_the_end(tokenizer, capsys):
    """Also what a model makes up: bytes that are no characters, a character cut at the end."""
    text, g = "naïve 日本語 — the 🙂👩‍🔬 of the café\n", torch.Generator().manual_seed(0)
    ids, cut = tokenizer.encode(text), tokenizer.encode("the 日本")[:-1]
    made_up = [torch.randint(264, (25,), generator=g).tolist() for _ in range(100)]
    for each in (ids, cut, tokenizer.encode("a \ufffd b"), *made_up):
        outs = list(streamed(tokenizer, each, capsys))
        assert outs[-1] == tokenizer.decode(each) and all(outs[-1].startswith(out) for out in outs)
    assert len(ids) > len(text)  # characters are split
    assert len({*streamed(tokenizer, ids, capsys)}) > 20  # and it comes as it goes


def test_a_stream_decodes_the_last_tokens_alone(tokenizer, capsys):
    ids, seen = tokenizer.encode("the north and the history of it\n" * 20), []
    stream = Stream(lambda ids: seen.append(len(ids)) or tokenizer.decode(ids), ids[:100])
    for i in ids[100:]:
        stream.show([i], last=False)
    assert capsys.readouterr().out == tokenizer.decode(ids) and max(seen[4:]) <= 4


@pytest.fixture(scope="module", params=[False, True], ids=["point", "bayesian"])
def run(request, tokenizer, tmp_path_factory):
    """An out folder with the checkpoint of an untrained model, block 12."""
    how = dict(block_size=12, n_layer=1, n_embd=16, head="sigmoid", bayesian=request.param, prior_sigma=0.5)
    return untrained(tmp_path_factory.mktemp("run"), tokenizer, **how), request.param


def command(out, capsys, *flags: str) -> str:
    given = {flag.partition("=")[0] for flag in flags}
    fixed = ["--device=cpu", "--dtype=float32", "--prompt=the 日", "--length=40", "--samples=3"]
    assert sample.main([str(out), *(f for f in fixed if f.partition("=")[0] not in given), *flags]) == 0
    return capsys.readouterr().out


def test_the_command(run, capsys):
    """Starts with the prompt; the same seed gives the same text, streamed or not."""
    out, bayesian = run
    text = command(out, capsys)
    assert text.startswith("the 日") and len(text) > 20
    assert command(out, capsys) == text and command(out, capsys, "--seed=2") != text
    greedy = command(out, capsys, "--temperature=0")
    assert command(out, capsys, "--min_p=1") == command(out, capsys, "--top_k=1")  # greedy
    two = command(out, capsys, "--num_samples=2", "--temperature=0")
    assert two == f"--- sample 1\n{greedy}--- sample 2\n{greedy}"
    table = command(out, capsys, "--uncertainty").rpartition("(nats)\n")[2]
    numbers = torch.tensor([[float(x) for x in line.split()[-3:]] for line in table.splitlines()])
    assert numbers.shape == (40, 3) and (numbers[:, 2] > 0).any() == bayesian
    # printed with two digits
    torch.testing.assert_close(numbers[:, 0], numbers[:, 1] + numbers[:, 2], rtol=0, atol=0.011)


def test_a_text_ends_at_an_end_of_text_token(run, tokenizer, capsys, monkeypatch):
    two = command(run[0], capsys, "--num_samples=2")
    new = two.rpartition("the 日")[2]
    at = next(i for i in range(5, len(new)) if new[i].isascii() and new[i] not in new[:i])
    monkeypatch.setattr(BPETokenizer, "end_id", tokenizer.encode(new[at])[0])
    assert command(run[0], capsys, "--num_samples=2").rpartition("the 日")[2] == new[:at] + "\n"


@pytest.mark.parametrize("flags", [[], ["--temperature=0"], ["--num_samples=2"]], ids=str)
def test_probabilities_that_are_not_numbers_are_an_error(run, monkeypatch, flags):
    """Though the weights are finite."""
    nan = lambda self, hidden, draws: torch.full((len(hidden), 264), math.nan)
    monkeypatch.setattr("heads.output.OutputHead.log_probs", nan)
    with pytest.raises(ValueError, match="best"):
        sample.main([str(run[0]), "--device=cpu", *flags])


# ---- cuts: as transformers' processors ---------------------------------------------------------------------


WORDS = 200
WARPERS = {"top_k": "TopK", "top_p": "TopP", "min_p": "MinP"}  # in transformers' order
VALUES = {"top_k": (1, 7, 60), "top_p": (0.1, 0.5, 0.95), "min_p": (0.02, 0.3, 1.0)}


def theirs(name: str, value: float, scores: torch.Tensor, text: torch.Tensor | None = None) -> torch.Tensor:
    """What a processor of transformers makes of `scores`."""
    from transformers.generation import logits_process  # importing it takes seconds

    return getattr(logits_process, name)(value)(text, scores)


def logits() -> torch.Tensor:
    """Rows (40, WORDS) from nearly flat to nearly certain, in float64."""
    z = torch.randn(40, WORDS, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
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
    assert torch.equal(p, torch.nn.functional.one_hot(z.argmax(1), WORDS).float())


def test_without_a_cut_nothing_changes():
    for c in (AS_SCORED, Decoding(top_k=WORDS + 1)):
        torch.testing.assert_close(truncate(sparse(), c), sparse().exp())
    assert {f.name for f in fields(Decoding)} == {"temperature", *CUTS}
