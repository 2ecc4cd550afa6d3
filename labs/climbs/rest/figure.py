"""The figures of the rest of climbs, and the arrays that a measure keeps of each row to draw from."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor

from common.errors import UserError
from common.files import beside, replacing
from labs.climbs.rates import BIN, RATES, STEP
from labs.climbs.rest.rest import can_be_asked, density, sample_rest
from labs.embeddings import tsne
from labs.orders.asking import Asker
from labs.sequences.exact import UNKNOWN, Chain
from tables import figures
from tables.views import samples_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FUTURES = 6  # in each panel of the figure
Arrays = dict[str, np.ndarray]
Extent = tuple[float, float, float, float]  # of a picture: left, right, bottom, top


# -----------------------------------------------------------------------------
# Arrays of a row


def arrays_file(out: Path, name: str) -> Path:
    """OUT.samples/NAME.safetensors."""
    return samples_file(out, name).with_suffix(".safetensors")


def write_arrays(out: str, name: str, arrays: Arrays) -> None:
    """Keeps the arrays of the row `name` for `draw`, unless `out` is empty."""
    if out:
        path = arrays_file(Path(out), name)
        with replacing(path) as file:
            file.write(save({key: np.ascontiguousarray(array) for key, array in arrays.items()}))


def has_arrays(out: str, name: str) -> bool:
    return not out or arrays_file(Path(out), name).is_file()


def read_arrays(out: Path, name: str) -> Arrays:
    """What `write_arrays` kept; {} if it is not there. UserError if it is damaged."""
    path = arrays_file(out, name)
    try:
        return load(path.read_bytes()) if path.is_file() else {}
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}): delete it, and measure its run again") from None


def shade(ax: "Axes", p: np.ndarray, most: float, extent: Extent | None = None) -> None:
    """The density p (T, V) of each place in grey, its root so that small ones are seen; black from `most`."""
    ax.imshow(np.sqrt(p.T), origin="lower", aspect="auto", cmap="Greys", vmin=0, vmax=most, extent=extent)


# -----------------------------------------------------------------------------
# Climbs


class Panel(NamedTuple):
    """What a row says of the rest of one climb."""

    futures: np.ndarray  # (FUTURES, T) tokens; (0, T) of a model that cannot be asked
    density: np.ndarray  # (T, V); (0, V) of a model from left to right

    @classmethod
    def from_model(cls, asker: Asker, text: Tensor, seed: int) -> "Panel":
        """Of one text (1, T)."""
        none = cls(np.empty((0, text.shape[1]), np.int64), np.empty((0, len(RATES))))
        if not can_be_asked(asker, text):
            return none
        futures = sample_rest(asker, text.expand(FUTURES, -1), seed).numpy()
        p = none.density if asker.order == "left_to_right" else density(asker, text)[0].numpy()
        return cls(futures, p)

    @classmethod
    def from_truth(cls, chain: Chain, text: Tensor, seed: int) -> "Panel":
        futures, rng = text.expand(FUTURES, -1).numpy().copy(), np.random.default_rng(seed)
        for place in np.flatnonzero(futures[0] == UNKNOWN):
            p = np.exp(chain.log_probs(futures)[:, place])
            futures[:, place] = [rng.choice(len(each), p=each / each.sum()) for each in p]
        return cls(futures, np.exp(chain.log_probs(text.numpy())[0]))


def panel_arrays(panels: list[Panel]) -> Arrays:
    return {f"{key}_{n}": array for n, panel in enumerate(panels) for key, array in panel._asdict().items()}


def draw_futures(
    columns: dict[str, Arrays], parts: tuple[str, ...], climb: int, out: Path, form: str
) -> list[Path]:
    """OUT.png: a column for each row of the table, and a line for each of the `parts` that are known of the
    climb of that number. Grey: the density at each time; lines: futures; points: what is known; dashed: what
    came."""
    plt = figures.pyplot()
    size = (2.6 * len(columns), 2.3 * len(parts))
    fig, axes = plt.subplots(len(parts), len(columns), figsize=size, sharex=True, sharey=True, squeeze=False)
    for number, (name, arrays) in enumerate(columns.items()):
        whole = arrays["real"][climb]
        minutes, half = np.arange(len(whole)) * STEP / 60, BIN / 2
        extent = (-STEP / 120, minutes[-1] + STEP / 120, RATES[0] - half, RATES[-1] + half)
        for n, (ax, known) in enumerate(zip(axes[:, number], arrays["known"])):
            panel = Panel(arrays[f"futures_{n}"], arrays[f"density_{n}"])
            if not len(panel.futures):
                ax.text(0.5, 0.5, "cannot be asked", ha="center", transform=ax.transAxes)
                continue
            if len(panel.density):
                shade(ax, panel.density, 0.8, extent)
            for future in panel.futures:
                ax.plot(minutes, RATES[future], lw=0.6)
            ax.plot(minutes, RATES[whole], "--", color="black", lw=0.7)
            ax.plot(minutes[known], RATES[whole[known]], ".", color="black", ms=4)
        axes[0, number].set_title(name)
        axes[-1, number].set_xlabel("minutes")
    for ax, part in zip(axes[:, 0], parts):
        ax.set_ylabel(f"ft/min ({part})")
    return figures.write(fig, out, form)


def draw_climbs(columns: dict[str, Arrays], out: Path, form: str) -> list[Path]:
    """OUT.embeddings.png: t-SNE of the whole climbs (n, T) that the rows sampled, and of the split's, if
    there are enough."""
    real = next(iter(columns.values()))["real"]
    sampled = {name: arrays["sampled"] for name, arrays in columns.items() if "sampled" in arrays}
    if len(real) < tsne.LEAST or not sampled:
        return []
    climbs = {name: RATES[tokens].astype(float) for name, tokens in ({"real": real} | sampled).items()}
    return tsne.draw_tsne(climbs, beside(out, ".embeddings"), real="real", form=form)
