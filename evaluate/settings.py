"""What the text measure is asked for, and what two of its rows must share to stand in one table."""

import hashlib
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from common.config import AtLeast2, Dtype, Field, Flags, Natural, NonNegative, Positive, Seed, Space, read
from common.errors import UserError
from evaluate.decoding import AS_SCORED, Decoding
from training.run import difference

Rows = Annotated[list[Annotated[Flags, Field(pattern=r"\S")]], Field(min_length=1)]
Seeds = Annotated[list[Seed], Field(min_length=1)]

LEAST_WORDS = 4  # a text is not cut to fewer: the metrics count 4-grams


@dataclass(frozen=True)
class TextConfig(Decoding):
    # fmt: off
    checkpoints: list[str]          # [NAME=]RUN ...: out folders of training runs, or checkpoints in them,
    #                                 and the names of their rows
    # the protocol
    protocol: Literal["honest", "paper"] = "honest"
    loops: Positive = 1             # groups that the texts are measured in; their mean is reported
    stride: Natural = 0             # of the scoring windows; 0: min(512, block_size)
    # the text
    split: Literal["train", "validation", "test"] = "test"  # held out; train in the paper's protocol alone
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    block_size: Natural = 0         # tokens that each model reads at once; 0: the fewest that one of them can
    # what is sampled
    texts: Positive = 100           # of each row
    prompt_tokens: Natural = 50     # 0: the whole block
    new_tokens: Positive = 200
    words: Natural = 0              # the first of each text, which are measured; 0: as many as 95% of the
    #                                 human continuations have, at least 20. Shorter texts stay as they are
    # what is a word, by sacreBLEU; auto: 13a, or another of scripts without spaces between words
    tokenize: Literal["auto", "13a", "zh", "ja-mecab", "char"] = "auto"
    samples: Positive = 8           # weight draws of Bayesian rows
    seed: Seed = 1337               # what is drawn depends on it and on the run's own training seed
    # what the texts are judged by
    scorer: str = ""                # a run, or a model of transformers: generative perplexity and, where the
    #                                 package mauve-text is installed, MAUVE (labs/scorers)
    # the table
    out: str = ""                   # writes OUT.jsonl, its views OUT.md, .csv and .tex (LaTeX, booktabs),
    #                                 and OUT.samples/; rows of unchanged checkpoints in it are kept
    columns: str = ""               # of the table, by their keys: ppl_eps,self_bleu; empty: all
    texts_kept: Natural = 12        # texts of each row in OUT.samples; 0: all
    halves: AtLeast2 = 200          # random halves of the references' texts, for their intervals
    # machine
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "float32"        # of matrix products: float32, bfloat16, float16, or auto
    # fmt: on


@dataclass(frozen=True, kw_only=True)
class PaperConfig(TextConfig):
    # fmt: off
    # with --protocol paper
    split: Literal["train", "validation", "test"] = "train"
    loops: Positive = 10
    prompt_tokens: Natural = 0
    new_tokens: Positive = 500
    temperature: NonNegative = 0.8
    top_k: Natural = 200
    # fmt: on


def read_settings(config: type, argv: list[str], about: str = "") -> Any:
    """An instance of a measure's `config`. PaperConfig's own defaults are for who asks for that protocol."""
    c: Any = read(config, argv, about)
    return read(TextConfig, argv) if isinstance(c, PaperConfig) and c.protocol == "honest" else c


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


@dataclass(frozen=True)
class Settings(Decoding):
    """What two rows must share to stand in one table."""

    protocol: str
    tokenizer: str  # fingerprint
    train: str  # SHA-256 of the training text
    corpus: str  # SHA-256 of the split that is scored
    split: str
    texts: int  # in all
    loops: int  # groups they are scored in; their mean is reported
    prompt_tokens: int
    new_tokens: int
    words: int  # of each text that are measured; 0: all of them, or not known before the texts are
    samples: int  # weight draws of Bayesian rows
    block_size: int  # context of the models
    stride: int  # of the scoring windows
    seed: int
    dtype: str
    scorer: str = ""  # SHA-256 of the weights that the texts are judged by; "" where they are not
    tokenize: str = "13a"  # what is a word

    @classmethod
    def of(cls, c: TextConfig, reads: int, scorer: str = "", **hashes: str) -> "Settings":
        """What `c` asks for of models that can read so many tokens at once. UserError naming the setting that
        cannot work.

        scorer  the SHA-256 of its weights, not its path
        hashes  the fields tokenizer, train and corpus; "" where the data are not prepared yet
        """
        given = {f.name: getattr(c, f.name) for f in fields(cls) if hasattr(c, f.name)}
        given |= {"tokenizer": "", "train": "", "corpus": "", **hashes, "scorer": scorer}
        block_size = c.block_size or reads
        given |= {"block_size": block_size, "prompt_tokens": c.prompt_tokens or block_size}
        s = cls(**given | {"stride": c.stride or min(512, block_size)})
        paper = s.protocol == "paper"
        needs = s.prompt_tokens + (0 if paper else s.new_tokens)  # the paper's texts go on beyond the block
        for key, works, why in (
            ("block_size", block_size <= reads, f"one of the models reads {reads} tokens"),
            ("split", paper == (s.split == "train"), f"protocol = {s.protocol}"),
            ("scorer", not (paper and scorer), f"protocol = {s.protocol}"),
            (
                "words",
                s.words == 0 or (s.words >= LEAST_WORDS and not paper),
                f"at least 4, protocol = {s.protocol}",
            ),
            ("texts", s.texts >= 2 * s.loops, f"loops = {s.loops}, of 2 texts at least"),
            ("new_tokens", needs <= block_size, f"{needs} tokens with the prompt; block_size = {block_size}"),
            ("stride", s.stride <= block_size, f"block_size = {block_size}"),
        ):
            if not works:
                raise UserError(f"{key} = {getattr(s, key)!r} cannot be: {why}")
        return s


# cuts of older versions, each at the value that cuts nothing
GONE_CUTS = {"typical_p": 1.0, "epsilon": 0.0, "eta": 0.0, "top_a": 0.0, "top_n_sigma": 0.0, "min_k": 0.0}


def other_settings(before: dict, now: dict) -> str:
    """The first key of `now` that has another value in `before`, with both values; `words` only where it is
    known.

    An older version, which does not name a scorer, a cut or a part of the split, had none. One that had a cut
    which is gone drew from another distribution.
    """
    hashes = ("tokenizer", "train", "corpus", "scorer")  # last: a hash says least of what is another
    known = {k: now[k] for k in sorted(now, key=hashes.__contains__) if k != "words" or now[k]} | GONE_CUTS
    defaults = {"scorer": "", "part": False, "tokenize": "13a", **GONE_CUTS, **vars(AS_SCORED)}
    return difference(dict.fromkeys(known) | defaults | before, known)


def run_seed(seed: int, config: dict[str, Any]) -> int:
    """The seed of one run, derived from the table's and from the run's own training seed.

    So the texts of two seeds are independent, and rows of one training seed share their random numbers.
    """
    digest = hashlib.sha256(f"{seed} {config.get('seed')}".encode()).digest()
    return int.from_bytes(digest[:6])
