"""The known language as a library: a model of anybody's, and how far it is from the truth."""

import re
import runpy
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import torch
from nanoheads.labs.known_language import library
from safetensors.torch import load_file, save_file

from labs.known_language import score
from labs.known_language.grammar.grammar import LanguageSettings
from labs.known_language.recovery import means, position_numbers
from nanoheads.truth import Language

SMALL = dict(seed=3, train=6000, validation=1500, test=1500)
SMALL |= dict(themes=5, nouns=12, verbs=8, adjectives=6, adverbs=4)


@pytest.fixture(scope="module")
def lang():
    return Language(**SMALL)


@pytest.fixture(scope="module")
def table(lang):
    """log p of the next word given the last one alone (V, V): a model."""
    V = len(lang.words)
    return torch.randn(V, V, generator=torch.Generator().manual_seed(0)).log_softmax(1)


@pytest.fixture(scope="module", autouse=True)
def fewer_draws():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "DRAWS", 200)
        yield


@pytest.fixture(scope="module")
def scored(lang, table):
    return lang.score(lambda tokens: table[tokens])


def test_the_truth_is_a_perfect_model(lang):
    s = lang.score(lang.log_probs, context=64)
    for key in ("kl_truth_model", "kl_model_truth", "tv", "mass_invalid", "alternatives_error"):
        assert s[key] == pytest.approx(0, abs=1e-12) and s[f"{key}_ci"] == pytest.approx(0, abs=1e-12), key
    assert [s["ppl_floor"], s["alternatives"]] == pytest.approx([1, 1])
    assert 0.9 < s["coverage"] < 1 and s["ece"] < 0.05 and s["ece_ci"] > 0
    ends = np.flatnonzero(lang.test == lang.machine.end)
    assert (s["documents"], s["tokens"]) == (len(ends) - 1, len(lang.test) - 1 - ends[0])


def test_a_uniform_model(lang):
    ids, M, V = lang.test.astype(np.int64), lang.machine, lang.machine.V
    s = lang.score(lambda tokens: torch.full((*tokens.shape, V), -np.log(V)), context=64)
    p = M.probs(M.parse_stream(ids))[np.flatnonzero(ids == M.end)[0] + 1 :]
    valid, H = (p > 0).sum(1), -(p * np.log(np.where(p > 0, p, 1))).sum(1)
    reverse = [-np.log(row[row > 0]).mean() - np.log(n) for row, n in zip(p, valid)]
    want = dict(kl_truth_model=(np.log(V) - H).mean(), kl_model_truth=np.mean(reverse), nll=np.log(V))
    want |= dict(mass_invalid=(1 - valid / V).mean(), mass_alternatives=((valid - 1) / V).mean())
    want |= dict(entropy=H.mean(), tv=(np.abs(p - 1 / V).sum(1) / 2).mean())
    assert {key: s[key] for key in want} == pytest.approx(want)


def test_functions_of_torch_and_numpy_and_files_have_the_same_score(lang, table, scored, tmp_path):
    assert scored["kl_truth_model"] > 1 and scored["mass_invalid"] > 0.5 and scored["ece"] > 0
    assert lang.score(lambda tokens: table.double().numpy()[tokens.numpy()], batch=3) == pytest.approx(scored)
    rows = table[np.roll(lang.test, 1)]  # of each token: what the one before it says
    np.save(tmp_path / "rows.npy", rows.numpy())
    assert lang.score(tmp_path / "rows.npy") == pytest.approx(scored)


def test_a_constant_beside_each_log_p_lowers_nothing(lang, table, scored):
    """Sums of probabilities up to 1.001 pass, as float16 rounds so far."""
    for off in (0.00099, -0.00099):
        s = lang.score(lambda tokens: table[tokens].double() + off)
        assert s["kl_truth_model"] == pytest.approx(scored["kl_truth_model"], abs=1e-6)


def test_the_intervals_are_those_of_means_over_documents(lang, table, scored):
    """Of a ratio of sums over documents, by the delta method."""
    documents = np.split(lang.test, np.flatnonzero(lang.test == lang.machine.end) + 1)[1:-1]
    before = [np.append(lang.machine.end, d[:-1]) for d in documents]
    sums = np.array([-table[b, d].sum().item() for b, d in zip(before, documents)])
    lengths = np.array([len(d) for d in documents])
    nll = sums.sum() / lengths.sum()
    half = 1.96 * np.std(sums - nll * lengths, ddof=1) / len(sums) ** 0.5 / lengths.mean()
    assert scored["nll"] == pytest.approx(nll) and scored["nll_ci"] == pytest.approx(half, rel=0.2)


def test_a_model_that_rules_out_a_valid_word_is_infinitely_far(lang, table):
    rows = table.clone()
    rows[:, 9] = -torch.inf
    s = lang.score(lambda tokens: rows.log_softmax(1)[tokens])
    assert s["kl_truth_model"] == np.inf and np.isnan(s["kl_truth_model_ci"])
    assert s["tv"] < 1 and 0 < s["tv_ci"] < 0.1


def test_the_two_sided_truth_knows_what_is_known(lang):
    text = torch.from_numpy(lang.test[:40].reshape(4, 10))
    p = lang.fill_log_probs(torch.where(torch.arange(10) % 3 == 1, text, -1)).exp()
    torch.testing.assert_close(p.sum(2), torch.ones(4, 10, dtype=torch.float64))
    said = p.gather(2, text[:, :, None])[:, :, 0]
    assert (said[:, 1::3] == 1).all() and (said > 0).all() and (said[:, ::3] < 1).any()


