"""What a table is asked for."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from common.config import Field, Flags, Positive, Seed, Space

Rows = Annotated[list[Annotated[Flags, Field(pattern=r"\S")]], Field(min_length=1)]
Seeds = Annotated[list[Seed], Field(min_length=1)]


@dataclass
class TableConfig:
    # fmt: off
    name: str = ""                                  # of the table; empty: the config file's
    rows: Rows = field(default_factory=list)        # config files without folder and .py, each with its flags
    #                                                 the first is done first: it may be the others' teacher
    config: str = ""                                # of all rows, which then are names; empty: config/ROW.py
    overlay: str = "brief"                          # a config file laid over each row
    flags: Flags = ""                               # of train.py, given to each row before its own
    seeds: Seeds = field(default_factory=lambda: [1, 2, 3])
    commands: bool = False                          # trains nothing: prints one line a run that is to do
    jobs: Positive = 1                              # trainings at a time, each with its share of the cores
    # the search of each row's own settings
    search: bool = False                            # searches, in place of making the table
    tuned: bool = False                             # the table: each row at its best point of the search
    tuning: str = ""                                # the file with the trials; empty: the table's own, or
    #                                                 results/NAME.jsonl here where that has no trials
    space: Space = field(default_factory=lambda: {"learning_rate": [1e-3, 8e-3], "gain": [0.5, 16]})
    #                                                 key -> [lowest, highest], on a log scale
    own_space: dict[str, Space] = field(default_factory=dict)   # row -> what is searched for it alone
    trials: Positive = 16                           # of each row
    design: Positive = 8                            # of these, at points that all rows share
    tune_seed: int = 1                              # of all trials; the table's seeds are others
    # the table
    measure: str = "text"                           # or orders, curve, a lab's
    cost: str = ""                                  # a JSON of bench/training.py: the time of each row's step
    evaluate: Flags = ""                            # flags of the measure: table.py --measure=NAME --help
    runs: str = "out"                               # folder of the runs
    results: str = "results"                        # folder of the table
    columns: str = ""                               # of the table, by their keys; empty: all
    about: dict[str, str] = field(default_factory=dict)     # name of a table -> what its page opens with
    figures: Literal["png", "pdf"] = "png"          # what its figures are written as; a PDF is vectors
    # fmt: on
