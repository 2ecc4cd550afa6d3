"""Generative perplexity and MAUVE under a named scorer: by hand, and in a table."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UserError
from data.open import load_tokenizer
from data.tokens import open_tokens
from eval_diversity import main
from evaluate.diversity import cut
from evaluate.sampling import held_out_prompts
from labs.scorers import scorer as scorers
from labs.scorers.scorer import Scorer, continuation_nll, features, generative_perplexity
from tables.names import REFERENCES
from tests.fixtures import rows, samples, untrained
from training.checkpoint import weights_digest
from training.run import load_model

SMALL = ["--texts=8", "--prompt_tokens=4", "--new_tokens=12", "--device=cpu", "--halves=3"]
CPU = torch.device("cpu")
PAIRS = [("the first words", " go on with others"), ("one", " two three four five six seven")]


@pytest.fixture(scope="module")
def other(token_folder, tmp_path_factory) -> Path:
    """A run that nobody trained, of a longer block. Read only."""
    return untrained(tmp_path_factory.mktemp("scorer") / "other", load_tokenizer(token_folder), block_size=64)


@torch.no_grad()
def test_it_is_the_nll_of_all_tokens_after_the_prompts(other, token_folder):
    scorer, encode, model = Scorer(str(other), CPU), load_tokenizer(token_folder).encode, load_model(other)[0]
    nll = []
    for prompt, text in PAIRS:
        before, after = encode(prompt), encode(text)
        log_p = model.log_probs(torch.tensor([before + after[:-1]]))[0, len(before) - 1 :]
        nll.append((-log_p.gather(1, torch.tensor(after)[:, None]).sum().item(), len(after)))
        assert continuation_nll(scorer, prompt, text) == (pytest.approx(nll[-1][0], rel=1e-5), len(after))
    expected = math.exp(sum(n for n, _ in nll) / sum(c for _, c in nll))  # of all tokens, not a mean of texts
    got = generative_perplexity([continuation_nll(scorer, *pair) for pair in PAIRS])
    assert got == pytest.approx(expected, rel=1e-5)


class Counting:
    """A scorer of one id a character: -log p of a token is its id, and it counts what it is given."""

    name = "counting"

    def __init__(self, context: int):
        self.context, self.given = context, []

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def log_p(self, ids: torch.Tensor) -> torch.Tensor:
        self.given.append(len(ids) - 1)
        return -ids[1:].double()


@pytest.mark.parametrize("context", [1, 2, 5, 100])
@pytest.mark.parametrize("prompt", [1, 5, 17])
@pytest.mark.parametrize("new", [0, 1, 40])
def test_each_token_of_a_text_counts_once_however_long_it_is(context, prompt, new):
    scorer, text = Counting(context), "".join(chr(97 + i) for i in range(new))
    assert continuation_nll(scorer, "p" * prompt, text) == (sum(map(ord, text)), new)
    assert max(scorer.given, default=0) <= context


def test_features_are_the_last_hidden_states_of_texts_alone(other, token_folder):
    scorer, encode = Scorer(str(other), CPU), load_tokenizer(token_folder).encode
    got = features(scorer, ["some words", "word " * 100])
    model, _ = load_model(other)
    with torch.no_grad():
        for row, ids in zip(got, (encode("some words"), encode("word " * 100)[:64])):
            hidden = model.trunk(torch.tensor([ids]))
            np.testing.assert_allclose(row, hidden[0, -1].numpy(), rtol=1e-4, atol=1e-5)


def test_mauve_is_the_packages():
    """Of two samples of one distribution it is near 1, of two that do not overlap near 0."""
    pytest.importorskip("mauve", reason="mauve-text is optional")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200, 8)).astype(np.float32)
    assert scorers.mauve(a, b) > 0.8 and scorers.mauve(a, b + 20) < 0.05
    assert scorers.mauve_version()


def test_a_table_under_a_scorer(trained, other, token_folder, tmp_path, monkeypatch, capsys):
    """Rows and references have its numbers of their texts, and MAUVE to human texts of the other split. A row
    that was made without the package of MAUVE is made again, every other one kept. Another scorer is refused.
    """
    out = tmp_path / "table"
    argv = [str(trained), *SMALL, f"--out={out}"]
    monkeypatch.setattr(scorers, "mauve_version", lambda: "")
    assert main([*argv, f"--scorer={other}"]) == 0
    made, digest = rows(out), weights_digest(other / "best")
    assert made["baseline"]["scorer"] == {"name": "other", "sha256": digest}
    assert made["human"]["settings"]["scorer"] == digest
    md = out.with_name("table.md").read_text()
    assert "Gen. PPL" in md.splitlines()[0] and f"by the scorer other (weights {digest[:12]})" in md
    tokenizer, scorer = load_tokenizer(token_folder), Scorer(str(other), CPU)
    prompts = held_out_prompts(open_tokens(token_folder / "test.bin").ids, 8, 4, 12).prompt
    words = made["human"]["settings"]["words"]
    for name in ("baseline", *REFERENCES):
        texts = samples(out, name.replace(" ", "_"))
        pairs = [(tokenizer.decode(p), cut(t, words)) for p, t in zip(prompts.tolist(), texts)]
        expected = generative_perplexity([continuation_nll(scorer, *pair) for pair in pairs])
        assert made[name]["gen_ppl"] == pytest.approx(expected)
        assert (made[name].get("gen_ppl_ci", 0) > 0) == (name in REFERENCES)
    for another in ([], [f"--scorer={trained}"]):
        with pytest.raises(UserError, match="scorer"):
            main([*argv, *another])
    seen = []

    def compared(human: np.ndarray, texts: np.ndarray) -> float:
        seen.append((human, texts))
        return 0.5 + len(seen) / 100

    monkeypatch.setattr(scorers, "mauve_version", lambda: "9.9")
    monkeypatch.setattr(scorers, "mauve", compared)
    assert main([*argv, f"--scorer={other}"]) == 0
    assert [rows(out)[name]["mauve"] for name in (*REFERENCES, "baseline")] == [0.51, 0.52, 0.53, 0.54]
    compared_with = held_out_prompts(open_tokens(token_folder / "validation.bin").ids, 8, 4, 12).human
    human = [cut(tokenizer.decode(ids), words) for ids in compared_with.tolist()]
    np.testing.assert_array_equal(seen[0][0], features(scorer, human))
    own = [cut(t, words) for t in samples(out, "baseline")]
    np.testing.assert_array_equal(seen[3][1], features(scorer, own))
    capsys.readouterr()
    assert main([*argv, f"--scorer={other}"]) == 0 and "baseline: kept from" in capsys.readouterr().err
