"""The columns of the truth measure: recovery.means has what they are. Rows of the text measure that an
earlier version made have them, too: tables/text.py finds them here."""

from tables.columns import Column

# fmt: off
COLUMNS = (
    Column("ppl_floor", "PPL/floor", ".4f", "low", "perplexity / perplexity of the truth on the same tokens"),
    Column("kl_truth_model", "KL(p, m)", ".4f", "low", "KL(truth || model), nats a token"),
    Column("kl_model_truth", "KL(m', p)", ".4f", "low", "KL(m' || truth), m' the model on valid tokens"),
    Column("tv", "TV", ".4f", "low", "total variation distance of truth and model"),
    Column("mass_invalid", "invalid", ".4f", "low", "the model's mass on tokens that the grammar forbids"),
    Column("alternatives", "alt.", ".4f", "human", "mass on valid tokens but the observed one / the truth's"),
    Column("alternatives_error", "alt. error", ".4f", "low", "sum over decades of |that - the truth's|"),
    Column("coverage", "coverage(0.9)", ".4f", "human", "the truth's mass that top_p reaches"),
    Column("validity", "validity", ".4f", "human", "share of sampled tokens that the grammar allows"),
)
# fmt: on
