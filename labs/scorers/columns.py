"""The columns of a scorer: what it says of the texts of each row."""

from tables.columns import Column

COLUMNS = (
    Column(
        "gen_ppl",
        "Gen. PPL",
        ".1f",
        "human",
        "exp(the scorer's NLL / tokens of the scorer) of the texts given their prompts",
    ),
    Column(
        "mauve",
        "MAUVE",
        ".3f",
        "human",
        "of the texts and as many human ones of the other held-out split, by hidden states of the scorer",
    ),
)
