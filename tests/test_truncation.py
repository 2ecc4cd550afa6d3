"""What a distribution is cut to, and penalties on what is written: as transformers' processors where it has
them, else as the formula written out."""

import math
from dataclasses import fields, replace

import pytest
import torch

from evaluation.cuts import COLD_CUTS, CUTS
from evaluation.decoding import AS_SCORED, NO_PENALTIES, Decoding, Penalties, drawn_by, penalties_in_use
from evaluation.settings import PaperConfig, other_settings
from evaluation.truncation import check_left, penalised, truncate
from runtime.configurator import configure
from runtime.errors import UserError
from sample import SampleConfig

V = 200
WARPERS = {
    "top_k": "TopK",
    "top_p": "TopP",
    "min_p": "MinP",
    "typical_p": "Typical",
    "epsilon": "Epsilon",
    "eta": "Eta",
}  # in transformers' order
VALUES = {
    "top_k": (1, 7, 60),
    "top_p": (0.1, 0.5, 0.95),
    "min_p": (0.02, 0.3, 1.0),
    "typical_p": (0.1, 0.5, 0.95),
    "epsilon": (3e-4, 0.02, 0.9),
    "eta": (3e-4, 0.02, 0.9),
    "top_a": (0.01, 0.2, 1.0),
    "top_n_sigma": (0.3, 1.0, 2.5),
    "min_k": (1e-6, 3.0, 60.0),
}


def theirs(name: str, value: float, scores: torch.Tensor, text: torch.Tensor | None = None) -> torch.Tensor:
    """What a processor of transformers makes of `scores`."""
    from transformers.generation import logits_process  # importing it takes seconds

    return getattr(logits_process, name)(value)(text, scores)


