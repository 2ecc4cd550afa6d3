"""What all figures share: matplotlib, and their files."""

import io
import sys
from contextlib import AbstractContextManager
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


def written_as(form: str) -> AbstractContextManager[None]:
    """Within it `write` writes files of this form, png or pdf."""
    return pyplot().rc_context({"savefig.format": form})


def write(fig: "Figure", path: Path) -> list[Path]:
    """path.png, in a list as a measure's `draw` gives its files; path.pdf under written_as("pdf").

    The PNG has 48 colours: a third of the bytes. The PDF names no date."""
    from PIL import Image

    plt, drawn = pyplot(), io.BytesIO()
    if plt.rcParams["savefig.format"] == "pdf":
        file = beside(path, ".pdf")
        with replacing(file) as out:
            fig.savefig(out, format="pdf", metadata={"CreationDate": None}, bbox_inches="tight")
        plt.close(fig)
        return [file]
    file = beside(path, ".png")
    fig.savefig(drawn, format="png", metadata={"Software": None}, bbox_inches="tight")
    plt.close(fig)
    with Image.open(drawn) as image, replacing(file) as out:
        few = image.convert("RGB").quantize(48, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(out, format="png", optimize=True)
    return [file]
