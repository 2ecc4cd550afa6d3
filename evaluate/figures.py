"""What all figures share, through matplotlib: a file, small panels, and plain numbers on an axis."""

import io
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from common.files import beside, replacing

if TYPE_CHECKING:  # see pyplot
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BASELINE, BASELINE_COLOUR = "baseline", "0.6"
WIDTH = 6  # small multiples side by side


def pyplot() -> ModuleType:
    """matplotlib without a screen; its files are the same for the same numbers.

    Imported here, because that takes a second.
    """
    import matplotlib

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


def panels(names: list[str], height: float) -> tuple["Figure", list[tuple["Axes", str]]]:
    """A figure of a small panel for each name, and [(panel, name)]."""
    high = -(-len(names) // WIDTH)
    wide = -(-len(names) // high)
    fig, axes = pyplot().subplots(
        high,
        wide,
        figsize=(max(5, 2 * wide), height * high + 0.4),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for ax in axes.flat[len(names) :]:
        ax.axis("off")
    if high > 1:  # where a column ends sooner, its last panel has the numbers of the x axis
        for ax in axes[-2, (len(names) - 1) % wide + 1 :]:
            ax.tick_params(labelbottom=True)
    for ax, name in zip(axes.flat, names):
        ax.set_title(name, fontsize=8)
    return fig, list(zip(axes.flat, names))


def plain_numbers(ax: "Axes", which: str = "y") -> None:
    """Labels a logarithmic axis, "x" or "y", whose limits are set, with plain numbers: matplotlib would label
    it with powers in TeX, which pyplot() turns off."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axis = getattr(ax, f"{which}axis")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 300 * low else (1,)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())
