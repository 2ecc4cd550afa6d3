"""The one store of rows: nothing is lost, nothing that is not ours is taken for a row."""

import json
import math
import multiprocessing

import pytest

from common.errors import UserError
from evaluate.store import Store


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


def test_rows_come_back_as_they_were(tmp_path):
    """Numbers that JSON has not, line ends of other alphabets; those of two measures stand in one file."""
    store = Store(tmp_path / "t.jsonl")
    rows = [row("inf", a=math.inf, b=[-math.inf, 1.5], c={"d": 2}, e="inf\u2028x", f=10**20), row("nan")]
    store.put([*rows, row("nan", measure="n")])
    assert store.rows("m") == rows and store.rows("n") == [row("nan", measure="n")]
    store.put([row("nan", g=math.nan)])
    first, second = store.rows("m")  # it took the place of the former one, and stands first
    assert first["name"] == "nan" and math.isnan(first["g"]) and second == rows[0]
    for line in store.path.read_text().split("\n")[:-1]:
        json.loads(line, parse_constant=pytest.fail)


def test_of_what_most_rows_have_a_row_says_what_differs(tmp_path):
    store, rows = Store(tmp_path / "t.jsonl"), runs(1, 2, 3, 4, text="a long setting " * 100, half="one")
    rows[1]["training"] |= {"text": "another", "rate": 1, "half": "other"}
    rows[3]["training"] |= {"half": "other"}
    del rows[2]["training"]["args"]
    store.put(rows)
    assert repr(store.rows("m")[1]["training"]["rate"]) == "1" and store.rows("m") == rows
    common, *lines = map(json.loads, store.path.read_text().splitlines())
    assert common["training"].keys() == {"rate", "text"}
    assert [sorted(line.get("training", {})) for line in lines] == [
        *(["args", "half", "own", "seed"], ["args", "half", "rate", "seed", "text"]),
        *(["half", "seed"], ["args", "half", "seed"], []),
    ]
    store.put([])
    text = store.path.read_text()
    store.put([])
    assert store.path.read_text() == text


@pytest.mark.parametrize("rate", [1, True, 1.5])
def test_what_is_equal_to_python_alone_is_not_in_common(tmp_path, rate):
    store = Store(tmp_path / "t.jsonl")
    rows = [row(name, training={"rate": r}) for name, r in zip("abcde", (1.0, rate, 1.0, 1.0, math.nan))]
    store.put(rows)
    assert store.path.read_text().count('"rate":1.0') == 1
    assert repr(store.rows("m")) == repr(rows)


def test_rows_of_two_files_can_be_put_into_one(tmp_path):
    """Each keeps its common line; a row whose common line is not there is refused."""
    one, two, both = (Store(tmp_path / f"{name}.jsonl") for name in ("one", "two", "both"))
    one.put(runs(1, 2, gain=1))
    two.put(runs(3, 4, gain=2))
    both.path.write_text(two.path.read_text() + one.path.read_text())
    both.put([row("new", training={})])
    gains = {r["name"]: r["training"].get("gain") for r in both.rows("m") if "training" in r}
    assert gains == {"new": None, "r1": 1, "r2": 1, "r3": 2, "r4": 2}
    one.path.write_text("".join(one.path.read_text().splitlines(keepends=True)[1:]))
    with pytest.raises(UserError, match=r"one\.jsonl"):
        one.rows("m")


@pytest.mark.parametrize(
    "text",
    [
        *("x", "[]", "3", '{"rows": []}', "[" * 100_000, "\udcff"),
        json.dumps(row("a", x=1)).replace("1}", "NaN}"),
        json.dumps(row("a"))[:-5],
        json.dumps(row("../a")),
        *(json.dumps(row("a") | bad) for bad in ({"definition": True}, {"settings": 3}, {"training": 3})),
    ],
)
def test_a_file_that_is_not_ours_is_one_line(tmp_path, text):
    path = tmp_path / "t.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))
    for do in (lambda: Store(path).rows("m"), lambda: Store(path).put([row("b")])):
        with pytest.raises(UserError, match=r"t\.jsonl"):
            do()
    assert path.read_bytes() == text.encode(errors="surrogateescape")
