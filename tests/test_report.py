"""A report: the page is well-formed, holds what the rows hold, escapes what it is given, and asks no network
for anything."""

import json
import math
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

import report
from common.errors import UserError
from common.places import CODE
from tables.report.page import breakable, render
from tables.report.tables import ReportedTable, data_url, open_table
from tables.store import Store
from tables.text import TextMeasure

EVIL = "<img src=x onerror=alert(1)>"
VOID = {"meta", "br", "wbr", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """A parsed page: every tag is closed, ids are there once; a row of a table is [(attributes, text)]."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[tuple[dict, str]]] = []
        self.tags: list[tuple[str, dict]] = []
        self.cell: tuple[dict, list[str]] | None = None
        self.feed(text)
        self.close()
        assert not self.open
        ids = [a["id"] for _, a in self.tags if "id" in a]
        assert len(ids) == len(set(ids))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.cell = dict(attrs), []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            attrs, texts = self.cell
            self.rows[-1].append((attrs, "".join(texts).strip()))
            self.cell = None

    def handle_data(self, data):
        if self.cell:
            self.cell[1].append(data)

    def texts(self, name: str) -> list[list[str]]:
        """The rows of tables that have this name."""
        return [[text for _, text in row] for row in self.rows if row[0][1] == name]


HONEST = {"protocol": "honest", "split": "test", "texts": 2, "loops": 1, "words": 4, "block_size": 16}
HONEST |= {"prompt_tokens": 4, "new_tokens": 8, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1}
HONEST |= {"stride": 16, "samples": 8, "dtype": "float32", "tokenizer": "", "train": "", "corpus": ""}


def text_row(row: str, seed: int, **numbers) -> dict:
    """A row of the text measure."""
    run = {"name": f"{row}-{seed}", "row": row, "overlay": "x", "seed": seed, "training": {"head": row}}
    return {"measure": "text", "definition": TextMeasure.definition, "settings": HONEST, **run, **numbers}


def table_of(folder: Path, *rows: dict) -> Path:
    Store(folder / "x.jsonl").put(rows)
    return folder / "x"


@pytest.fixture
def seeds(tmp_path) -> Path:
    """A table of two rows with three seeds each and of human text; a note and a text are a picture that runs
    code. Texts of two rows lie beside it."""
    rows = []
    for seed in (1, 2, 3):
        rows.append(text_row("baseline", seed, ppl_tok=40.0 + seed, ppl_eps=40.0 + seed, self_bleu=11 + seed))
        rows.append(text_row("other", seed, ppl_tok=math.inf, ppl_eps=90.0 + seed, self_bleu=10.0))
    about = {"tokenizer": EVIL, "complete": True}
    human = text_row("human", 0, about=about, self_bleu=10.0, self_bleu_ci=0.5)
    out = table_of(tmp_path, *rows, human | {"name": "human", "reference": True})
    texts = tmp_path / "x.samples"
    texts.mkdir()
    (texts / "human.jsonl").write_text('" one two three four five"\n"second"\n')
    (texts / "baseline-1.jsonl").write_text(json.dumps(EVIL + " d e f g h") + '\n"other"\n')
    return out


def page_of(*tables: ReportedTable) -> Page:
    return Page(render([*tables]))


def test_a_table_on_a_page(seeds):
    page = page_of(open_table(seeds, 3))
    head, by_seed = page.texts("Row")[-2:]
    assert head[1:] == ["PPL_tok", "PPL_eps", "Self-BLEU"] and by_seed[1] == "PPL_eps, seed 1"
    settings, numbers, each = page.texts("baseline")
    assert settings == ["baseline", "baseline"] and page.texts("Row")[0] == ["Row", "head"]
    assert numbers[1:] == ["42.00 ± 2.48 *", "42.00 ± 2.48 *", "13.00 ± 2.48 (+3.00) *"]
    assert each[1:4] == ["41.00", "42.00", "43.00"]
    assert page.texts("other")[1][1:] == ["inf", "92.00 ± 2.48", "10.00 ± 0.00 (+0.00)"]
    best = [text for row in page.rows for attributes, text in row if attributes.get("class") == "best"]
    assert best == numbers[1:]


def test_rows_are_introduced_by_their_config_files_if_these_are_of_their_heads(tmp_path):
    heads = {"baseline": "softmax", "entmax15": "entmax15", "smooth_gpt": "softmax", "of_no_file": "softmax"}
    rows = [text_row(row, 1, ppl_tok=2.0) | {"training": {"head": head}} for row, head in heads.items()]
    about = open_table(table_of(tmp_path, *rows), 1).about
    assert [*about] == ["baseline", "entmax15"] and about["baseline"].endswith("the true next word probable.")


def test_nothing_given_becomes_code_and_nothing_is_asked_of_a_network(seeds):
    """Names, notes, texts and pictures are text; the page may load nothing by its own policy."""
    page = page_of(open_table(seeds, 3), open_table(seeds, 3))
    assert breakable("a_<b>") == "a_<wbr>&lt;b&gt;"
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "http" not in policy
    asked = [a[k] for tag, a in page.tags for k in ("src", "href", "xlink:href") if k in a]
    assert asked and all(target.startswith(("#", "data:")) for target in asked)


def test_texts_and_pictures_of_a_table(seeds):
    """Texts as the table measures them; the pictures that lie beside it."""
    assert open_table(seeds, 1).samples == [{"human": "one two three four", "baseline": f"{EVIL} d"}]
    for name in ("x.curves.tv.png", "x.svg", "xy.curves.png", "x.samples/baseline-1.png"):
        (seeds.parent / name).write_bytes(name.encode())
    figures = open_table(seeds, 1).figures
    assert figures["x.curves.tv"] == data_url(seeds.parent / "x.curves.tv.png")
    assert figures["drawn by baseline"] == data_url(seeds.parent / "x.samples/baseline-1.png")
    assert len(figures) == 2


def test_a_page_says_what_it_lacks(tmp_path, seeds):
    lacking = render([open_table(table_of(tmp_path / "other", text_row("a", 1, ppl_tok=2.0)), 1)])
    assert "No figures" in lacking and "No texts" in lacking
    assert "No texts" not in render([open_table(seeds, 1)])


def test_help_needs_no_torch():
    code = "import sys, report\ntry: report.main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=CODE, capture_output=True, text=True)
    assert done.returncode == 0 and "TABLE" in done.stdout, done.stderr


def test_a_report_is_written_to_a_file_alone(tmp_path):
    """To the one that a link leads to, and to no pipe: as root that would make a file of a device."""
    table = f"{table_of(tmp_path, text_row('a', 1, ppl_tok=2.0))}.jsonl"
    (tmp_path / "link").symlink_to(tmp_path / "there.html")
    assert report.main([table, f"--out={tmp_path / 'link'}"]) == 0
    assert (tmp_path / "link").is_symlink() and (tmp_path / "there.html").is_file()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe"):
        report.main([table, f"--out={tmp_path / 'pipe'}"])
    assert (tmp_path / "pipe").is_fifo()
