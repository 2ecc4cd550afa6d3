"""The frontier's points, and figures from tables: what is drawn is what the tables hold."""

import json
import math
import types
from pathlib import Path

import pytest

import frontier
from data.tokens import open_tokens
from evaluation import diversity, figures
from evaluation.rows import open_all
from evaluation.texts import cut, held_out_prompts
from frontier import FrontierConfig
from runtime.checkpoint import Degenerate
from runtime.configurator import configure

SMALL = ["--texts=6", "--prompt_tokens=4", "--new_tokens=12", "--device=cpu", "--temperatures", "0.5,1.0"]


@pytest.fixture(scope="module")
def points(trained, tmp_path_factory) -> Path:
    """The files of a frontier of one run. Read only."""
    out = tmp_path_factory.mktemp("frontier") / "x.frontier"
    assert frontier.main([str(trained), *SMALL, "--out", str(out)]) == 0
    return out


def read(out: Path) -> dict:
    return json.loads(out.with_name(out.name + ".json").read_text())


def test_human_text_is_scored_against_other_human_text(points, trained, token_folder):
    _, s, data, _ = open_all(configure(FrontierConfig, [str(trained), *SMALL]))
    other = held_out_prompts(open_tokens(token_folder / "validation.bin").ids, 6, 4, 12).human
    text = lambda rows: [cut(data.tokenizer.decode(r), s.words) for r in rows.tolist()]
    human = next(r for r in read(points)["rows"] if r["name"] == "human")
    assert human["bleu"] == diversity.bleu_sacre(text(data.prompts.human), text(other)) and human[
        "self_bleu"
    ] == diversity.self_bleu_sacre(text(data.prompts.human))


def test_a_point_a_temperature(points):
    row = next(r for r in read(points)["rows"] if r["name"] == "baseline")
    cold, warm = row["points"]
    assert (cold["temperature"], warm["temperature"]) == (0.5, 1.0) and cold["self_bleu"] > warm[
        "self_bleu"
    ]  # colder is less diverse
    for end in ("png", "svg"):
        assert points.with_name(f"{points.name}.{end}").stat().st_size > 1000


def test_what_is_done_is_kept_and_other_settings_are_refused(points, trained, capsys, monkeypatch):
    monkeypatch.setattr(frontier, "sample_texts", None)
    assert frontier.main([str(trained), *SMALL, "--out", str(points)]) == 0
    assert "baseline: kept" in capsys.readouterr().err
    with pytest.raises(ValueError, match="other settings .texts 6, now 5"):
        frontier.main([str(trained), *SMALL, "--texts=5", "--out", str(points)])


def test_points_of_another_sampler_are_not_kept(points, trained, tmp_path, capsys, monkeypatch):
    path = tmp_path / "x.json"
    had = read(points)
    for row in had["rows"]:
        row |= {"code": "older"} if "points" in row else {}
    path.write_text(json.dumps(had))
    monkeypatch.setattr(frontier, "figures", types.SimpleNamespace(draw=lambda out: []))
    argv = [*SMALL, "--out", str(tmp_path / "x")]
    assert frontier.main([f"other={trained}", *argv]) == 0
    said = capsys.readouterr().out
    assert "Scored by another version of this program" in said and said.rstrip().endswith("there: baseline.")
    assert frontier.main([str(trained), *argv]) == 0
    assert "kept from" not in capsys.readouterr().err
    rows = {r["name"]: r for r in read(tmp_path / "x")["rows"]}
    assert rows["baseline"]["code"] == rows["other"]["code"] != "older"


def test_two_processes_add_to_one_frontier(trained, tmp_path, monkeypatch):
    """While one model is sampled, another process writes its row: both stay."""
    out, real, again = tmp_path / "x", frontier.sample_texts, []

    def meanwhile(*args):
        if not again:
            again.append("started")
            again.append(frontier.main([f"other={trained}", *SMALL, "--out", str(out)]))
        return real(*args)

    monkeypatch.setattr(frontier, "sample_texts", meanwhile)
    assert frontier.main([str(trained), *SMALL, "--out", str(out)]) == 0 and again == ["started", 0]
    assert {r["name"] for r in read(out)["rows"]} == {"human", "baseline", "other"} and not list(
        tmp_path.glob(".*")
    )


