"""Rows of files of texts: what a file holds, what it must have, and that it is measured as a model's."""

import json
from pathlib import Path

import pytest

from common.errors import UserError
from eval_diversity import main
from evaluate.diversity import TEXT_METRICS
from evaluate.store import Store
from evaluate.text_files import open_texts, split_files
from evaluate.views import read_texts, samples_file

SMALL = ["--texts=8", "--prompt_tokens=4", "--new_tokens=12", "--device=cpu", "--halves=2"]


def rows(out: Path) -> dict[str, dict]:
    return {r["name"]: r for r in Store(out.with_name(out.name + ".jsonl")).rows("text")}


# ---- files -------------------------------------------------------------------------------------------------


def test_an_empty_line_stands_between_two_texts(tmp_path):
    path = tmp_path / "theirs.txt"
    path.write_bytes(b"\n one two\n three\n\nfour\r\n\r\n \t \r\n\r\nfive  \n\n\n")
    (file,), runs = split_files([str(path), "out/run", "name=out/other"])
    assert (file.name, file.texts, file.prompts) == ("theirs", [" one two\n three", "four", "five  "], [])
    assert runs == ["out/run", "name=out/other"]


def test_a_line_of_json_is_a_text(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a\\u2028b", "prompt": "p", "more": 1}\n\n{"prompt": "", "text": "c\\nd"}\n')
    file = open_texts("x", path)
    assert (file.texts, file.prompts) == (["a\u2028b", "c\nd"], ["p", ""])
    path.write_text('"a"\n{"text": "b"}\n')
    assert open_texts("x", path)[2:4] == (["a", "b"], [])


@pytest.mark.parametrize(
    "content",
    ['{"text": "a"}\n{"text": 1}', '{"text": "a", "prompt": ["b"]}', '{"texts": "a"}', "[1]", "a b"],
)
def test_a_file_that_is_none(tmp_path, content):
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match="x.jsonl"):
        open_texts("x", path)


# ---- in a table --------------------------------------------------------------------------------------------


def test_a_file_is_measured_as_the_texts_of_a_model(run, tiny, tmp_path, capsys):
    """A model's texts in a file have its numbers, and no perplexity. It is kept while it is the same."""
    out, path = tmp_path / "table", tmp_path / "theirs.jsonl"
    c = tiny(block_size=96, max_steps=30, learning_rate=1e-2)
    assert run(c) == 0
    flags = ["--texts=8", "--prompt_tokens=4", "--new_tokens=90", "--words=20", "--device=cpu", "--halves=2"]
    asked = [c.out_dir, *flags, f"--out={out}"]
    assert main(asked) == 0
    capsys.readouterr()
    written = read_texts(samples_file(out, c.name))
    path.write_text(
        "".join(json.dumps(text) + "\n" for text in [*written, "one more, which is not measured"])
    )
    assert main([*asked, str(path)]) == 0
    own, theirs = rows(out)[c.name], rows(out)["theirs"]
    assert all(own[key] == theirs[key] for key in (*TEXT_METRICS, "short_texts"))
    assert "ppl_tok" not in theirs and theirs["file"] == path.name
    assert samples_file(out, "theirs").read_text().count("\n") == 8
    assert capsys.readouterr().err.count("kept from") == 1
    assert main([*asked, str(path)]) == 0
    assert capsys.readouterr().err.count("kept from") == 2
    path.write_text(path.read_text().replace(written[0].split()[0], "another"))
    assert main([*asked, str(path)]) == 0
    assert capsys.readouterr().err.count("kept from") == 1


def test_what_cannot_stand_in_a_table_is_refused_before_any_work(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("evaluate.text.reference_row", None)
    path, good = tmp_path / "x.txt", "one two three four five six seven eight nine ten eleven twelve"
    refused = lambda *argv: pytest.raises((ValueError, FileNotFoundError), match=argv[0])
    path.write_text("\n\n".join([good] * 7 + ["too short"]))
    with refused("x.txt"):  # of so many words
        main([str(trained), str(path), *SMALL, "--words=12"])
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):  # the work begins
        main([str(trained), str(path), *SMALL, "--words=5"])
    with refused("x.txt"):  # of so many texts
        main([str(trained), str(path), *SMALL[1:], "--texts=9", "--words=4"])
    with refused("a file of texts"):
        main([str(path), *SMALL])
    with refused("x.txt"):
        main([str(trained), str(path), "--protocol=paper", "--texts=20", "--new_tokens=20", "--device=cpu"])
    for name in ("baseline", "human"):
        with refused(name):
            main([str(trained), f"{name}={path}", *SMALL])
    with refused("none.txt"):
        main([str(trained), str(tmp_path / "none.txt"), *SMALL])
