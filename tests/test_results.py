"""results/: each table is made anew of its rows, and a clone stays small."""

import subprocess
from functools import cache
from pathlib import Path

import pytest

from common.config import read
from common.places import find
from tables import ratios, search
from tables.find import find_measure
from tables.settings import TableConfig
from tables.store import Store
from tables.views import View

pytest.importorskip("labs", reason="tables of labs are among the committed ones")
RESULTS = Path(__file__).resolve().parents[1] / "results"
STORES = sorted(RESULTS.glob("*.jsonl"))


@cache
def views(path: Path) -> dict[str, View]:
    """The Markdown file of each view of a store -> what the code makes of the rows."""
    name, store = path.name.removesuffix(".jsonl"), Store(path)
    config = f"config/tables/{name}.py"
    c = read(TableConfig, [config] if find(config).is_file() else [])
    rows, made = {measure: store.rows(measure) for measure in store.measures()}, {}
    if trials := rows.get(search.NAME):
        made[f"{name}.tune.md"] = search.view(trials)
    if trials and "text" in rows and (found := ratios.compare(rows["text"], trials)).best:
        pace = ratios.pace_of(RESULTS.parent / c.cost, found.first) if c.cost else {}
        made[f"{name}.ratios.md"] = ratios.view(found, ratios.costs(rows["text"], found.first, pace))
    shown = ["text", "paper", "images", "classes", "rest"]
    shown += [] if name.endswith(".curves") or name == "single_runs" else ["curve"]  # read by figures alone
    for measure in filter(rows.__contains__, shown):
        view = find_measure(measure).view(rows[measure])
        made[f"{name}.md"] = view._replace(parts=[c.about.get(name, ""), *view.parts])
    return made


@pytest.mark.parametrize("path", STORES, ids=lambda path: path.stem)
def test_committed_tables_are_made_anew_of_their_rows(path):
    for file, view in views(path).items():
        assert (RESULTS / file).read_text(encoding="utf-8") == view.markdown, file


def test_every_committed_table_has_its_rows():
    made = {file for path in STORES for file in views(path)}
    committed = {path.name: path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md")}
    frozen = {name for name, text in committed.items() if text.startswith("Made at ")} | {"decoding.md"}
    assert made == committed.keys() - frozen - {"README.md"} and len(made) > 20


def test_results_are_four_megabytes_at_most():
    try:
        tracked = subprocess.check_output(["git", "ls-files", "-z", "."], cwd=RESULTS, text=True).split("\0")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no checkout of git: nobody knows which files are committed")
    sizes = {name: (RESULTS / name).stat().st_size for name in tracked if (RESULTS / name).is_file()}
    assert sizes and sum(sizes.values()) <= 4_000_000
    assert not {Path(name).suffix for name in sizes} - {".md", ".jsonl", ".png"}
    rows = [(RESULTS / name).read_text(encoding="utf-8") for name in sizes if name.endswith(".jsonl")]
    assert not [text for text in rows if '"checkpoint":"/' in text]  # a place of one machine


HEADS = ["config/tables/heads.py", '--rows=["baseline","gs_softmax_f1","bayes_gpt"]']


def test_committed_trials_are_those_that_the_command_asks_for(monkeypatch):
    """The same command trains none of them again."""
    monkeypatch.chdir(RESULTS.parent)
    monkeypatch.setattr("tables.jobs.data_of", lambda *_: "")  # whatever is prepared on this machine
    trials = search.Search(read(TableConfig, HEADS), Store(RESULTS / "heads.jsonl"))
    assert trials.to_do() == []
    trials.c.trials += 1  # one more of each row
    assert [job.name[-3:] for job in trials.to_do()] == ["t12"] * 3
