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
PAPER = (
    Column("ppl_train", "PPL(train)", ".2f", "low", "exp(NLL / tokens) of 200 random training windows"),
    Column("self_bleu", "Self-BLEU", ".2f", "human", "sacreBLEU, prompt included, mean of the loops"),
    Column("self_bleu_sd", "sd", ".2f", "", "standard deviation of Self-BLEU over the loops"),
    Column("distinct_4", "Distinct-4", ".4f", "human", "prompt included, mean of the loops"),
    Column("published_ppl", "publ. PPL", ".2f", "", "as published, of a softmax over sigmoid logits"),
    Column("published_self_bleu", "publ. Self-BLEU", ".2f", "", "as published"),
    Column("published_distinct_4", "publ. Distinct-4", ".4f", "", "as published"),
)
# Shamula et al. 2024, table 1: perplexity, Self-BLEU, Distinct-4. Its Sig-GPT never saw the true token:
# that is sig_gpt_as_published, and our sig_gpt has no published numbers
PUBLISHED = {
    "baseline": (6.1855, 27.1660, 0.9709),
    "smooth_gpt": (6.6225, 26.6854, 0.9743),
    "smooth_gpt_10": (7.2704, 18.3164, 0.9901),
    "bayes_gpt": (10.0340, 28.3591, 0.9641),
    "sig_gpt_as_published": (2134.7043, 18.5969, 0.9907),
    "sig_gpt_sum": (50259.5078, 16.4033, 0.9901),
    "sig_gpt_pw": (2028.1080, 18.2633, 0.9907),
    "bayes_sig_gpt": (2257.3240, 18.5297, 0.9907),
}
# fmt: on
