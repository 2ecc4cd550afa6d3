"""Climbs: the truth of the simulated ones, climbs out of records, and the errors of runs."""

import gzip
import json
import math

import numpy as np
import pytest
import torch

from common.errors import UserError
from data.open import prepared
from data.tokens import SPLITS, open_tokens
from labs.climbs import records
from labs.climbs.rates import HIGHEST, LENGTH, LOWEST, RATES, WORDS, tokens_of
from labs.climbs.rest import measure as rest
from labs.climbs.rest.rest import can_be_asked, density, rest_nats, sample_rest
from labs.climbs.simulated import Climbs
from labs.orders.filling import paths_of
from labs.orders.readers import reader_of
from labs.orders.samplers import fill_left_to_right
from labs.orders.task import along
from labs.orders.tests.test_trunk import asker, log_p, model_of, of_order
from labs.sequences.exact import UNKNOWN
from labs.sequences.questions import FREE
from labs.sequences.two_sided import two_sided
from tests.fixtures import train_on
from tests.measure_contract import *  # noqa: F403
from tests.measure_contract import Example, rows_of

SIZES = "simulated length=8 train=30 validation=6 test=12"


def test_simulated_climbs_are_possible():
    task = Climbs(20)
    np.testing.assert_allclose(task.step.sum(1), 1)
    assert task.first.sum() == pytest.approx(1)
    x = task.sample(4, np.random.default_rng(3))
    assert task.valid(x).all()
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
    with pytest.raises(UserError, match="length = 101"):
        Climbs(Climbs.LONGEST + 1)


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
    assert climb.rates[0] == 900  # it begins in the step that is half level
    assert (climb.rates[1:88] == 1800).all() and (climb.rates[88:] == 0).all()
    assert (len(climb.rates), climb.filled) == (88 + records.LEVEL, 0)
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


def test_splits_are_by_aircraft(source, tmp_path):
    folder = prepared("climbs", "words", str(source), tmp_path)
    assert folder.name == "words-flights"
    seen = {}
    for split, aircraft in zip(SPLITS, (10, 1, 1)):
        held = open_tokens(folder / f"{split}.bin")
        assert held.given == 1 and held.info["length"] == LENGTH
        rows = held.ids[:-1].reshape(-1, LENGTH)
        seen[split] = set(np.median(rows, 1))  # each aircraft climbs at a rate of its own
        starts = (88 + records.LEVEL - LENGTH) // records.STRIDE[split] + 1
        assert len(seen[split]) == aircraft and len(rows) == aircraft * starts
        assert two_sided(held, "climbs", LENGTH) is None  # nobody knows it
    assert len(set.union(*seen.values())) == 12


@torch.no_grad()
@pytest.mark.parametrize("order", ["left_to_right", "any", "masked"])
def test_nats_of_the_rest(order):
    """Against a forward pass for each token; in any order along the known places, then the others."""
    model = model_of(order, length=6, vocab=5)
    who, rng = asker(model), np.random.default_rng(0)
    whole = torch.from_numpy(rng.integers(0, 5, (3, 6)))
    known = torch.tensor([True, True, False, False, order != "left_to_right", False])
    text, want = torch.where(known, whole, FREE), 0.0
    for place in (~known).nonzero().flatten().tolist():
        if order == "left_to_right":
            p = log_p(model, whole[:, :place])[:, -1].exp()
        elif order == "any":
            path = np.tile([0, 1, 4, 2, 3, 5], (3, 1))
            read, _, positions = along(whole.numpy(), path, 5)
            p = log_p(model, read, positions)[:, [0, 1, 4, 2, 3, 5].index(place)].exp()
        else:
            p = density(who, text)[:, place]
        want -= p.gather(1, whole[:, place : place + 1]).log().sum().item()
        text[:, place] = whole[:, place]
    text = torch.where(known, whole, FREE)
    assert rest_nats(who, text, whole) == pytest.approx(want / int((~known).sum() * 3), rel=1e-5)
    filled = sample_rest(who, text, seed=1)
    assert (filled[:, known] == whole[:, known]).all() and (filled >= 0).all()
    telling = ([1, 2, FREE], [1, FREE, 2], [FREE, 1, 2], [FREE] * 3)
    can = [can_be_asked(who, torch.tensor([row])) for row in telling]
    assert can == [True, *[order != "left_to_right"] * 3]
    if order == "any":  # a run of another order fills in by its own
        model.trunk.fills = "left_to_right"
        filled = sample_rest(who, text, seed=1)
        reader, generator = reader_of(who.model, text, who.draws), torch.Generator().manual_seed(1)
        paths_of(reader, "left_to_right", generator)  # which draws a number for its paths
        assert torch.equal(filled, fill_left_to_right(reader, generator).text)


