"""Climbs: the truth of the simulated ones, climbs out of records, and the command of docs/climbs.py."""

import gzip
import json
import math
from itertools import pairwise, product

import numpy as np
import pytest

from data.climbs import prepare as climbs
from data.climbs import records, simulated
from data.climbs.rates import HIGHEST, LENGTH, LOWEST, RATES, WORDS, tokens_of
from data.climbs.simulated import Climbs, near
from data.held_out import open_held_out
from data.prepared import SPLITS, folder_of, load_tokenizer, prepared, unusual
from data.synthetic.tasks import UNKNOWN, Chain
from data.tokens import open_tokens
from evaluation.two_sided import Sequences, two_sided
from runtime.errors import UserError

SIZES = "simulated length=8 train=30 validation=6 test=5"


# ---- the truth -----------------------------------------------------------------------------------


def small_chain() -> Chain:
    """Four hidden states that show three tokens, some steps impossible."""
    rng = np.random.default_rng(0)
    step = rng.random((4, 4)) * (rng.random((4, 4)) < 0.7) + np.eye(4)
    first = np.array([0.5, 0.3, 0.2, 0.0])
    return Chain(5, ["a", "b", "c"], first, step / step.sum(1, keepdims=True), np.array([0, 1, 1, 2]))


@pytest.fixture(scope="module")
def enumerated() -> tuple[Chain, np.ndarray, np.ndarray]:
    """The chain, all sequences of its tokens (V^T, T), and the probability of each: a sum over all paths."""
    chain = small_chain()
    every = np.array(list(product(range(3), repeat=5)))
    p = np.zeros(len(every))
    for path in product(range(4), repeat=5):
        of_path = chain.first[path[0]] * math.prod(chain.step[a, b] for a, b in pairwise(path))
        p[(chain.token[list(path)] == every).all(1)] += of_path
    return chain, every, p


def test_a_chain_by_enumeration(enumerated):
    chain, every, p = enumerated
    assert p.sum() == pytest.approx(1) and (p == 0).any()
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(chain.log_prob(every), np.log(p), rtol=1e-12)
    rng = np.random.default_rng(1)
    for known in product([False, True], repeat=5):
        rows = np.where(known, chain.sample(3, rng), UNKNOWN)
        agree = ((rows[:, None] == every) | (rows[:, None] == UNKNOWN)).all(2) * p
        np.testing.assert_allclose(chain.log_evidence(rows), np.log(agree.sum(1)), rtol=1e-12, atol=1e-14)
        exact = np.stack([agree @ (every == v) for v in range(3)], 2) / agree.sum(1)[:, None, None]
        np.testing.assert_allclose(np.exp(chain.log_probs(rows)), exact, rtol=1e-12, atol=1e-14)


def test_samples_of_a_chain(enumerated):
    chain, every, p = enumerated
    x = chain.sample(20_000, np.random.default_rng(2))
    counts = np.bincount(x @ 3 ** np.arange(5)[::-1], minlength=len(every))
    assert not counts[p == 0].any()
    expected = p[p > 0] * len(x)
    statistic, freedom = ((counts[p > 0] - expected) ** 2 / expected).sum(), (p > 0).sum() - 1
    assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


def test_simulated_climbs_are_possible_and_keep_the_chain_rule():
    task = Climbs(20)
    np.testing.assert_allclose(task.step.sum(1), 1)
    assert task.first.sum() == pytest.approx(1)
    rng = np.random.default_rng(3)
    x = task.sample(4, rng)
    assert task.valid(x).all()
    tokens, total, rows = np.full_like(x, UNKNOWN), np.zeros(4), np.arange(4)
    for at in rng.permuted(np.tile(np.arange(20), (4, 1)), axis=1).T:
        total += task.log_probs(tokens)[rows, at, x[rows, at]]
        tokens[rows, at] = x[rows, at]
    assert total == pytest.approx(task.log_prob(x), rel=1e-10)
    x[0, 7] = (x[0, 6] + 30) % task.V  # no aircraft does that in eight seconds
    assert not task.valid(x)[0]


