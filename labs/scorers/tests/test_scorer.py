"""Generative perplexity and MAUVE under a named scorer: by transformers' loss, by hand, and in a table."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from common.errors import UserError
from data.open import load_tokenizer
from data.tokens import open_tokens
from eval_diversity import main
from evaluate.diversity import cut
from evaluate.names import REFERENCES
from evaluate.sampling import held_out_prompts
from labs.scorers import scorer as scorers
from labs.scorers.scorer import continuation_nll, features, generative_perplexity, open_scorer
from tests.fixtures import rows, samples
from training.checkpoint import weights_digest
from training.gpt2 import to_gpt2
from training.run import load_model

SMALL = ["--texts=8", "--prompt_tokens=4", "--new_tokens=12", "--device=cpu", "--halves=3"]
CPU = torch.device("cpu")
PAIRS = [("the first words", " go on with others"), ("one", " two three four five six seven")]


@pytest.fixture(scope="module")
def folder(token_folder, tmp_path_factory) -> Path:
    """A GPT-2 of transformers' own making, with a tokenizer. Read only."""
    out = tmp_path_factory.mktemp("hf") / "other"
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(out)
    portable = load_tokenizer(token_folder).portable()
    PreTrainedTokenizerFast(tokenizer_object=portable).save_pretrained(out)
    return out


# ---- generative perplexity ---------------------------------------------------------------------------------


def test_it_is_the_loss_of_transformers(folder, token_folder):
    scorer, tokenizer = open_scorer(str(folder), CPU), load_tokenizer(token_folder)
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    nll = []
    for prompt, text in PAIRS:
        before, after = tokenizer.encode(prompt), tokenizer.encode(text)
        labels = torch.tensor([[-100] * len(before) + after])
        with torch.no_grad():
            loss = model(torch.tensor([before + after]), labels=labels).loss.item()
        got, count = continuation_nll(scorer, prompt, text)
        assert count == len(after) and got == pytest.approx(loss * count, rel=1e-5)
        nll.append((loss * count, count))
    expected = math.exp(sum(n for n, _ in nll) / sum(c for _, c in nll))  # of all tokens, not a mean of texts
    got = generative_perplexity([continuation_nll(scorer, *pair) for pair in PAIRS])
    assert got == pytest.approx(expected, rel=1e-5)


def test_a_run_scores_as_its_export_does(trained, token_folder, tmp_path):
    model, _ = load_model(trained)
    to_gpt2(model.trunk, tmp_path / "gpt2")
    portable = load_tokenizer(token_folder).portable()
    PreTrainedTokenizerFast(tokenizer_object=portable).save_pretrained(tmp_path / "gpt2")
    own, theirs = (open_scorer(str(path), CPU) for path in (trained, tmp_path / "gpt2"))
    assert own.context == theirs.context == 16
    for prompt, text in (("a", " b c"), *PAIRS):  # the last of them are longer than the context
        expected = pytest.approx(continuation_nll(theirs, prompt, text), rel=1e-5)
        assert continuation_nll(own, prompt, text) == expected
    texts = ["a b c", "d e"]
    np.testing.assert_allclose(features(own, texts), features(theirs, texts), rtol=1e-4, atol=1e-5)


class Counting:
    """A scorer of one id a character: -log p of a token is its id, and it counts what it is given."""

    name = "counting"

    def __init__(self, context: int, start: list[int]):
        self.context, self.start, self.given = context, start, []

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def log_p(self, ids: torch.Tensor) -> torch.Tensor:
        self.given.append(len(ids) - 1)
        return -ids[1:].double()


@pytest.mark.parametrize("context", [1, 2, 5, 100])
@pytest.mark.parametrize("prompt", [1, 5, 17])
@pytest.mark.parametrize("new", [0, 1, 40])
def test_each_token_of_a_text_counts_once_however_long_it_is(context, prompt, new):
    scorer, text = Counting(context, []), "".join(chr(97 + i) for i in range(new))
    assert continuation_nll(scorer, "p" * prompt, text) == (sum(map(ord, text)), new)
    assert max(scorer.given, default=0) <= context
    assert continuation_nll(Counting(5, [7]), "", "a") == (97, 1)  # a token that stands before every text


