"""Files of figures, and the evaluations of a training."""

import json
import math

import pytest

from tables import curve, figures


def test_a_figure_as_png_and_as_pdf(tmp_path):
    """The same numbers give the same file."""

    def drawn(form):
        fig, ax = figures.pyplot().subplots()
        ax.plot([1, 2])
        return figures.write(fig, tmp_path / "x", form)

    for form, begins in (("pdf", b"%PDF"), ("png", b"\x89PNG")):
        (file,) = drawn(form)
        before = file.read_bytes()
        assert file.name == f"x.{form}" and before.startswith(begins) and b"/CreationDate" not in before
        assert drawn(form) == [file] and file.read_bytes() == before


def test_a_part_has_one_quantity_from_start_to_end(tmp_path):
    """What judges the run: the perplexity, which may be infinite, and PPL_eps of a sparse head."""
    part = {"step": 1, "val_windows": 3, "val_nll": "inf", "val_ppl": "inf", "val_ppl_eps": 9.0}
    last = {"step": 2, "val_nll_windows": math.log(8), "val_nll": 3.0, "val_ppl_eps": 20.0}
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (part, last)))

    def perplexities(sparse: bool) -> list[float]:
        return [e["val_ppl"] for e in curve.evaluations(tmp_path, True, sparse)]

    assert perplexities(True) == pytest.approx([9, 8]) and perplexities(False) == pytest.approx([math.inf, 8])
