"""The task beside this file: what eval_diversity.py scores, in lm-evaluation-harness.

eval_diversity.py reads a text from its first token on, which is not scored. The harness puts its prefix token
before the text. So the first line, which is blank (" \\n"), is left out here, and its last token is to be the
prefix (prefix_token_id). Words and bytes are those of the whole file, and each line end counts as a word.
"""

from datasets import Dataset

BLANK = " \n"


def dataset(file: str, **metadata: object) -> dict[str, Dataset]:
    """`file`: the path of wiki.test.tokens, from --metadata."""
    with open(file, encoding="utf-8", newline="\n") as f:
        whole = f.read()
    if not whole.startswith(BLANK):
        raise ValueError(f"{file} does not begin with a blank line: give an original file of WikiText-103")
    counts = {"words": len(whole.split()) + whole.count("\n"), "bytes": len(whole.encode())}
    return {"test": Dataset.from_list([{"text": whole.removeprefix(BLANK), **counts}])}


def process_results(doc: dict, results: tuple[float]) -> dict[str, tuple[float, int]]:
    (log_likelihood,) = results
    return {
        "word_perplexity": (log_likelihood, doc["words"]),
        "bits_per_byte": (log_likelihood, doc["bytes"]),
    }