def test_a_degenerate_model_is_named_and_the_others_have_their_points(trained, tmp_path, monkeypatch, capsys):
    real = frontier.load_model

    def loading(path, **kwargs):
        if path == trained / "last":
            raise Degenerate("its weights hold nan or inf (x)", path)
        return real(path, **kwargs)

    monkeypatch.setattr(frontier, "load_model", loading)
    assert frontier.main([f"bad={trained}/last", str(trained), *SMALL, "--out", str(tmp_path / "x")]) == 1
    bad, good = (
        next(r for r in read(tmp_path / "x")["rows"] if r["name"] == name) for name in ("bad", "baseline")
    )
    assert (
        bad["problem"] == "its weights hold nan or inf (x)"
        and "points" not in bad
        and len(good["points"]) == 2
    )
    assert (
        "1 of 2 models could not be evaluated: bad (its weights hold nan or inf (x))"
        in capsys.readouterr().err
    )


def test_an_impossible_temperature_is_refused(trained, tmp_path):
    with pytest.raises(ValueError, match="temperature"):
        frontier.main([str(trained), *SMALL, "--out", str(tmp_path / "x"), "--temperatures=1,-1"])
    assert not list(tmp_path.iterdir())


def runs(truth: bool = False) -> list[dict]:
    """Two rows of two seeds, three evaluations each."""
    entry = lambda step, ppl: {
        "step": step,
        "val_nll": math.log(ppl),
        "val_ppl_eps": ppl,
        **(
            {
                "tv": ppl / 100,
                "mass_observed": 0.1,
                "true_observed": 0.2,
                "alternatives": 0.9,
                "mass_invalid": 0.05,
                "alternatives_by_decade": [[0.1, 0.2], [0.2, 0.2], [0.1, 0.1], [0.02, 0.01], [0.0, 0.0]],
            }
            if truth
            else {}
        ),
    }
    return [
        {
            "name": f"{name}-small-{seed}",
            "row": name,
            "training": {"init_from": ""},
            "curve": [entry(step, 40.0 + 10 * seed + 100 / step) for step in (10, 20, 30)],
        }
        for name in ("baseline", "smooth_gpt")
        for seed in (1, 2)
    ]


def test_curves_are_grouped_by_row_and_step():
    c = figures.curves(runs(), lambda e: e["val_ppl_eps"])
    assert list(c) == ["baseline", "smooth_gpt"] and c["baseline"] == {
        10: [60.0, 70.0],
        20: [55.0, 65.0],
        30: pytest.approx([40 + 10 + 100 / 30, 40 + 20 + 100 / 30]),
    }


def test_no_row_is_read_out_of_a_name(tmp_path, monkeypatch):
    """Two trainings are not two seeds of one, whatever their names have in common."""
    names = ["baseline-small", "baseline-small-lr3", "sig_gpt-small-hard1", "sig_gpt-small-hard50"]
    single = [{k: v for k, v in r.items() if k != "row"} | {"name": n} for r, n in zip(runs(), names)]
    assert list(figures.curves(single, lambda e: e["val_ppl_eps"])) == names
    # of a table it is what its summary says
    (tmp_path / "x.runs.json").write_text(json.dumps({"rows": single}))
    summary = [{"name": "a", "runs": names[:1]}, {"name": "b", "runs": names[2:]}]
    (tmp_path / "x.json").write_text(json.dumps({"rows": summary}))
    drawn = []
    monkeypatch.setattr(figures, "multiples", lambda data, *_: drawn.append(data))
    list(figures.table_figures(tmp_path / "x"))
    assert [(row, len(steps[10])) for row, steps in drawn[0].items()] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("truth, kinds", [(False, ["curves"]), (True, ["curves", "tv", "mass", "bias"])])
def test_figures_of_a_table(tmp_path, truth, kinds):
    tuned = [
        r
        | {
            "name": r["name"].replace("smooth_gpt", "stop_gradient"),
            "training": {"init_from": "out/baseline"},
        }
        for r in runs(truth)[2:]
    ]
    (tmp_path / "x.runs.json").write_text(
        json.dumps({"rows": runs(truth) + tuned + [{"name": "human", "reference": True}]})
    )
    (tmp_path / "x.json").write_text(
        json.dumps({"rows": [{"name": r["row"], "runs": [r["name"]]} for r in runs(truth) + tuned]})
    )
    drawn = figures.draw(tmp_path / "x")
    made = [tmp_path / f"x.{kind}.{end}" for kind in kinds for end in ("png", "svg")]
    assert drawn == made and sorted(p for p in tmp_path.iterdir() if p.suffix != ".json") == sorted(made)
    assert "mathdefault" not in made[1].read_text()  # TeX as it is written
    before = [p.read_bytes() for p in made]
    assert figures.draw(tmp_path / "x") == made
    assert [p.read_bytes() for p in made] == before  # the same numbers, the same files


