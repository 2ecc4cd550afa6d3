"""The one store of rows: nothing is lost, nothing that is not ours is taken for a row."""

import json
import math
import multiprocessing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.errors import UserError
from tables.names import check_apart
from tables.store import Store


def row(name: str, **fields) -> dict:
    return {"measure": "m", "definition": 1, "name": name, "settings": {"texts": 8}} | fields


def runs(*seeds: int, **training) -> list[dict]:
    """Rows of one table: they differ in a name, a seed, and in what only one of them sets."""
    rows = [row(f"r{s}", training={"seed": s, "rate": 1.0, "args": {"k": [s]}, **training}) for s in seeds]
    rows[0]["training"]["own"] = True
    return [*rows, row("human", reference=True)]


def write(path, first: int) -> None:
    for i in range(10):
        Store(path).put([row(f"r{first + i}")])


def test_two_writers_lose_nothing(tmp_path):
    path, context = tmp_path / "t.jsonl", multiprocessing.get_context("fork")
    writers = [context.Process(target=write, args=(path, first)) for first in (0, 10)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert {r["name"] for r in Store(path).rows("m")} == {f"r{i}" for i in range(20)}
    assert [p.name for p in tmp_path.iterdir()] == ["t.jsonl"]


VALUES = [math.nan, math.inf, -math.inf, 1, 1.0, True, 10**20, "inf\u2028x", "a long text " * 100]
VALUES += [["x", -math.inf, 1.5], {"k": [1]}]
TRAINING = st.dictionaries(st.sampled_from("abcd"), st.sampled_from(VALUES))


@given(st.lists(TRAINING, max_size=6))
@settings(deadline=None)
def test_rows_come_back_as_they_were(tmp_path_factory, trainings):
    """Numbers that JSON has not, line ends of other alphabets, what is equal to Python alone (1, 1.0, True);
    those of two measures stand in one file."""
    store = Store(tmp_path_factory.mktemp("rows") / "t.jsonl")
    rows = [row(f"r{i}", training=training) | training for i, training in enumerate(trainings)]
    rows += [row("human", reference=True)]
    texts, exact = set(), lambda rows: json.dumps(rows, sort_keys=True)
    for _ in range(2):
        store.put([*rows, row("human", measure="n")])
        assert exact(store.rows("m")) == exact(rows) and store.rows("n") == [row("human", measure="n")]
        texts.add(store.path.read_text())
    (text,) = texts  # put again, nothing changes
    for line in text.split("\n")[:-1]:
        json.loads(line, parse_constant=pytest.fail)


def test_a_row_takes_the_place_of_the_former_one(tmp_path):
    store = Store(tmp_path / "t.jsonl")
    store.put([row("a"), row("b"), row("a", measure="n")])
    store.put([row("c"), row("a", x=1)])
    assert store.rows("m") == [row("a", x=1), row("b"), row("c")]
    store.order("m", ["c", "gone", "b"])
    assert store.rows("m") == [row("c"), row("b"), row("a", x=1)] and len(store.rows("n")) == 1


def test_what_refuses_a_row_is_asked_under_the_lock(tmp_path):
    """So two processes cannot both find that theirs is the first."""
    store = Store(tmp_path / "t.jsonl")

    def check():
        assert (tmp_path / ".t.jsonl.lock").is_file() and not store.rows("m")
        raise UserError("another temperature")

    with pytest.raises(UserError, match="temperature"):
        store.put([row("a")], check)
    assert not store.rows("m")


def test_rows_of_two_files_can_be_put_into_one(tmp_path):
    """Each keeps its common line; a row whose common line is not there is refused."""
    one, two, both = (Store(tmp_path / f"{name}.jsonl") for name in ("one", "two", "both"))
    one.put(runs(1, 2, gain=1))
    two.put(runs(3, 4, gain=2))
    assert one.path.read_text().count('"gain"') == 1  # it says once what most rows have
    both.path.write_text(two.path.read_text() + one.path.read_text())
    both.put([row("new", training={})])
    gains = {r["name"]: r["training"].get("gain") for r in both.rows("m") if "training" in r}
    assert gains == {"new": None, "r1": 1, "r2": 1, "r3": 2, "r4": 2}
    one.path.write_text("".join(one.path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(UserError, match=r"one\.jsonl"):
        one.rows("m")


def test_a_file_that_is_not_ours_is_left_alone(tmp_path):
    (path := tmp_path / "t.jsonl").write_text("x")
    with pytest.raises(UserError, match=r"t\.jsonl"):
        Store(path).put([row("b")])
    assert path.read_text() == "x"


def test_names_that_share_a_file_are_refused():
    check_apart(["a b", "a-b"])
    for names in (["a b", "a_b"], ["A", "a"], ["a", "a"]):
        with pytest.raises(ValueError, match="share a file"):
            check_apart(names)
