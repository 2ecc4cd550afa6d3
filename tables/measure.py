"""What a measure is, and the one loop that takes runs to rows.

A measure makes numbers of a run under stated settings. Each row of a store (tables/store.py) is one run
under one measure. A row is kept as long as it is `unchanged`; there is no other rule.
"""

import json
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from common.config import Name, checked, with_defaults
from common.errors import UserError, nearest, reading
from common.files import beside
from common.places import commit, versions
from config.defaults import TrainConfig
from tables.columns import Column
from tables.names import check_apart, named_path
from tables.store import Row, Store
from tables.views import View
from training.checkpoint import weights_digest
from training.run import Degenerate, Run, difference, training_cost

PLACES = ("data", "source", "out_dir")  # of a run's configuration: of one machine, nobody else's


class Session(ABC):
    """A measure with its data open: everything that can be wrong with what was asked has been found."""

    subjects: Sequence["NamedRun"]  # of a row each
    settings: dict[str, Any]  # what two rows must share to stand in one table
    reference_names: Sequence[str] = ()  # of the rows that no run stands behind: human text, noise, the truth

    @abstractmethod
    def __init__(self, c: Any):
        """UserError for all that cannot be measured, before any work."""

    def whole(self, row: Row) -> bool:
        """Whether nothing of a kept row is missing that could be measured now."""
        return True

    def references(self) -> list[Row]:
        """The rows of `reference_names`, in their order, each with its "name"."""
        return []

    @abstractmethod
    def numbers(self, subject: "NamedRun") -> Row:
        """The numbers of one row. Degenerate if the model's are not numbers."""


