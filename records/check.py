"""Checks the entries of records/ and makes their board, README.md.

    python records/check.py            exits 1 where an entry is not as it should be, or the board not theirs
    python records/check.py --write    writes the board
    python records/check.py --score records/001-softmax 2=PATH 3=PATH ...

The last one is the verifier: it scores models, SEED=PATH each, and writes the entry's scores.jsonl. A PATH is
what `Language.score` takes: a folder that transformers loads, or a file of log-probabilities.
"""

import argparse
import hashlib
import itertools
import json
import math
import re
import statistics
import sys
from datetime import date as Date
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from scipy import stats

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from evaluation.statistics import ALPHA, paired_p, student_interval
from nanoheads.truth import CONTEXT, Language

SEEDS = 5  # at least, of an entry
KEY = "kl_truth_model"
MARKS = "<!-- board: python records/check.py --write -->", "<!-- end of the board -->"
COLUMNS = {  # of the board, beside what it is ordered by: what is wrong, not only how much
    "tv": ("TV", ".3f"),
    "mass_invalid": ("invalid", ".4f"),
    "alternatives_error": ("alternatives, error", ".3f"),
    "ece": ("ECE", ".4f"),
}


class Track(NamedTuple):
    title: str
    readings: int  # at most, of all of them together


TRACKS = {
    "once": Track("Two million words, read once", 2_000_000),
    "64-times": Track("Fifty thousand words, read 64 times", 64 * 50_012),
}

Line = Annotated[str, StringConstraints(min_length=1, pattern=r"^[^\n|]+$")]


class Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Entry(Checked):
    """entry.json. README.md says what each field is to hold."""

    title: Line
    track: Literal["once", "64-times"]
    author: Line
    date: Date = Field(strict=False)
    code: Line
    commit: str = Field(pattern="^[0-9a-f]{40}$")
    commands: list[Line] = Field(min_length=1)
    models: Line
    machine: Line
    seconds: float = Field(gt=0)
    parameters: int = Field(ge=0)
    readings: int = Field(gt=0)
    search: Line


class Scored(Checked):
    """A line of scores.jsonl, written by the verifier."""

    model_config = ConfigDict(extra="allow")  # all other numbers of Language.score

    seed: int = Field(ge=0)
    language: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    split: Literal["test"]
    context: Literal[128]
    tokens: int
    kl_truth_model: float = Field(gt=0)
    tv: float = Field(ge=0, le=1)
    mass_invalid: float = Field(ge=0, le=1)
    alternatives_error: float
    ece: float = Field(ge=0, le=1)


class Record(NamedTuple):
    name: str
    entry: Entry
    scores: list[Scored]

    def values(self, key: str = KEY) -> dict[int, float]:
        """Each seed's number."""
        return {score.seed: getattr(score, key) for score in self.scores}


# -----------------------------------------------------------------------------
# Entries


def read(folder: Path) -> Record:
    """An entry. ValueError for what it lacks."""
    try:
        entry = Entry.model_validate_json((folder / "entry.json").read_text(encoding="utf-8"))
        lines = (folder / "scores.jsonl").read_text(encoding="utf-8").splitlines()
        scores = [Scored.model_validate_json(line) for line in lines]
    except (ValidationError, OSError) as error:
        raise ValueError(f"{folder.name}: {error}") from None
    record, track = Record(folder.name, entry, scores), TRACKS[entry.track]
    seeds = [score.seed for score in scores]
    for wrong, remedy in {
        len({*seeds}) < SEEDS: f"it has the seeds {seeds}: give at least {SEEDS} different ones",
        len({*seeds}) < len(seeds): f"it has the seeds {seeds}: give each one line",
        len({score.sha256 for score in scores}) < len(seeds): "two seeds have the same model",
        entry.readings > track.readings: f"readings = {entry.readings:,}: at most {track.readings:,}",
        "{seed}" not in "".join(entry.commands): "no command has {seed} in it: a seed makes a model anew",
    }.items():
        if wrong:
            raise ValueError(f"{folder.name}: {remedy}")
    return record


def read_all(home: Path) -> list[Record]:
    """All entries in the order of their numbers. ValueError for what is wrong with one, or between them."""
    records = [read(folder) for folder in sorted(home.glob("[0-9][0-9][0-9]-*"))]
    numbers = [record.name[:3] for record in records]
    if numbers != [f"{i + 1:03}" for i in range(len(numbers))]:
        raise ValueError(f"the entries have the numbers {', '.join(numbers)}: give a new one the next number")
    for before, after in itertools.pairwise(records):
        if after.entry.date < before.entry.date:
            raise ValueError(f"{after.name} is older than {before.name}: its date is the day that it came in")
    scored = {(score.language, score.tokens) for record in records for score in record.scores}
    if scored and (len(scored) > 1 or scored.pop()[0] != Language().machine.digest):
        raise ValueError("scores of another language or test split: score the models by this version")
    return records