def logits() -> torch.Tensor:
    """Rows (40, V) from nearly flat to nearly certain, in float64."""
    z = torch.randn(40, V, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
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
    values = dict(top_k=120, top_p=0.97, min_p=0.01, typical_p=0.9, epsilon=0.004, eta=0.1)
    scores = theirs("TemperatureLogitsWarper", 1.3, logits().log_softmax(1))
    for name, warper in WARPERS.items():
        before, scores = scores, theirs(f"{warper}LogitsWarper", values[name], scores)
        assert not torch.equal(before, scores), name  # each has something to cut
    got = truncate(logits().log_softmax(1), Decoding(temperature=1.3, **values))
    torch.testing.assert_close(got, scores.softmax(1), rtol=1e-12, atol=0)
    assert [*WARPERS, "top_a"] == [*CUTS]


@pytest.mark.parametrize("name", ["top_a", "top_n_sigma"])
@pytest.mark.parametrize("source", [logits, sparse])
def test_a_cut_is_its_formula(source, name):
    for value in VALUES[name]:
        for z, got in zip(source(), truncate(source().log_softmax(1), Decoding(**{name: value}))):
            p = z.exp() / z.exp().sum()
            some = z[z > -math.inf]
            bound = {"top_a": value * p.max() ** 2, "top_n_sigma": (z.max() - value * some.std()).exp()}[name]
            kept = (p if name == "top_a" else z.exp()) >= bound
            assert torch.equal(got > 0, kept & (p > 0))
            torch.testing.assert_close(got, p * kept / (p * kept).sum(), rtol=1e-13, atol=0)


def k_of(z: list[float], tau: float) -> int:
    """min-k's k of logits, step by step: sort, weigh each relative drop by 1 / rank, take the largest; but
    at least as many as the range says."""
    z = sorted(z, reverse=True)
    span = z[0] - z[-1]
    weighed = [(z[i - 1] - z[i]) / span / i for i in range(1, len(z))]
    return max(weighed.index(max(weighed)) + 1, math.floor(tau / span))


@pytest.mark.parametrize("constant", [0.0, -37.5])
@pytest.mark.parametrize("source", [logits, sparse])
def test_min_k_is_its_formula(source, constant):
    """On logits, whose constant does not matter. What has no mass is not there."""
    kept = {}
    for tau in VALUES["min_k"]:
        z, got = source() + constant, truncate(source().log_softmax(1), Decoding(min_k=tau)) > 0
        some = [[x for x in row if x > -math.inf] for row in z.tolist()]
        kept[tau] = [min(k_of(row, tau), len(row)) for row in some]
        for row, mine, k in zip(z, got, kept[tau]):
            assert torch.equal(mine, row >= row.topk(k).values[-1]), (tau, k)
    cliff, flat, flatter = kept.values()
    assert len({*cliff}) > 3 and cliff != flatter
    assert (cliff != flat) == (source is logits)  # whose first row is the flattest


def test_min_k_by_hand():
    """A fall of 2 after two tokens outweighs one of 0.9 before, and one of 2.7 after the third."""
    log_p = torch.tensor([[0.0, -0.9, -2.9, -5.6]]).log_softmax(1)
    kept = lambda tau: (truncate(log_p, Decoding(min_k=tau)) > 0).tolist()
    assert kept(1.0) == kept(3 * 5.59) == [[True, True, False, False]]
    assert kept(3 * 5.61) == [[True, True, True, False]]


@pytest.mark.parametrize("how", [dict(top_n_sigma=1), dict(min_k=1e-6)], ids=str)
def test_cuts_of_log_p_are_the_same_at_any_temperature(how):
    """In float32, too, where a low temperature rounds most of the tokens to 0."""
    log_p = logits().float().log_softmax(1)
    kept = [truncate(log_p, Decoding(temperature=t, **how)) > 0 for t in (1.0, 3.0, 0.2)]
    assert torch.equal(kept[0], kept[1]) and torch.equal(kept[0], kept[2])
    assert 1 < kept[0].sum(1).double().mean() < V / 2


@pytest.mark.parametrize("name", VALUES)
def test_a_cut_leaves_something_and_acts_on_each_row_alone(name):
    """A row of one token, of equal ones, of ties; float32."""
    rows = [[0.0] + [-math.inf] * 7, [0.0] * 8, [1.0, 1.0, 1.0, -3, -3, -3, -3, -3], [80.0, *range(7)]]
    log_p = torch.tensor(rows).log_softmax(1)
    for value in (*VALUES[name], getattr(AS_SCORED, name)):
        c = Decoding(**{name: value})
        p = truncate(log_p, c)
        torch.testing.assert_close(p.sum(1), torch.ones(4))
        assert torch.equal(p, torch.cat([truncate(row[None], c) for row in log_p]))
        assert not p[log_p == -math.inf].any()


def test_without_a_cut_nothing_changes():
    torch.testing.assert_close(truncate(sparse(), AS_SCORED), sparse().exp())
    assert {f.name for f in fields(Decoding)} == {"temperature", *COLD_CUTS, *CUTS}


# ---- penalties on what is written --------------------------------------------------------------------------

TEXT = torch.tensor([[3, 5, 3, 5, 7, 3], [1, 1, 1, 1, 1, 1], [9, 8, 7, 6, 5, 4]])


def some_log_p() -> torch.Tensor:
    return logits()[30:33].log_softmax(1)


@pytest.mark.parametrize("value", [0.7, 1.3, 5.0])
def test_the_repetition_penalty_is_that_of_transformers(value):
    want = theirs("RepetitionPenaltyLogitsProcessor", value, some_log_p(), TEXT)
    assert torch.equal(penalised(some_log_p(), TEXT, 2, Penalties(repetition_penalty=value)), want)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 50])
def test_repeated_ngrams_are_those_of_transformers(n):
    want = theirs("NoRepeatNGramLogitsProcessor", n, some_log_p(), TEXT)
    assert torch.equal(penalised(some_log_p(), TEXT, 2, Penalties(no_repeat_ngram=n)), want)
    assert (want == -math.inf).any() == (n <= 6)