class Measure(ABC):
    """What is the same for all runs: the flags, the session that they open, and the views of its rows."""

    name: str
    config: type  # a dataclass of its flags, evaluate.settings.TextConfig or another
    session: type[Session]  # made of an instance of `config`
    definition = 1  # raised by the author when the measure's numbers change their meaning
    columns: Sequence[Column] = ()  # that its table may have, where they are known before it is made

    def check(self, c: Any, wanted: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The settings as far as they are known before any training. UserError for what cannot be measured of
        runs of these configurations."""
        return {}

    @abstractmethod
    def view(self, rows: list[Row]) -> View:
        """The table, made of rows alone."""

    def draw(self, rows: list[Row], out: Path, form: str) -> list[Path]:
        """The files of the table's figures, whose names begin with OUT; `form`: png or pdf."""
        return []


class NamedRun(NamedTuple):
    """A run with the name of its row, as it is when a table is begun: all that is checked is of that."""

    name: str
    path: Path  # as given: a run, or a checkpoint
    ckpt: Run
    sha256: str  # of these

    @property
    def stopped(self) -> int | None:
        """The step that its training has come to, if there is more to do. None if it is over, or if nobody
        knows: of a checkpoint that stands by itself."""
        last = self.ckpt.path.with_name("last")
        if self.ckpt.path.name not in ("best", "last") or not last.is_dir():
            return None
        step = Run(last).progress.step
        return step if step < self.ckpt.record["max_steps"] else None

    def identity(self) -> Row:
        """The fields that make it the same one: digests and its whole configuration."""
        return {"weights_sha256": self.sha256, "training": training_of(self.ckpt.record)}

    def facts(self) -> Row:
        """A run that train.py made of config files knows its row and its overlay; another is its own row."""
        c = self.ckpt.record
        known = self.name == c["name"] and c.get("row")  # under another name it is asked to stand by itself
        fields = {"row": known or self.name, "overlay": c.get("overlay", "") if known else ""}
        fields |= {"seed": c.get("seed"), "checkpoint": str(self.path)}
        fields |= {} if self.stopped is None else {"stopped": self.stopped}
        return fields | {"step": self.ckpt.progress.step, **training_cost(self.ckpt)}


def open_runs(arguments: list[str], which: str = "best") -> list[NamedRun]:
    """The runs that `arguments` ask for: PATH, under the name of its run, or NAME=PATH.
    `which` checkpoint is meant by a run's folder.
    UserError for a name that no row can have."""
    out = []
    for argument in arguments:
        name, path = named_path(argument)
        ckpt = Run(path, which)
        name = checked({"name": name or ckpt.config.name}, {"name": Name})["name"]
        out.append(NamedRun(name, path, ckpt, ckpt.weights_sha256))
    return out


def training_of(config: dict[str, Any]) -> dict[str, Any]:
    """A recorded configuration as a row has it: whole, with the default of each key that it lacks."""
    public = {k: v for k, v in with_defaults(TrainConfig, config).items() if k not in PLACES}
    return json.loads(json.dumps(public))


# -----------------------------------------------------------------------------
# Rows that are there


def unchanged(row: Row, identity: Row) -> bool:
    """Whether `row` is of this run: the same weights and the same configuration, with the defaults of both
    sides filled in. Corpus, teacher and the weights it started from stand in it by their hashes."""
    recorded = {**row, "training": training_of(row.get("training", {}))}
    return identity.keys() <= row.keys() and not difference(recorded, identity)


def common_fields(measure: Measure, settings: dict[str, Any]) -> Row:
    """What all rows of a measure say in one table."""
    return {"measure": measure.name, "definition": measure.definition, "settings": settings}


def kept_rows(store: Store, measure: Measure, settings: dict[str, Any]) -> dict[str, Row]:
    """The rows of a measure that can stand beside new ones, by name: those of its definition.

    UserError if they have other settings.
    """
    kept = {row["name"]: row for row in table_rows(store, measure)}
    for row in kept.values():
        if found := difference(dict.fromkeys(settings) | row["settings"], settings):
            raise UserError(f"{store.path} holds rows of another {found}: give another --out or --results")
    return kept


def left_out(store: Store, measure: Measure) -> list[str]:
    """A line that names the rows of another definition, which stand in no table; none without such."""
    others = [row for row in store.rows(measure.name) if row["definition"] != measure.definition]
    names = ", ".join(row["name"] for row in others if not row.get("reference"))
    why = f"Measured by another definition of {measure.name} (now {measure.definition}), and left out"
    return [f"{why}: {names}."] if names else []


def check_columns(measure: Measure, columns: str) -> None:
    """UserError for a column that no table of the measure has, before the work."""
    known = [column.key for column in measure.columns]
    if known and (unknown := [key for key in columns.split(",") if key not in ["", *known]]):
        raise UserError(f"columns: {unknown[0]!r}{nearest(unknown[0], known)}; there are {', '.join(known)}")


# -----------------------------------------------------------------------------
# The loop


def measure_runs(
    measure: Measure, session: Session, store: Store, fields: dict[str, Row] | None = None
) -> list[Row]:
    """The row of each subject, kept or measured now, each stored as soon as it is made; then the references.

    fields  of each subject by its name: its row, overlay and seed, where a table knows them better
    """
    kept, out = kept_rows(store, measure, session.settings), []
    names = [*(subject.name for subject in session.subjects), *session.reference_names]
    # files have these names
    check_apart([*(kept.keys() - {*names}), *names])
    common = common_fields(measure, session.settings)
    still_alike = partial(kept_rows, store, measure, session.settings)  # another process may write there, too
    references = [row for row in kept.values() if row.get("reference")]
    lacking = {*session.reference_names} - {row["name"] for row in references}
    if lacking or not all(map(session.whole, references)):
        references = [{**common, "reference": True, **row} for row in session.references()]
        store.put(references, still_alike)
    for subject in session.subjects:
        row, identity = kept.get(subject.name), subject.identity()
        same = row is not None and unchanged(row, identity) and row.get("stopped") == subject.stopped
        if row is not None and same and session.whole(row):
            print(f"{subject.name}: kept from {store.path}", file=sys.stderr)
        else:
            row = {**common, "name": subject.name, **subject.facts(), **(fields or {}).get(subject.name, {})}
            row |= {**identity, "command": " ".join(sys.argv), "commit": commit(), "versions": versions()}
            try:
                row |= session.numbers(subject)
            except Degenerate as error:
                row["problem"] = error.reason
            if weights_digest(subject.ckpt.path) != subject.sha256:
                raise UserError(f"{subject.path} has changed since this table was begun: begin it again")
            store.put([row], still_alike)
            print(f"{subject.name}: measured", file=sys.stderr, flush=True)
        out.append(row)
    return [*out, *references]


def in_order(store: Store, measure: Measure, names: Sequence[str]) -> list[Row]:
    """What a table of the store shows, in the order `names` if all of its rows are among them. Else the order
    stays, with new rows last: the first row is the one that the others are compared with."""
    rows = table_rows(store, measure)
    if all(row["name"] in names for row in rows if not row.get("reference")):
        store.order(measure.name, names)
    return table_rows(store, measure)


def exit_code(rows: Iterable[Row]) -> int:
    """1, with a line that names them, if some runs could not be measured."""
    rows = [row for row in rows if not row.get("reference")]
    failed = [f"{row['name']} ({row['problem']})" for row in rows if "problem" in row]
    if failed:
        why = "; ".join(failed)
        print(f"{len(failed)} of {len(rows)} models could not be evaluated: {why}", file=sys.stderr)
    return 1 if failed else 0


def table_rows(store: Store, measure: Measure) -> list[Row]:
    """What a table of the store shows: rows of the measure's definition, the references last."""
    rows = [row for row in store.rows(measure.name) if row["definition"] == measure.definition]
    return sorted(rows, key=lambda row: bool(row.get("reference")))


def show(measure: Measure, store: Store, rows: list[Row], out: Path, c: Any) -> None:
    """Prints the table of `rows`, and writes its views beside OUT, with the figures of the measure's own.

    In a file of several measures the text measure's views have that name, the others OUT.MEASURE. `c`: the
    program's configuration, which may have `figures` (png or pdf), `columns` (see View.only) and `about`,
    what the page of a name opens with.
    """
    about = getattr(c, "about", {}).get(out.name, "")
    if measure.name != "text" and {*store.measures()} - {measure.name, "search"}:
        out = beside(out, f".{measure.name}")
    with reading(store.path or out):
        made = measure.view(rows)
        files = measure.draw(rows, out, getattr(c, "figures", "png")) if store.path else []
    if columns := getattr(c, "columns", ""):
        made = made.only(columns)
    made = made._replace(parts=[about, *made.parts])
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    print(made.fitting(width).markdown, *left_out(store, measure), *files, sep="\n")
    if store.path:
        made.write(out)


def evaluate(measure: Measure, c: Any) -> int:
    """Measures the runs that `c` names: stored at its `out`, and shown; the exit code."""
    check_columns(measure, getattr(c, "columns", ""))
    store = Store.beside(c.out)
    rows = measure_runs(measure, measure.session(c), store)
    shown = in_order(store, measure, [row["name"] for row in rows])
    show(measure, store, shown or rows, Path(c.out), c)
    return exit_code(rows)