def test_the_least_climb_does_not_underflow():
    task = Climbs(Climbs.LONGEST)
    with np.errstate(divide="ignore"):
        first, step = -np.log2(task.first), -np.log2(task.step)
    bits = np.where(np.isinf(first), -1, first)  # of the least probable path to each state, -1: none
    for _ in range(task.T - 1):
        bits = np.where((bits[:, None] >= 0) & np.isfinite(step), bits[:, None] + step, -1).max(0)
    assert 900 < bits.max() < 1022
    with pytest.raises(UserError, match=r"length = 101: .* use at most 100"):
        Climbs(Climbs.LONGEST + 1)


def test_noise_is_cut_off_and_never_empty():
    quietest = min(phase.noise for phase in simulated.PHASES.values())
    p = near(np.linspace(0, 4000, 77), quietest)
    np.testing.assert_allclose(p.sum(1), 1)
    assert (p[0] > 0).sum() <= 2 * simulated.CUT * quietest / 128 + 1


# ---- records -------------------------------------------------------------------------------------


def flight(aircraft: str, rates: np.ndarray, start: int = 1_600_000_000) -> list[dict]:
    """A record a second."""
    return [
        {"timestamp": (start + i) * 1000, "icao24": aircraft, "callsign": "X1", "vertical_rate": r}
        for i, r in enumerate(rates.tolist())
    ]


def climb_of(seconds: int = 700, rate: float = 1800.0) -> np.ndarray:
    """A minute of level flight, then a climb, then two and a half minutes of level flight."""
    return np.concatenate((np.zeros(60), np.full(seconds, rate), np.zeros(150)))


def test_a_climb_is_cut_out_of_a_flight():
    [climb] = records.climbs_of("a", flight("a", climb_of()))
    # it begins in the step that is half level, 900 ft/min
    assert climb.rates[0] == 900 and (climb.rates[1:87] == 1800).all()
    assert len(climb.rates) == 95 + 8 or (climb.rates[90:] == 0).all()
    assert climb.filled == 0
    assert not records.climbs_of("a", flight("a", climb_of(rate=250.0)))
    assert not records.climbs_of("a", flight("a", climb_of(seconds=120)))  # 3,600 ft
    assert not records.climbs_of("a", flight("a", -climb_of()))


def test_rates_are_filled_in_and_long_gaps_end_a_climb():
    whole = flight("a", climb_of())
    shuffled = [whole[i] for i in np.random.default_rng(0).permutation(len(whole))]
    [climb], [same] = records.climbs_of("a", whole), records.climbs_of("a", shuffled)
    assert (climb.rates == same.rates).all()
    for n, record in enumerate(whole):
        if 200 <= n < 230:
            record["vertical_rate"] = None
    [filled] = records.climbs_of("a", whole)
    assert filled.filled == 30 and (filled.rates == climb.rates).all()
    whole[230]["vertical_rate"] = math.nan  # a second more
    parts = records.climbs_of("a", whole)
    assert len(parts) == 1 and len(parts[0].rates) < len(climb.rates)  # the part before it is too low


def test_rates_as_tokens():
    assert tokens_of(np.array([-9000.0, -256, 0, 63, 65, 9000])).tolist() == [0, 0, 2, 2, 3, len(RATES) - 1]
    assert (tokens_of(RATES) == np.arange(len(RATES))).all()
    assert [float(word) for word in WORDS] == RATES.tolist()
    assert (RATES[0], RATES[-1]) == (LOWEST, HIGHEST)


@pytest.fixture
def source(tmp_path):
    """A file of twelve flights, whose rates differ."""
    path = tmp_path / "flights.json.gz"
    rows = [r for n in range(12) for r in flight(f"a{n}", climb_of(rate=1000.0 + 128 * n))]
    path.write_bytes(gzip.compress(json.dumps(rows).encode()))
    return path