@pytest.mark.parametrize("allowed", [0, 1, 2, 5])
def test_dry_is_its_formula(allowed):
    """Of each token that was there, its longest repetition counts."""
    c, want, priced = Penalties(dry_multiplier=0.8, dry_base=2, dry_allowed_length=allowed), some_log_p(), 0
    for row, text in zip(want, TEXT.tolist()):
        longest: dict[int, int] = {}
        for i, token in enumerate(text):
            n = max(n for n in range(i + 1) if n == 0 or text[i - n : i] == text[-n:])
            longest[token] = max(longest.get(token, 0), n)
        for token, n in longest.items():
            if n >= allowed:
                row[token] -= 0.8 * 2 ** (n - allowed)
                priced += 1
    assert priced == {0: 10, 1: 2, 2: 1, 5: 1}[allowed]
    torch.testing.assert_close(penalised(some_log_p(), TEXT, 2, c), want, rtol=1e-15, atol=0)


def test_dry_of_a_long_loop_is_finite():
    got = penalised(torch.zeros(1, 3), torch.ones(1, 500, dtype=torch.long), 2, Penalties(dry_multiplier=1.0))
    assert got.isfinite().all() and truncate(got, AS_SCORED).tolist() == [[0.5, 0.0, 0.5]]


@pytest.mark.parametrize("frequency, presence", [(0.5, 0.0), (0.0, 0.25), (0.5, -0.25)])
def test_frequency_and_presence_count_what_is_new(frequency, presence):
    c, want = Penalties(frequency_penalty=frequency, presence_penalty=presence), some_log_p()
    for row, new in zip(want, TEXT[:, -4:].tolist()):
        for token in set(new):
            row[token] -= frequency * new.count(token) + presence
    torch.testing.assert_close(penalised(some_log_p(), TEXT, 4, c), want, rtol=1e-15, atol=0)
    assert torch.equal(penalised(some_log_p(), TEXT, 0, c), some_log_p())


def test_without_penalties_nothing_changes():
    log_p = some_log_p()
    assert penalised(log_p, TEXT, 2, NO_PENALTIES) is log_p and not penalties_in_use(NO_PENALTIES)


def test_a_text_without_a_token_left_is_refused():
    c = Penalties(no_repeat_ngram=1)
    log_p = penalised(torch.zeros(2, 4), torch.tensor([[0, 2, 1], [0, 2, 2]]), 2, c)
    check_left(log_p, c)
    with pytest.raises(UserError, match="no_repeat_ngram = 1: each token that is left"):
        check_left(log_p[:, :3], c)


# ---- flags and settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [SampleConfig, PaperConfig])
@pytest.mark.parametrize(
    "flag, says",
    [
        ("min_p=1.5", "at most 1"),
        ("typical_p=0", "greater than 0"),
        ("epsilon=-1", "at least 0"),
        ("eta=x", "valid number"),
        ("top_a=2", "at most 1"),
        ("top_n_sigma=-0.5", "at least 0"),
        ("min_k=-3", "at least 0"),
    ],
)
def test_a_bad_value_is_one_line(config, flag, says):
    with pytest.raises(UserError, match=f"^{flag.partition('=')[0]} = .*{says}$"):
        configure(config, ["run", f"--{flag}"])


@pytest.mark.parametrize("name", [f.name for f in fields(Penalties)])
def test_a_table_refuses_penalties(name):
    with pytest.raises(UserError, match=f"^{name}: a table judges the distribution that is scored"):
        PaperConfig.read(["run", f"--{name}=2"])
    PaperConfig.read([f"{name}=run"])  # a run of that name


def test_the_settings_in_words():
    assert drawn_by(AS_SCORED) == "temperature 1, top_k 0, top_p 1"
    warm = Decoding(temperature=1.5, top_k=1234567, min_p=0.05)
    assert drawn_by(warm) == "temperature 1.5, top_k 1234567, top_p 1, min_p 0.05"


def test_rows_from_before_a_cut_was_there_are_without_it():
    old = {"temperature": 0.8, "top_k": 200, "top_p": 1.0}
    now = Decoding(temperature=0.8, top_k=200)
    assert other_settings(old, vars(now)) == []
    assert other_settings(old, vars(replace(now, min_p=0.1))) == ["min_p 0.0, now 0.1"]
