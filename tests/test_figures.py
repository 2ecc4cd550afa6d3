"""The frontier's points, and figures of rows: what is drawn is what the rows hold."""

import json
import math
import shutil
from operator import itemgetter
from pathlib import Path

import pytest

from data.tokens import open_tokens
from evaluation import diversity, figures
from evaluation import scorer as scorers
from evaluation.texts import cut, held_out_prompts
from measures import curve
from measures import frontier as frontier_measure
from measures.curve import CurveConfig, CurveMeasure
from measures.frontier import FrontierConfig, FrontierMeasure
from measures.measure import evaluate, open_runs
from measures.store import Store
from measures.text import TextMeasure
from measures.text_numbers import open_all
from runtime.configurator import configure
from runtime.errors import UserError

SMALL = ["--texts=6", "--prompt_tokens=4", "--new_tokens=12", "--words=4", "--device=cpu", "--values", "0.5,1.0"]


# ---- the frontier


@pytest.fixture(scope="module")
def frontier(trained, tmp_path_factory) -> Path:
    """The name of a frontier of one run. Read only."""
    out = tmp_path_factory.mktemp("frontier") / "x.frontier"
    assert evaluate(FrontierMeasure(), configure(FrontierConfig, [str(trained), *SMALL, f"--out={out}"])) == 0
    return out


def frontier_rows(out: Path) -> dict[str, dict]:
    return {r["name"]: r for r in Store(out.with_name(out.name + ".jsonl")).rows("frontier")}


def test_human_text_is_scored_against_other_human_text(frontier, trained, token_folder):
    _, s, data, _ = open_all(configure(FrontierConfig, [str(trained), *SMALL]))
    other = held_out_prompts(open_tokens(token_folder / "validation.bin").ids, 6, 4, 12).human
    text = lambda rows: [cut(data.tokenizer.decode(r), s.words) for r in rows.tolist()]
    human = frontier_rows(frontier)["human"]
    assert human["bleu"] == diversity.bleu_sacre(text(data.prompts.human), text(other))
    assert human["self_bleu"] == diversity.self_bleu_sacre(text(data.prompts.human))


def test_a_point_a_temperature(frontier):
    cold, warm = frontier_rows(frontier)["baseline"]["points"]
    assert (cold["temperature"], warm["temperature"]) == (0.5, 1.0)
    assert cold["self_bleu"] > warm["self_bleu"]  # colder is less diverse
    assert frontier.with_name("x.frontier.png").stat().st_size > 1000


def test_a_frontier_over_a_cut(trained, frontier, tmp_path):
    """min_p = 1 leaves the most probable token, and 0 all of them."""
    flags = [*SMALL[:-2], "--over=min_p", "--values=1,0", f"--out={tmp_path / 'cut'}"]
    assert evaluate(FrontierMeasure(), configure(FrontierConfig, [str(trained), *flags])) == 0
    row = frontier_rows(tmp_path / "cut")["baseline"]
    greedy, whole = row["points"]
    assert row["settings"]["min_ps"] == [1, 0] and row["settings"]["temperature"] == 1
    known = frontier_rows(frontier)["baseline"]["points"][1]
    assert {**whole, "temperature": 1} == {**known, "min_p": 0} and greedy["self_bleu"] > whole["self_bleu"]
    assert "| baseline" in (tmp_path / "cut.md").read_text() and "min_p" in (tmp_path / "cut.md").read_text()


