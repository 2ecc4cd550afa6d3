"""Figures of rows: what is drawn is what the rows hold."""

import json
import math

import pytest

from evaluate import curve, figures
from evaluate.curve import CurveConfig, CurveMeasure
from evaluate.measure import evaluate
from evaluate.store import Store

# ---- learning curves


def entry(step: int, ppl: float) -> dict:
    """An evaluation in a log."""
    return {"step": step, "val_nll": math.log(ppl), "val_ppl_eps": ppl}


def runs() -> list[dict]:
    """Two rows of two seeds, three evaluations each. Their names say nothing."""
    return [
        {
            "name": f"run-{row}{seed}",
            "row": row,
            "overlay": "small",
            "seed": seed,
            "settings": {},
            "training": {"init_from": "", "head": row, "seed": seed},
            "curve": [entry(step, 40.0 + 10 * seed + 100 / step) for step in (10, 20, 30)],
        }
        for row in ("baseline", "smooth_gpt")
        for seed in (1, 2)
    ]


def test_the_figure_of_curves(tmp_path):
    """Of runs that trained from scratch; the same rows give the same file."""
    tuned = [
        r | {"name": f"tuned{r['seed']}", "row": "tuned", "training": r["training"] | {"init_from": "out/a"}}
        for r in runs()[2:]
    ]
    (made,) = CurveMeasure().draw(runs() + tuned, tmp_path / "x.curves")
    before = made.read_bytes()
    assert [made] == [*tmp_path.iterdir()] == CurveMeasure().draw(runs(), tmp_path / "x.curves")
    assert made.read_bytes() == before


def test_a_figure_as_pdf(tmp_path):
    """The same rows give the same file; the next figure is a PNG again."""
    made = [tmp_path / "x.pdf"]
    with figures.written_as("pdf"):
        assert CurveMeasure().draw(runs(), tmp_path / "x") == made
        before = made[0].read_bytes()
        assert before.startswith(b"%PDF") and b"/CreationDate" not in before
        assert CurveMeasure().draw(runs(), tmp_path / "x") == made and made[0].read_bytes() == before
    assert CurveMeasure().draw(runs(), tmp_path / "x") == [tmp_path / "x.png"]


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
    monkeypatch.setattr(curve, "write", lambda fig, path: [path])
    CurveMeasure().draw([row], tmp_path / "x")
    assert drawn[0]["baseline"][2] == pytest.approx([8])


def test_a_curve_is_measured_anew_when_its_run_went_on(trained, tmp_path):
    """Its best checkpoint may stay as it was."""
    c = CurveConfig([str(trained)], out=str(tmp_path / "x"))
    store = Store.beside(c.out)
    assert evaluate(CurveMeasure(), c) == 0
    (whole,) = store.rows("curve")
    store.put([whole | {"curve": whole["curve"][:-1]}])
    for _ in range(2):
        assert evaluate(CurveMeasure(), c) == 0 and store.rows("curve")[0]["curve"] == whole["curve"]