def test_features_are_the_last_hidden_states_of_texts_alone(folder, token_folder):
    scorer, encode = open_scorer(str(folder), CPU), load_tokenizer(token_folder).encode
    got = features(scorer, ["some words", "word " * 100])
    model = GPT2LMHeadModel.from_pretrained(folder).eval()
    with torch.no_grad():
        for row, ids in zip(got, (encode("some words"), encode("word " * 100)[:64])):
            hidden = model.transformer(torch.tensor([ids])).last_hidden_state
            np.testing.assert_allclose(row, hidden[0, -1].numpy(), rtol=1e-4, atol=1e-5)


def test_mauve_is_the_packages():
    """Of two samples of one distribution it is near 1, of two that do not overlap near 0."""
    pytest.importorskip("mauve", reason="mauve-text is optional")
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 200, 8)).astype(np.float32)
    assert scorers.mauve(a, b) > 0.8 and scorers.mauve(a, b + 20) < 0.05
    assert scorers.mauve_version()


# ---- in a table --------------------------------------------------------------------------------------------


def test_a_table_under_a_scorer(trained, folder, token_folder, tmp_path, monkeypatch, capsys):
    """Rows and references have its numbers of their texts, and MAUVE to human texts of the other split. A row
    that was made without the package of MAUVE is made again, every other one kept. Another scorer is refused.
    """
    out = tmp_path / "table"
    argv = [str(trained), *SMALL, f"--out={out}"]
    monkeypatch.setattr(scorers, "mauve_version", lambda: "")
    assert main([*argv, f"--scorer={folder}"]) == 0
    made, digest = rows(out), weights_digest(folder)
    assert made["baseline"]["scorer"] == {"name": "other", "sha256": digest}
    assert made["human"]["settings"]["scorer"] == digest
    md = out.with_name("table.md").read_text()
    assert "Gen. PPL" in md.splitlines()[0] and f"by the scorer other (weights {digest[:12]})" in md
    tokenizer, scorer = load_tokenizer(token_folder), open_scorer(str(folder), CPU)
    prompts = held_out_prompts(open_tokens(token_folder / "test.bin").ids, 8, 4, 12).prompt
    words = made["human"]["settings"]["words"]
    for name in ("baseline", *REFERENCES):
        texts = samples(out, name.replace(" ", "_"))
        pairs = [(tokenizer.decode(p), cut(t, words)) for p, t in zip(prompts.tolist(), texts)]
        expected = generative_perplexity([continuation_nll(scorer, *pair) for pair in pairs])
        assert made[name]["gen_ppl"] == pytest.approx(expected)
        assert (made[name].get("gen_ppl_ci", 0) > 0) == (name in REFERENCES)
    for other in ([], [f"--scorer={trained}"]):
        with pytest.raises(UserError, match="scorer"):
            main([*argv, *other])
    seen = []

    def compared(human: np.ndarray, texts: np.ndarray) -> float:
        seen.append((human, texts))
        return 0.5 + len(seen) / 100

    monkeypatch.setattr(scorers, "mauve_version", lambda: "9.9")
    monkeypatch.setattr(scorers, "mauve", compared)
    assert main([*argv, f"--scorer={folder}"]) == 0
    assert [rows(out)[name]["mauve"] for name in (*REFERENCES, "baseline")] == [0.51, 0.52, 0.53, 0.54]
    other = held_out_prompts(open_tokens(token_folder / "validation.bin").ids, 8, 4, 12).human
    human = [cut(tokenizer.decode(ids), words) for ids in other.tolist()]
    np.testing.assert_array_equal(seen[0][0], features(scorer, human))
    own = [cut(t, words) for t in samples(out, "baseline")]
    np.testing.assert_array_equal(seen[3][1], features(scorer, own))
    capsys.readouterr()
    assert main([*argv, f"--scorer={folder}"]) == 0 and "baseline: kept from" in capsys.readouterr().err
