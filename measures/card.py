"""The model card of an exported run: README.md with the metadata that the Hugging Face hub reads."""

import json
from typing import Any

from measures.columns import HONEST
from measures.store import Store
from runtime.checkpoint import Checkpoint, weights_digest
from runtime.places import WORK

# corpus -> its licence as the hub names it, and in words. Only its user knows the licence of any other corpus
LICENCES = {
    "wikitext103": ("cc-by-sa-3.0", "WikiText-103 (Merity et al. 2016), text of Wikipedia: CC BY-SA 3.0"),
    "grammar": ("mit", "sentences of nanoHeads' grammar: MIT"),
    "synthetic": ("mit", "nanoHeads' synthetic sequences: MIT"),
    "mazes": ("mit", "nanoHeads' mazes: MIT"),
    "demo": ("psf-2.0", "the help topics of CPython: PSF License 2.0"),
}
_HEAD = ("head", "head_args", "gain", "learn_gain", "tied", "bayesian", "order", "sinusoidal")
SETTINGS = (*_HEAD, "tokenizer", "vocab_size", "block_size", "n_layer", "n_head", "n_embd")


def committed_row(digest: str) -> dict[str, Any] | None:
    """The row of the committed tables in results/ that was measured on these weights, if there is one."""
    for path in sorted((WORK / "results").glob("*.jsonl")):
        for row in Store(path).rows("text"):
            if row.get("weights_sha256") == digest:
                return row | {"table": path.name}
    return None


def results(row: dict[str, Any]) -> str:
    """A row as a table."""
    known = [c for c in HONEST if isinstance(row.get(c.key), (int, float))]
    lines = [f"| {c.title} | {row[c.key]:{c.form}} | {c.what} |".replace("|p|", r"\|p\|") for c in known]
    head = f"As committed in results/{row['table']} of nanoHeads, on the corpus' test split:"
    return "\n".join([head, "", "| metric | value | what it is |", "| --- | ---: | --- |", *lines])


def card(ckpt: Checkpoint, plain: bool, samples: int, seed: int) -> str:
    """README.md of the export of `ckpt`. `plain`: as a GPT2LMHeadModel. Else with code of its own, and with
    `samples` stored draws of Bayesian weights."""
    config = ckpt.config
    licence, trained_on = LICENCES.get(config.get("dataset", ""), ("", "a text whose licence its user knows"))
    metadata = ["library_name: transformers", "pipeline_tag: text-generation", "tags: [nanoheads]"]
    if licence:
        metadata.append(f"license: {licence}")
    if config.get("dataset") in ("wikitext103", "demo"):
        metadata.append("language: en")
    if config.get("dataset") == "wikitext103":
        metadata.append("datasets: [Salesforce/wikitext]")
    asks = "" if plain else ", trust_remote_code=True"
    model = f"A GPT-2 with the output head `{config['head']}`, trained by nanoHeads"
    about = [f"{model} for {ckpt.progress['step']:,} steps. Trained on {trained_on}."]
    if not plain:
        about.append(
            "`logits` are the head's normalised log-probabilities of the next token, in float32. The code in "
            "this folder is nanoHeads' (MIT, see LICENSE)."
        )
    if config["bayesian"]:
        about.append(
            f"Its Bayesian weights are the mean over {samples} draws (seed {seed}), stored in the folder."
        )
    if config.get("order", "left_to_right") != "left_to_right":
        about.append(f"Trained in the order `{config['order']}`; here it reads from left to right.")
    settings = {key: config[key] for key in SETTINGS if key in config}
    row = committed_row(weights_digest(ckpt.path))
    parts = [
        "\n".join(["---", *metadata, "---"]),
        f"# {config['name']}",
        *about,
        f"""```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("FOLDER"{asks})
tokenizer = AutoTokenizer.from_pretrained("FOLDER"{asks})
```""",
        *([results(row)] if row else []),
        f"```json\n{json.dumps(settings, indent=1)}\n```",
    ]
    return "\n\n".join(parts) + "\n"
