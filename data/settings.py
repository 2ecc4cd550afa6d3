"""What the commands of prepare.py take."""

from dataclasses import dataclass


# What every prepare.py takes. A corpus adds `tokenizer`, and `source` if it has a choice
@dataclass
class PrepareConfig:
    # fmt: off
    out: str = ""                   # the prepared folder; empty: data/CORPUS/TOKENIZER
    force: bool = False             # start over, whatever the folder holds
    # fmt: on