def learnt_by_heart(train_tokens: int) -> dict[str, str]:
    """The files of a table on a known language: evaluations after 10, 20 and 30 windows; a head's KL is
    inf."""
    rows = runs(truth=True)
    for r in rows:
        r["training"] |= {"train_tokens": train_tokens, "block_size": 8, "batch_size": 1}
        for i, entry in enumerate(r["curve"]):
            measured = {"alternatives_q50": 0.9, "alternatives_q05": 0.5 * (2 - i), "mass_invalid": 0.1}
            measured["kl_truth_model"] = "inf" if "smooth" in r["name"] else 1.0 + i
            known = {"train_nll": 4.0 - i, "train_true_nll": 3.5}
            entry |= measured | known | {f"train_{k}": v for k, v in measured.items()}
    summary = {"rows": [{"name": r["row"], "runs": [r["name"]]} for r in rows]}
    return {"x.runs.json": json.dumps({"rows": rows}), "x.json": json.dumps(summary)}


@pytest.mark.parametrize("windows, drawn", [(15, True), (16, False)])
def test_memorisation_is_drawn_of_text_that_is_read_twice(tmp_path, monkeypatch, windows, drawn):
    monkeypatch.setattr(figures, "write", lambda fig, path: [path.name])
    for name, content in learnt_by_heart(8 * windows + 1).items():
        (tmp_path / name).write_text(content)
    assert figures.draw(tmp_path / "x") == ["x.curves", "x.tv", "x.mass", "x.bias", *["x.memorise"] * drawn]


def test_memorisation_shows_what_was_logged(tmp_path, monkeypatch):
    """The baseline's and the head's lines, over epochs; what is infinite is left out, 0 is at the bottom."""
    kept, write = [], figures.write
    monkeypatch.setattr(figures, "write", lambda fig, path: kept.append(fig) or write(fig, path))
    rows = json.loads(learnt_by_heart(8 * 5 + 1)["x.runs.json"])["rows"]
    made = figures.write(figures.memorisation(rows), tmp_path / "x")
    assert len(made) == 2 and all(path.stat().st_size > 1000 for path in made)
    *measures, last = kept[0].axes
    lines = [[line.get_xydata().tolist() for line in ax.lines] for ax in measures]
    assert len(measures) == len(figures.MEASURES)
    assert lines[0] == [[[2, 1], [4, 2], [6, 3]]] * 2 + [[]] * 2
    quantiles = [[2, 1], [4, 0.5], [6, figures.SMALLEST]]
    assert lines[2] == [quantiles] * 4
    assert last.lines[0].get_xydata().tolist() == [[4, 1], [3, 2], [2, 3]]


def test_a_table_without_learning_curves_has_no_figures(tmp_path):
    (tmp_path / "x.json").write_text('{"rows": []}')
    (tmp_path / "x.runs.json").write_text('{"rows": []}')
    assert figures.draw(tmp_path / "x") == [] and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "name, content, says",
    [("x.runs.json", "[", "is not JSON"), ("y.runs.json", "", "has no points"), ("x.json", "", "no file")],
)
def test_other_files_are_refused(tmp_path, name, content, says):
    (tmp_path / "x.json").write_text('{"rows": []}')
    (tmp_path / name).write_text(content)
    if not content and name == "x.json":
        (tmp_path / name).unlink()
    with pytest.raises((ValueError, OSError), match=says):
        figures.draw(tmp_path / "x")


def test_numbers_on_a_log_axis_are_plain():
    """Mathematics in text is off: matplotlib's own labels would show their TeX."""
    for limits in ((300, 600), (10, 5000)):
        fig, ((ax, _),) = figures.panels(["x"], 1.6)
        ax.set_yscale("log")
        ax.set_ylim(*limits)
        figures.plain_numbers(ax)
        fig.canvas.draw()
        labels = [t.get_text() for t in ax.get_yticklabels(which="both") if t.get_text()]
        assert labels and all(float(text) > 0 for text in labels)
        figures.pyplot().close(fig)