@torch.no_grad()
def test_the_density_of_known_and_unknown_places():
    who = asker(model_of("any", length=6, vocab=5))
    text = torch.tensor([[FREE, 3, FREE, FREE, 0, FREE]])
    p = density(who, text)
    torch.testing.assert_close(p.sum(2), torch.ones(1, 6, dtype=torch.float64))
    assert p[0, 1, 3] == p[0, 4, 0] == 1
    # a place is asked apart from the others: what stands at another free one makes no difference
    alone = reader_of(who.model, text, who.draws).each(torch.tensor([[2]])).row(torch.tensor([0]))
    torch.testing.assert_close(p[:, 2], alone, rtol=1e-5, atol=1e-7)


def test_errors_of_the_exact_posterior():
    """Of a truth that is asked as a model would be: what samples say, and what is said without them."""
    task = Climbs(8)
    x = torch.from_numpy(task.sample(400, np.random.default_rng(4)))
    errors = {name: rest.truth_errors(task, x, known) for name, known in rest.parts_of(8, 1).items()}
    for name, of_part in errors.items():
        # what is asked about is the truth's own, so its error is its spread: sample^2 = 2 mean^2
        assert of_part["sample"] / of_part["mean"] == pytest.approx(math.sqrt(2), rel=0.1), name
    first = np.where(np.arange(8) < 1, x.numpy(), UNKNOWN)
    want = (task.log_evidence(first) - task.log_prob(x.numpy())).mean() / 7
    assert errors["the first rate"]["nll"] == pytest.approx(want)


@pytest.mark.parametrize("samples", [2, 20])
def test_the_error_of_the_mean_does_not_depend_on_how_many_samples(samples, monkeypatch):
    """A model whose futures are noise around a mean of 0."""
    x = torch.full((200, 8), 2)  # 0 ft/min
    monkeypatch.setattr(rest, "rest_nats", lambda *_: 0.0)
    rng = torch.Generator().manual_seed(0)
    noise = lambda asker, text, seed: torch.randint(1, 6, text.shape, generator=rng)  # around 128 ft/min
    monkeypatch.setattr(rest, "sample_rest", noise)
    model = asker(model_of("left_to_right", length=8, vocab=5))
    errors = rest.model_errors(model, x, np.arange(8) < 1, samples, 0)
    assert errors["mean"] == pytest.approx(128, rel=0.1)
    assert errors["sample"] == pytest.approx(128 * math.sqrt(1 + 2), rel=0.05)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """A run on climbs for each order."""
    folder = prepared("climbs", "words", SIZES, tmp_path_factory.mktemp("data"))
    out = tmp_path_factory.mktemp("runs")
    for order in ("left_to_right", "random", "masked"):
        train_on(folder, out / order, dataset="climbs", block_size=8, **of_order(order))
    flags = ["--windows=10", "--samples=2", "--device=cpu"]
    return Example("rest", sorted(out.iterdir()), flags, "--windows=9")


def test_the_measure(measured):
    rows = {row["name"]: row for row in rows_of(measured)}
    assert rows.keys() == {"truth", "left_to_right", "random", "masked"} and rows["truth"]["reference"]
    assert rows["random"]["row"] == "random" and rows["random"]["training"]["trunk"] == "any_order"
    later = {name: row["parts"]["10% and a later place"].keys() for name, row in rows.items()}
    assert later["random"] == later["masked"] == {*rest.COLUMNS} and not later["left_to_right"]
    assert "one pass" not in rows["left_to_right"]["parts"]["50%"]
    assert measured.with_suffix(".png").is_file()
    assert (measured.parent / "table.samples/left_to_right.safetensors").is_file()
