"""Files of figures, and the evaluations of a training."""

import json
import math

import pytest

from evaluate import curve, figures
from evaluate.curve import CurveConfig, CurveMeasure
from evaluate.measure import evaluate
from evaluate.store import Store


def test_a_figure_as_png_and_as_pdf(tmp_path):
    """The same numbers give the same file; the next figure is a PNG again."""

    def drawn():
        fig, ax = figures.pyplot().subplots()
        ax.plot([1, 2])
        return figures.write(fig, tmp_path / "x")

    for form, begins in (("pdf", b"%PDF"), ("png", b"\x89PNG")):
        with figures.written_as(form):
            (file,) = drawn()
            before = file.read_bytes()
            assert file.name == f"x.{form}" and before.startswith(begins) and b"/CreationDate" not in before
            assert drawn() == [file] and file.read_bytes() == before
    assert drawn() == [tmp_path / "x.png"]


def test_a_part_has_one_quantity_from_start_to_end(tmp_path):
    """What judges the run: the perplexity, which may be infinite, and PPL_eps of a sparse head."""
    part = {"step": 1, "val_windows": 3, "val_nll": "inf", "val_ppl": "inf", "val_ppl_eps": 9.0}
    last = {"step": 2, "val_nll_windows": math.log(8), "val_nll": 3.0, "val_ppl_eps": 20.0}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (part, last)))

    def perplexities(sparse: bool) -> list[float]:
        return [e["val_ppl"] for e in curve.evaluations(tmp_path, True, sparse)]

    assert perplexities(True) == pytest.approx([9, 8]) and perplexities(False) == pytest.approx([math.inf, 8])


def test_a_curve_is_measured_anew_when_its_run_went_on(trained, tmp_path):
    """Its best checkpoint may stay as it was."""
    c = CurveConfig([str(trained)], out=str(tmp_path / "x"))
    store = Store.beside(c.out)
    assert evaluate(CurveMeasure(), c) == 0
    (whole,) = store.rows("curve")
    store.put([whole | {"curve": whole["curve"][:-1]}])
    for _ in range(2):
        assert evaluate(CurveMeasure(), c) == 0 and store.rows("curve")[0]["curve"] == whole["curve"]