def test_a_frontier_under_a_scorer(trained, frontier, tmp_path, monkeypatch):
    """Each point and the human text have MAUVE against human text of the other split, and all else as
    without it."""
    compared = iter([0.9, 0.1, 0.2])
    monkeypatch.setattr(scorers, "mauve_version", lambda: "9.9")
    monkeypatch.setattr(frontier_measure, "mauve_version", lambda: "9.9")
    monkeypatch.setattr(scorers, "mauve", lambda human, texts: next(compared))
    flags = [*SMALL, f"--scorer={trained}", f"--out={tmp_path / 'judged'}"]
    assert evaluate(FrontierMeasure(), configure(FrontierConfig, [str(trained), *flags])) == 0
    rows, plain = frontier_rows(tmp_path / "judged"), frontier_rows(frontier)
    assert rows["human"]["mauve"] == 0.9
    wanted = [p | {"mauve": m} for p, m in zip(plain["baseline"]["points"], (0.1, 0.2))]
    assert rows["baseline"]["points"] == wanted and rows["baseline"]["scorer"]["name"] == "baseline"
    assert "MAUVE is by the scorer baseline" in (tmp_path / "judged.md").read_text()
    monkeypatch.setattr(frontier_measure, "mauve_version", lambda: "")
    with pytest.raises(UserError, match="scorer = .*: mauve-text is not installed"):
        FrontierMeasure().open(configure(FrontierConfig, [str(trained), *flags]))


def test_that_a_frontier_has_no_scorer_is_known_before_any_training(trained):
    (run,) = open_runs([str(trained)])
    c = configure(FrontierConfig, [str(trained), *SMALL])
    assert FrontierMeasure().check(c, [run.ckpt.config])["scorer"] == ""
    auto = configure(FrontierConfig, [str(trained), *SMALL, "--dtype=auto"])  # known with the device alone
    assert "dtype" not in FrontierMeasure().check(auto, [run.ckpt.config])


def test_an_impossible_temperature_is_refused(trained):
    with pytest.raises(ValueError, match="temperature"):
        FrontierMeasure().open(configure(FrontierConfig, [str(trained), *SMALL, "--values=1,-1"]))


def test_a_frontier_has_a_panel_a_row_and_a_curve_a_seed():
    point = lambda t, bleu: {"temperature": t, "self_bleu": 10 / t, "bleu": bleu}
    runs = lambda bleu: [{"points": [point(0.5, bleu + seed), point(1.0, bleu)]} for seed in (1, 2)]
    fig = frontier_measure.frontier(
        {"a": runs(5), "baseline": runs(7)}, {"self_bleu": 3, "bleu": 4}, "temperature"
    )
    (ax,) = fig.axes
    curves = [line.get_xydata().tolist() for line in ax.lines[::2]]
    assert curves == [[[20, y + seed], [10, y]] for y in (7, 5) for seed in (1, 2)] + [[[3, 4]]]
    figures.pyplot().close(fig)


# ---- learning curves


def entry(step: int, ppl: float, truth: bool) -> dict:
    """An evaluation in a log."""
    known = {"tv": ppl / 100, "mass_observed": 0.1, "true_observed": 0.2, "alternatives": 0.9}
    known |= {"mass_invalid": 0.05}
    known["alternatives_by_decade"] = [[0.1, 0.2], [0.2, 0.2], [0.1, 0.1], [0.02, 0.01], [0.0, 0.0]]
    return {"step": step, "val_nll": math.log(ppl), "val_ppl_eps": ppl, **(known if truth else {})}


def runs(truth: bool = False) -> list[dict]:
    """Two rows of two seeds, three evaluations each. Their names say nothing."""
    return [
        {
            "name": f"run-{row}{seed}",
            "row": row,
            "overlay": "small",
            "seed": seed,
            "settings": {},
            "training": {"init_from": "", "head": row, "seed": seed},
            "curve": [entry(step, 40.0 + 10 * seed + 100 / step, truth) for step in (10, 20, 30)],
        }
        for row in ("baseline", "smooth_gpt")
        for seed in (1, 2)
    ]