def test_splits_are_by_aircraft(source, tmp_path, capsys):
    folder = prepared("climbs", "words", str(source), tmp_path)
    assert folder.name == "words-flights"
    assert "12 climbs of 12 aircraft; 0 of their" in capsys.readouterr().err
    seen = {}
    for split, aircraft in zip(SPLITS, (10, 1, 1)):
        held = open_held_out(folder / f"{split}.bin")
        assert held.given == 1 and held.info["length"] == LENGTH
        rows = held.ids[:-1].reshape(-1, LENGTH)
        seen[split] = {int(rate) for rate in np.median(rows, 1)}
        assert len(seen[split]) <= aircraft + 1
        starts = len(range(0, len(rows[0]) * 0 + 103 - LENGTH + 1, records.STRIDE[split]))
        assert abs(len(rows) - aircraft * starts) <= aircraft
        assert two_sided(held, "climbs", LENGTH) is None  # nobody knows it
    assert not seen["validation"] & seen["test"] and not seen["train"] & seen["test"]


DAMAGE = {
    "cut short": (lambda b: b[: len(b) // 2], "not a whole gzip file"),
    "no json": (lambda b: gzip.compress(gzip.decompress(b)[:-100]), "not a whole file of JSON"),
    "no list": (lambda b: gzip.compress(b'{"a": 1}'), "not a list of ADS-B records"),
    "nothing": (lambda b: gzip.compress(b"[]"), "not a list of ADS-B records"),
    "no column": (
        lambda b: gzip.compress(gzip.decompress(b).replace(b"vertical_rate", b"rate")),
        "no column vertical_rate: its records need timestamp, icao24, callsign, vertical_rate",
    ),
    "no number": (lambda b: gzip.compress(gzip.decompress(b).replace(b"1000.0", b'"up"')), "is not a number"),
    "few": (
        lambda b: gzip.compress(json.dumps(flight("a", climb_of())).encode()),
        "1 climbs of 512 seconds .* of 1 aircraft: too few for three splits",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_files_that_cannot_be_used(source, tmp_path, damage):
    change, says = DAMAGE[damage]
    source.write_bytes(change(source.read_bytes()))
    with pytest.raises(UserError, match=says) as caught:
        climbs.prepare(tmp_path / "words", "words", str(source))
    assert "\n" not in str(caught.value) and not (tmp_path / "words").exists()


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="nosuch"):
        climbs.prepare(tmp_path / "words", "words", str(tmp_path / "nosuch.json.gz"))


# ---- the simulated corpus ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Read only."""
    return prepared("climbs", "words", SIZES, tmp_path_factory.mktemp("data"))


def test_the_simulated_corpus(folder):
    assert folder == folder_of("climbs", "words", SIZES, folder.parents[1])
    assert folder.name == "words-simulated-length=8-train=30-validation=6-test=5"
    assert load_tokenizer(folder).words == WORDS
    for split, count in zip(SPLITS, (30, 6, 5)):
        held = open_held_out(folder / f"{split}.bin")
        truth = two_sided(held, "climbs", 8)
        assert isinstance(truth, Sequences) and two_sided(held, "climbs", 16) is None
        rows = held.ids[:-1].reshape(count, 8).astype(int)
        assert truth.judge(rows)["validity"] == 1
    assert unusual("climbs", str(open_tokens(folder / "test.bin").info["source"])) == SIZES[10:]
    assert unusual("climbs", "/home/me/flights.json.gz") == ""


@pytest.mark.parametrize(
    "wrong, says",
    [
        ("simulated x=1", "'x=1' is not a setting of the simulated climbs"),
        ("simulated length=101", "length = 101 must be at most 100"),
        ("simulated train=0", "train = 0 must be at least 1"),
    ],
)
def test_wrong_sources(tmp_path, wrong, says):
    with pytest.raises(UserError, match=says):
        climbs.prepare(tmp_path / "words", "words", wrong)
    with pytest.raises(UserError, match="tokenizer = 'gpt2'.*their rates"):
        climbs.prepare(tmp_path / "words", "gpt2", "simulated")
    assert not list(tmp_path.iterdir())
