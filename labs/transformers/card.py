"""The model card of an exported run: README.md with the metadata that the Hugging Face hub reads."""

import json
import math
from typing import Any

from common.errors import UserError
from common.places import WORK
from model import TRUNKS
from tables.columns import HONEST
from tables.store import Store
from training.checkpoint import weights_digest
from training.run import Run

# corpus -> its licence as the hub names it, and in words. Only its user knows the licence of any other corpus
LICENCES = {
    "wikitext103": ("cc-by-sa-3.0", "WikiText-103 (Merity et al. 2016), text of Wikipedia: CC BY-SA 3.0"),
    "grammar": ("mit", "sentences of nanoHeads' grammar: MIT"),
    "synthetic": ("mit", "nanoHeads' synthetic sequences: MIT"),
    "mazes": ("mit", "nanoHeads' mazes: MIT"),
}
_HEAD = ("head", "head_args", "gain", "learn_gain", "tied", "bayesian", "trunk", "trunk_args")
_SIZE = ("tokenizer", "vocab_size", "block_size", "n_layer", "n_head", "n_embd", "dropout")
_RATES = ("learning_rate", "min_lr", "readout_lr", "warmup_steps", "weight_decay", "beta2", "grad_clip")
# not the source, which may be a path of the user's
_TRAINING = ("dataset", "seed", "optimizer", "batch_size", "max_steps", *_RATES, "labels", "dtype")
SETTINGS = (*_HEAD, *_SIZE, *_TRAINING)


def measured_row(digest: str) -> dict[str, Any] | None:
    """The row of the tables in results/ that was measured on these weights, if there is one."""
    for path in sorted((WORK / "results").glob("*.jsonl")):
        try:
            rows = Store(path).rows("text")
        except UserError:  # another program's file
            continue
        about: dict[str, Any] = next((row["about"] for row in rows if "about" in row), {})
        for row in rows:
            if row.get("weights_sha256") == digest:
                return row | {"table": path.name, "complete": about.get("complete")}
    return None


def results(row: dict[str, Any]) -> str:
    """A row as a table."""
    known = [c for c in HONEST if isinstance(row.get(c.key), (int, float))]
    lines = [f"| {c.title} | {row[c.key]:{c.form}} | {c.what} |".replace("|p|", r"\|p\|") for c in known]
    s = row["settings"]
    split = "a part of " * (row["complete"] is False) + f"the corpus' {s['split']} split"
    texts = f"{s['texts']} texts of {s['prompt_tokens']} given and {s['new_tokens']} new tokens"
    how = f"{texts} at temperature {s['temperature']:g}, seed {s['seed']}"
    return "\n".join(
        [
            f"As measured in results/{row['table']}, on {split}, by {how}:",
            "",
            "| metric | value | what it is |",
            "| --- | ---: | --- |",
            *lines,
        ]
    )


def progress(ckpt: Run) -> str:
    """How long the run was trained, and, if that is of the whole split from left to right, what it was judged
    by."""
    tokens, nll, step = ckpt.progress.tokens, ckpt.progress.val.get("nll"), ckpt.progress.step
    text = f"for {step:,} steps" + (f", {tokens:,} tokens" if tokens else "")
    part = ckpt.config.eval_windows and step < ckpt.config.max_steps
    if nll is None or not math.isfinite(nll) or part or ckpt.config.trunk not in TRUNKS:
        return f"{text}."
    return f"{text}; its perplexity on that corpus' validation split is {math.exp(nll):.2f}."


def card(ckpt: Run, plain: bool, samples: int, seed: int, home: str = "FOLDER") -> str:
    """README.md of the export of `ckpt`. `plain`: as a GPT2LMHeadModel. Else with code of its own, and with
    `samples` stored draws of Bayesian weights. `home`: where it is loaded from, a name on the hub."""
    config = ckpt.record
    licence, trained_on = LICENCES.get(config.get("dataset", ""), ("", "a text whose licence its user knows"))
    metadata = ["library_name: transformers", "pipeline_tag: text-generation", "tags: [nanoheads]"]
    start = config.get("init_weights")
    if licence and not start:
        metadata.append(f"license: {licence}")
    if config.get("dataset") == "wikitext103":
        metadata += ["language: en", "datasets: [Salesforce/wikitext]"]
    asks = "" if plain else ", trust_remote_code=True"
    kind = config.get("trunk_args", {}).get("architecture", {}).get("model_type", "GPT-2")
    what = f"A {kind} with the output head `{config['head']}`"
    about = [f"{what}, trained by nanoHeads on {trained_on}, {progress(ckpt)}"]
    if not plain:
        about.append(
            "`logits` are the head's normalised log-probabilities of the next token, in float32. The code in "
            "this folder is nanoHeads' (MIT, see LICENSE)."
        )
    if config["bayesian"]:
        drawn = f"the mean over {samples} draws (seed {seed}), stored in the folder"
        about.append(f"Its Bayesian weights are {drawn}.")
    if start:
        about.append(
            f"It began with the weights of another model (SHA-256 {start}), whose licence and training text "
            "are to be named here, too."
        )
    if config.get("trunk", "gpt") not in (*TRUNKS, "transformers"):
        about.append(f"Its trunk is `{config['trunk']}`; here it reads from left to right.")
    row = measured_row(weights_digest(ckpt.path))
    parts = [
        "\n".join(["---", *metadata, "---"]),
        f"# {config['name']}",
        *about,
        f"""```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{home}"{asks})
tokenizer = AutoTokenizer.from_pretrained("{home}"{asks})
```""",
        *([results(row)] if row else []),
        "How it was made:",
        f"```json\n{json.dumps({k: config[k] for k in SETTINGS if k in config}, indent=1)}\n```",
    ]
    return "\n\n".join(parts) + "\n"