def test_curves_are_grouped_by_row_and_step(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(curve, "multiples", lambda data, y: drawn.append(data))
    monkeypatch.setattr(curve, "write", lambda fig, path: [path])
    CurveMeasure().draw(runs(), tmp_path / "x")
    assert [*drawn[0]] == ["baseline", "smooth_gpt"]
    assert drawn[0]["baseline"] == {
        10: [60.0, 70.0],
        20: [55.0, 65.0],
        30: pytest.approx([40 + 10 + 100 / 30, 40 + 20 + 100 / 30]),
    }


@pytest.mark.parametrize("truth, ends", [(False, [""]), (True, ["", ".tv", ".mass", ".bias"])])
def test_figures_of_curves(tmp_path, truth, ends):
    """Of runs that trained from scratch; the same rows give the same files."""
    tuned = [
        r | {"name": f"tuned{r['seed']}", "row": "tuned", "training": r["training"] | {"init_from": "out/a"}}
        for r in runs(truth)[2:]
    ]
    made = CurveMeasure().draw(runs(truth) + tuned, tmp_path / "x.curves")
    assert made == [tmp_path / f"x.curves{end}.png" for end in ends]
    assert sorted(made) == sorted(tmp_path.iterdir())
    if not truth:
        before = made[0].read_bytes()
        CurveMeasure().draw(runs(truth), tmp_path / "x.curves")
        assert made[0].read_bytes() == before


def test_what_has_no_curve_has_no_figure(tmp_path):
    once = [r | {"curve": r["curve"][:1]} for r in runs()]
    unknown = [{k: v for k, v in r.items() if k != "training"} for r in runs()]
    for rows in ([], once, unknown):
        assert CurveMeasure().draw(rows, tmp_path / "x") == []
    assert not [*tmp_path.iterdir()]


def test_an_evaluation_without_a_number_is_no_line():
    """As a version wrote that had null for inf."""
    rows = [{"name": "a", "curve": [{"step": 1, "val_ppl": None}, {"step": 2, "val_ppl": 4.0}]}]
    assert curve.curves({"a": rows}, itemgetter("val_ppl")) == {"a": {2: [4.0]}}


def test_a_part_has_one_quantity_from_start_to_end(tmp_path, monkeypatch):
    """What judges the run: the perplexity, which may be infinite, and PPL_eps of a sparse head."""
    part = {"step": 1, "val_windows": 3, "val_nll": "inf", "val_ppl": "inf", "val_ppl_eps": 9.0}
    last = {"step": 2, "val_nll_windows": math.log(8), "val_nll": 3.0, "val_ppl_eps": 20.0}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (part, last)))

    def perplexities(sparse: bool) -> list[float]:
        return [e["val_ppl"] for e in curve.evaluations(tmp_path, True, sparse)]

    assert perplexities(True) == pytest.approx([9, 8]) and perplexities(False) == pytest.approx([math.inf, 8])
    drawn = []
    monkeypatch.setattr(curve, "multiples", lambda data, y: drawn.append(data))
    row = runs()[0] | {"settings": {"part": True}, "curve": curve.evaluations(tmp_path, True, True)}
    assert [*dict(curve.learning({"a": [row]}))] == [""] and drawn[0]["a"][2] == pytest.approx([8])


def test_a_curve_is_measured_anew_when_its_run_went_on(trained, tmp_path):
    """Its best checkpoint may stay as it was."""
    c = CurveConfig([str(trained)], out=str(tmp_path / "x"))
    store = Store.beside(c.out)
    assert evaluate(CurveMeasure(), c) == 0
    (whole,) = store.rows("curve")
    store.put([whole | {"curve": whole["curve"][:-1]}])
    for _ in range(2):
        assert evaluate(CurveMeasure(), c) == 0 and store.rows("curve")[0]["curve"] == whole["curve"]


def test_a_sparse_head_is_known_by_its_configuration(trained, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    path = run / "best" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"head": "sparsemax"}))
    session = CurveMeasure().open(CurveConfig([str(run)], part=True))
    for e in session.numbers(session.subjects[0])["curve"]:
        assert e["val_ppl"] == pytest.approx(e["val_ppl_eps"])


