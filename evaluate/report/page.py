"""A report as HTML: one file that holds all it needs, and asks no network for anything."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from common.places import called
from evaluate.report.about import Opening
from evaluate.report.runs import ReportedRuns, Token
from evaluate.report.tables import ReportedTable, leading_number

HERE = Path(__file__).parent
BETTER = {
    "low": "lower is better",
    "high": "higher is better",
    "human": "best near human text, to which (+x) is the distance",
}


def inlined(name: str) -> Markup:
    """A file of ours as it stands: what is in it is no text to be escaped."""
    return Markup((HERE / name).read_text(encoding="utf-8"))


def shades(token: Token, scale: dict[str, float]) -> str:
    """The shades of a token, from 0 to 1, as a style."""
    values = {"nll": token.nll, "epistemic": token.epistemic or 0.0}
    shade = (f"--{k}:{min(1.0, max(0.0, v / scale[k])):.2f}" for k, v in values.items() if scale[k] > 0)
    return ";".join(shade)


def described(token: Token) -> str:
    """What a token says of itself."""
    parts = [f"p = {token.p:.3f}, -log p {token.nll:.2f}"]
    if token.epistemic is not None:
        parts.append(f"epistemic {token.epistemic:.3f}")
    if token.forbidden:
        parts.append("the language forbids it here")
    return ", ".join(parts)


def probability(p: float) -> str:
    """Three places; a zero that is exact has none."""
    return f"{p:.3f}" if p else "0"


def render(tables: list[ReportedTable], runs: ReportedRuns | None, about: Opening | None = None) -> str:
    """The page. Everything in it is escaped but for our own style and script.

    about  what is said of the runs. A table's own opening is left out if it is of no others
    """
    known = about.names if about else set()
    tables = [t._replace(opening=None) if t.opening and known >= t.opening.names else t for t in tables]
    env = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "described": described,
        "leading_number": leading_number,
        "probability": probability,
        "called": called,
    }
    env.globals |= {"shades": shades, "style": inlined("style.css"), "script": inlined("script.js")}
    env.globals["better"] = BETTER
    return env.get_template("page.html").render(tables=tables, runs=runs, about=about) + "\n"