def test_the_numbers_by_hand():
    log_m = np.log(np.array([[0.5, 0.2, 0.2, 0.1]]))
    counted = position_numbers(log_m, np.array([[0.6, 0.35, 0.05, 0.0]]), np.array([0])).sum(0)
    m = means(counted)
    forward = 0.6 * np.log(1.2) + 0.35 * np.log(1.75) + 0.05 * np.log(0.25)
    reverse = 5 / 9 * np.log(5 / 9 / 0.6) + 2 / 9 * np.log(2 / 9 / 0.35) + 2 / 9 * np.log(2 / 9 / 0.05)
    assert (m["kl_truth_model"], m["kl_model_truth"]) == pytest.approx((forward, reverse))
    assert (m["tv"], m["mass_invalid"], m["ppl_floor"]) == pytest.approx((0.25, 0.1, 1.2))
    alternatives = m["mass_alternatives"], m["alternatives"], m["alternatives_error"]
    assert alternatives == pytest.approx((0.4, 1, 0.15 + 0.15))
    with np.errstate(divide="ignore"):
        ruled_out, nothing_left = np.log(np.array([[[0.0, 1, 0, 0]], [[0.0, 0, 0, 1]]]))
    p = np.array([[0.6, 0.4, 0, 0]])
    counted += position_numbers(ruled_out, p, np.array([0])).sum(0)
    m = means(counted)
    assert m["kl_truth_model"] == m["nll"] == m["ppl_floor"] == np.inf
    assert 0 < m["kl_model_truth"] < np.inf and m["tv"] == pytest.approx((0.25 + 0.6) / 2)
    counted += position_numbers(nothing_left, p, np.array([0])).sum(0)
    assert means(counted)["kl_model_truth"] == np.inf


NORM = "transformer.ln_f.weight"


def gpt2(folder, V, positions=128, without="", layers=2):
    """An untrained GPT-2 in a folder, `without` a weight: transformers alone would fill it with random
    numbers. Of 2 layers, whatever its config.json says."""
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=V, n_positions=positions, n_embd=8, n_layer=2, n_head=1)
    config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    path = folder / "model.safetensors"
    said = folder / "config.json"
    said.write_text(said.read_text().replace('"n_layer": 2', f'"n_layer": {layers}'))
    save_file({name: w for name, w in load_file(path).items() if name != without}, path, {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "model, names",
    [
        (lambda V, at: lambda x: torch.randn(*x.shape, V), "probabilities"),
        (lambda V, at: lambda x: torch.full((*x.shape, V), torch.nan), "probabilities"),
        (lambda V, at: lambda x: torch.zeros(*x.shape, 7), "model"),
        (lambda V, at: at / "array.npy", "array.npy"),
        (lambda V, at: gpt2(at, 50), "vocab_size"),
        (lambda V, at: gpt2(at, V, positions=64), "context"),
        (lambda V, at: gpt2(at, V, without=NORM), NORM),
        (lambda V, at: gpt2(at, V, layers=10**9), "layers"),
    ],
)
def test_what_is_no_model_of_the_language(lang, tmp_path, model, names):
    np.save(tmp_path / "array.npy", np.zeros((3, 4)))
    with pytest.raises(ValueError, match=names):
        lang.score(model(len(lang.words), tmp_path))


def test_text_comes_back(lang):
    assert np.array_equal(lang.encode(lang.decode(lang.train)), lang.train)
    assert lang.decode(lang.train).endswith("\n") and lang.decode(lang.test[:2]).count(" ") == 1


def test_the_command(lang, table, scored, tmp_path, capsys):
    np.save(tmp_path / "rows.npy", table[np.roll(lang.test, 1)].numpy())
    source = " ".join(f"{key}={value}" for key, value in SMALL.items())
    assert score.main([str(tmp_path / "rows.npy"), f"--source={source}"]) == 0
    out = capsys.readouterr().out
    assert f"{scored['tokens']:,} tokens of {scored['documents']} documents, test" in out
    for key in ("kl_truth_model", "mass_invalid", "ece"):
        assert re.search(rf"^{key} +{scored[key]:.4f} ± {scored[f'{key}_ci']:.4f}$", out, re.M)


def test_the_page_takes_a_loop_of_somebodys_own_to_its_numbers(tmp_path, monkeypatch, capsys):
    """In a small language, with two steps."""
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    page = (Path(score.__file__).parent / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", page, re.S)[1]
    small = ", ".join(f"{f.name}={SMALL[f.name]}" for f in fields(LanguageSettings))
    assert code.count("Language()") == 1 and code.count("976") == 2
    Path("loop.py").write_text(code.replace("Language()", f"Language({small})").replace("976", "2"))
    variables = runpy.run_path("loop.py")
    assert "'kl_truth_model': " in capsys.readouterr().out
    model, lang = variables["model"].eval(), variables["lang"]
    with torch.no_grad():
        again = lang.score(lambda tokens: model(tokens).logits.log_softmax(-1))
    assert lang.score("mine") == pytest.approx(again) and 0 < again["tv"] < 1