def score(folder: Path, models: list[str], trust_remote_code: bool) -> None:
    """Adds the scores of models, SEED=PATH each, to an entry. A seed's earlier line is replaced."""
    if not models:
        raise ValueError("--score takes the models, too: SEED=PATH for each")
    for model in models:
        if not re.fullmatch(r"\d+=.+", model):
            raise ValueError(f"{model!r} is no model with its seed: give SEED=PATH")
    if len({int(model.partition("=")[0]) for model in models}) < len(models):
        raise ValueError("a seed has two models: give each seed one")
    pairs = {int(seed): Path(where) for seed, _, where in (model.partition("=") for model in models)}
    language, path = Language(), folder / "scores.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    rows = {row["seed"]: row for row in map(json.loads, lines)}
    digests = {seed: digest(where) for seed, where in pairs.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for seed, where in pairs.items():
        numbers = language.score(str(where), "test", CONTEXT, trust_remote_code=trust_remote_code)
        if not math.isfinite(numbers[KEY]):
            raise ValueError(f"{seed}={where} has {numbers[KEY]} nats: it rules out a word that can come")
        rows[seed] = {"seed": seed, "language": language.machine.digest, "sha256": digests[seed]} | numbers
        print(f"{seed}={where}: {numbers[KEY]:.4f} nats")
        path.write_text("".join(json.dumps(rows[n]) + "\n" for n in sorted(rows)), encoding="utf-8")


def digest(path: Path) -> str:
    """SHA-256 of a file, or of a folder's weights. ValueError for a folder without safetensors."""
    sha = hashlib.sha256()
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files:
        raise ValueError(f"{path} holds no weights as safetensors: save the model in this format")
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                sha.update(block)
    return sha.hexdigest()


# -----------------------------------------------------------------------------
# The board


def mean(record: Record, key: str = KEY) -> float:
    return statistics.fmean(record.values(key).values())


def p_lower(record: Record, new: Record) -> float:
    """The p-value of "the new entry is not lower than the record": paired where both have the same seeds,
    else Welch's, one-sided."""
    a, b = record.values(), new.values()
    if a.keys() == b.keys():
        return paired_p(a, b)
    return float(stats.ttest_ind([*a.values()], [*b.values()], equal_var=False, alternative="greater").pvalue)


def verdicts(records: list[Record]) -> tuple[dict[str, str], Record]:
    """What each entry of a track is beside the record that it met, and the record that stands."""
    standing, out = records[0], {records[0].name: "the first"}
    for new in records[1:]:
        lower, higher = p_lower(standing, new), p_lower(new, standing)
        by = mean(new) - mean(standing)
        if lower < ALPHA:
            out[new.name] = f"lower than {standing.name[:3]} by {-by:.4f} (p = {lower:.2g})"
            standing = new
        elif higher < ALPHA:
            out[new.name] = f"higher than {standing.name[:3]} by {by:.4f} (p = {higher:.2g})"
        else:
            out[new.name] = f"cannot be told from {standing.name[:3]} ({by:+.4f}, p = {lower:.2g})"
    return out, standing


def row(record: Record, verdict: str, stands: bool) -> str:
    e, values = record.entry, [*record.values().values()]
    title = f"[{record.name}]({record.name}/entry.json): {e.title}"
    nats = f"{mean(record):.4f} ± {student_interval(values):.4f}"
    if stands:
        title, nats = f"**{title}**", f"**{nats}**"
    means = [format(mean(record, key), form) for key, (_, form) in COLUMNS.items()]
    spent = [f"{e.parameters:,}", f"{e.readings:,}", f"{e.seconds:,.0f} s, {e.machine}"]
    cells = [title, nats, str(len(values)), verdict, *means, *spent, f"{e.author}, {e.date}"]
    return "| " + " | ".join(cells) + " |"


def board(records: list[Record]) -> str:
    """A table for each track, lowest first; the record that stands is bold."""
    head = ["entry", "nats from the truth", "seeds", "beside the record before"]
    head += [*(title for title, _ in COLUMNS.values()), "parameters", "words read", "a training", "who, when"]
    rule = ["---", "---:", "---:", "---", *["---:"] * len(COLUMNS), "---:", "---:", "---", "---"]
    parts = []
    for name, track in TRACKS.items():
        parts += [f"### {track.title} (`{name}`)", ""]
        if entries := [record for record in records if record.entry.track == name]:
            says, standing = verdicts(entries)
            entries.sort(key=mean)
            rows = [row(record, says[record.name], record is standing) for record in entries]
            parts += ["| " + " | ".join(head) + " |", "| " + " | ".join(rule) + " |", *rows, ""]
        else:
            parts += ["No entry yet.", ""]
    return "\n".join(parts)


def page(text: str, records: list[Record]) -> str:
    """README.md with the board of these entries between its marks. ValueError for a text without these."""
    if any(text.count(mark) != 1 for mark in MARKS):
        raise ValueError(f"the README has not once each of {MARKS[0]} and {MARKS[1]}: the board goes between")
    before, rest = text.split(MARKS[0])
    return f"{before}{MARKS[0]}\n\n{board(records)}\n{MARKS[1]}{rest.split(MARKS[1])[1]}"


def main(argv: list[str], home: Path = HERE) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the board")
    parser.add_argument("--score", metavar="ENTRY", type=Path, help="the entry whose models are scored")
    parser.add_argument("--trust_remote_code", action="store_true", help="run code that lies in the folders")
    parser.add_argument("models", nargs="*", metavar="SEED=PATH")
    c = parser.parse_args(argv)
    if c.models and not c.score:
        parser.error("models are scored for an entry: give --score=ENTRY, too")
    readme = home / "README.md"
    try:
        if c.score:
            score(c.score, c.models, c.trust_remote_code)
            return 0
        records = read_all(home)
        text = readme.read_text(encoding="utf-8")
        made = page(text, records)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if c.write:
        readme.write_text(made, encoding="utf-8")
    elif made != text:
        print("error: the board is not that of the entries: python records/check.py --write", file=sys.stderr)
        return 1
    print(f"{len(records)} entries")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
