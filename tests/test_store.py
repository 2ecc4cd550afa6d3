"""The one store of rows: nothing is lost, nothing that is not ours is taken for a row."""

import json
import math
import multiprocessing

import pytest

from measures.store import Store
from runtime.errors import UserError


def row(name: str, **fields) -> dict:
    return {"measure": "m", "definition": 1, "name": name, "settings": {"texts": 8}} | fields


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
    """Numbers that JSON has not, line ends of other alphabets, a name that looks like a number."""
    store = Store(tmp_path / "t.jsonl")
    rows = [row("inf", a=math.inf, b=[-math.inf, 1.5], c={"d": 2}, e="inf\u2028x", f=10**20), row("nan")]
    store.put(rows)
    assert store.rows("m") == rows and store.rows("other") == []
    store.put([row("nan", g=math.nan)])
    first, second = store.rows("m")  # it took the place of the former one, and stands first
    assert first["name"] == "nan" and math.isnan(first["g"]) and second == rows[0]
    for line in store.path.read_text().split("\n")[:-1]:
        json.loads(line, parse_constant=pytest.fail)


def test_rows_of_several_measures_stand_in_one_file(tmp_path):
    store = Store(tmp_path / "t.jsonl")
    store.put([row("a"), row("a", measure="n")])
    assert store.rows("m") == [row("a")] and store.rows("n") == [row("a", measure="n")]


@pytest.mark.parametrize(
    "text",
    [
        *("x", "[]", "3", '{"rows": []}', "[" * 100_000),
        json.dumps(row("a", x=1)).replace("1}", "NaN}"),
        json.dumps(row("a"))[:-5],
        json.dumps(row("../a")),
        json.dumps(row("human")),
        json.dumps(row("a", definition=True)),
        json.dumps(row("a", settings=3)),
        json.dumps(row("a", training=3)),
        json.dumps(row("a", x={"float": "many"})),
        "\udcff",
    ],
)
def test_a_file_that_is_not_ours_is_one_line(tmp_path, text):
    path = tmp_path / "t.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))
    for do in (lambda: Store(path).rows("m"), lambda: Store(path).put([row("b")])):
        with pytest.raises(UserError, match=r"t\.jsonl is not .*"):
            do()
    assert path.read_bytes() == text.encode(errors="surrogateescape")


def test_a_place_that_cannot_be_written_is_known_at_once(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "t.jsonl").mkdir()
    for out in ("file/t", "t"):
        with pytest.raises(OSError):
            Store.beside(tmp_path / out)
    assert Store.beside("").rows("m") == []
