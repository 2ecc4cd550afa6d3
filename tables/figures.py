"""What all figures share: matplotlib, and their files."""

import io
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from common.files import beside, replacing

if TYPE_CHECKING:  # see pyplot
    from matplotlib.figure import Figure


def pyplot() -> ModuleType:
    """matplotlib without a screen; its files are the same for the same numbers.

    Imported here, because that takes a second.
    """
    import matplotlib

    if "matplotlib.pyplot" not in sys.modules:  # a notebook keeps its own
        matplotlib.use("Agg")
    # a "$" in a name is one
    matplotlib.rcParams |= {
        "font.size": 8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "savefig.dpi": 150,
        "pdf.fonttype": 42,  # TrueType, which journals ask for
        "text.parse_math": False,
    }
    import matplotlib.pyplot as plt

    return plt


def write(fig: "Figure", path: Path, form: str = "png") -> list[Path]:
    """path.png or path.pdf, by its `form`, in a list as a measure's `draw` gives its files.

    The PNG has 48 colours: a third of the bytes. The PDF names no date."""
    from PIL import Image

    file, drawn = beside(path, f".{form}"), io.BytesIO()
    undated = {"CreationDate": None} if form == "pdf" else {"Software": None}
    fig.savefig(drawn, format=form, metadata=undated, bbox_inches="tight")
    pyplot().close(fig)
    with replacing(file) as out:
        if form == "pdf":
            out.write(drawn.getvalue())
        else:
            few = (
                Image.open(drawn)
                .convert("RGB")
                .quantize(48, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            )
            few.save(out, format="png", optimize=True)
    return [file]