def learnt_by_heart(windows: int) -> dict[str, list[dict]]:
    """Groups of runs on a known language that read one of so many windows a step; a head's KL is inf."""
    groups: dict[str, list[dict]] = {}
    for r in runs(truth=True):
        r["training"] |= {"train_tokens": 8 * windows + 1, "block_size": 8, "batch_size": 1}
        for i, e in enumerate(r["curve"]):
            measured = {"alternatives_q50": 0.9, "alternatives_q05": 0.5 * (2 - i), "mass_invalid": 0.1}
            measured["kl_truth_model"] = math.inf if r["row"] == "smooth_gpt" else 1.0 + i
            known = {"train_nll": 4.0 - i, "train_true_nll": 3.5}
            e |= measured | known | {f"train_{k}": v for k, v in measured.items()}
        groups.setdefault(r["row"], []).append(r)
    return groups


@pytest.mark.parametrize("windows, drawn", [(15, True), (16, False)])
def test_memorisation_is_drawn_of_text_that_is_read_twice(windows, drawn):
    made = dict(curve.learning(learnt_by_heart(windows)))
    assert [*made] == ["", ".tv", ".mass", ".bias", *[".memorise"] * drawn]
    for fig in made.values():
        figures.pyplot().close(fig)


def test_memorisation_shows_what_was_logged():
    """The baseline's and the head's lines, over epochs; what is infinite is left out, 0 is at the bottom."""
    fig = curve.memorisation(learnt_by_heart(5))
    *measures, last = fig.axes
    lines = [[line.get_xydata().tolist() for line in ax.lines] for ax in measures]
    assert len(measures) == len(curve.MEASURES)
    assert lines[0] == [[[2, 1], [4, 2], [6, 3]]] * 2 + [[]] * 2
    quantiles = [[2, 1], [4, 0.5], [6, curve.SMALLEST]]
    assert lines[2] == [quantiles] * 4
    assert last.lines[0].get_xydata().tolist() == [[4, 1], [3, 2], [2, 3]]
    figures.pyplot().close(fig)


def test_numbers_on_a_log_axis_are_plain():
    """Mathematics in text is off: matplotlib's own labels would show their TeX."""
    for which, limits in (("y", (300, 600)), ("y", (10, 5000)), ("x", (2e-3, 8e-3))):
        fig, ((ax, _),) = figures.panels(["x"], 1.6)
        ax.set(**{f"{which}scale": "log", f"{which}lim": limits})
        figures.plain_numbers(ax, which)
        fig.canvas.draw()
        labels = [t.get_text() for t in getattr(ax, f"get_{which}ticklabels")(which="both") if t.get_text()]
        assert labels and all(float(text) > 0 for text in labels)
        figures.pyplot().close(fig)


# ---- calibration


def test_calibration_has_a_line_a_row(tmp_path, monkeypatch):
    """Means over seeds. Neither references nor rows with a problem are on it."""
    settings = {"protocol": "honest"}
    rows = [r | {"settings": settings, "ppl_eps": 40.0, "ece": 0.01 * r["seed"]} for r in runs()]
    rows[3] = {k: v for k, v in rows[3].items() if k != "ece"} | {"problem": "nan"}
    rows.append({"name": "human", "reference": True, "settings": settings})
    drawn, write = [], figures.write
    monkeypatch.setattr(figures, "write", lambda fig, path: drawn.append(fig) or write(fig, path))
    assert TextMeasure().draw(rows, tmp_path / "x") == [tmp_path / "x.ece.png"]
    (ax,) = drawn[0].axes
    (base, head) = (line.get_xydata()[0].tolist() for line in ax.lines)
    assert base == pytest.approx([0.015, 0]) and head == [0.01, 1]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["baseline", "smooth_gpt"]
    assert TextMeasure().draw([r for r in rows if "ece" not in r], tmp_path / "x") == []
