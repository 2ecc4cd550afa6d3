"""The columns of the tables: their keys in JSON and CSV, their titles, and what they are.

docs/metrics.md says more of each.
"""

from typing import NamedTuple


class Column(NamedTuple):
    key: str
    title: str
    form: str
    best: str  # which value is: "low", "high", "human" (nearest to human text), or "" (none is)
    what: str


# fmt: off
HONEST = (
    Column("ppl_tok", "PPL_tok", ".2f", "low", "exp(NLL / tokens)"),
    Column("ppl_word", "PPL_word", ".2f", "low", "exp(NLL / (words + lines))"),
    Column("bits_per_byte", "bits/byte", ".3f", "low", "NLL / (ln 2 x bytes of the text)"),
    Column("ece", "ECE", ".4f", "low", "expected calibration error of the most probable token, 15 bins"),
    Column("ppl_eps", "PPL_eps", ".2f", "low", "perplexity of (p + 1e-6) / (1 + 1e-6 V)"),
    Column("sparsemax_score", "sparsemax score", ".4f", "high", "mean of p_t + (1 - |p|^2) / 2, 0 to 1"),
    Column("ece_fitted", "ECE at T fitted", ".4f", "low", "ECE of p^(1/T), T fitted to validation text"),
    Column("ppl_fitted", "PPL_eps at T fitted", ".2f", "low", "PPL_eps of p^(1/T), normalised"),
    Column("self_bleu", "Self-BLEU", ".2f", "human", "mean sacreBLEU of each text against all others, 0-100"),
    Column("distinct_4", "Distinct-4", ".4f", "human", "unique 4-grams / words, all texts pooled"),
    Column("seq_rep_4", "seq-rep-4", ".4f", "human", "1 - unique / all 4-grams of a text, mean"),
    Column("zipf", "Zipf", ".3f", "human", "minus the slope of log frequency over log rank"),
    Column("compression", "gzip", ".3f", "human", "bytes of all texts / of their gzip file (older rows)"),
    Column("short_texts", "short", ".0f", "", "texts of fewer words than the others are cut to"),
    Column("steps", "steps", ".0f", "", "training steps, with those of the run it started from"),
    Column("train_tokens", "train tokens", ",.0f", "", "tokens read in training, with those of that run"),
    Column("teacher_tokens", "teacher tokens", ",.0f", "", "tokens that its teacher read, training included"),
)
# fmt: on
