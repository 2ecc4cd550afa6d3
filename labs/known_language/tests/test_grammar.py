"""The grammar: exact distributions, text that obeys the rules at any distance, measurements against it."""

import math
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from nanoheads.labs.known_language import library

import eval_diversity
from common.log import entries
from data.batches import Windows
from data.open import folder_of, load_tokenizer, prepared
from data.tokens import SPLITS, open_held_out, open_tokens, open_truth, read_made
from evaluate import scoring, text_numbers
from evaluate.columns import TRUTH
from evaluate.metrics import document_windows, training_windows
from evaluate.scoring import document_blocks, recover, recovery_numbers
from evaluate.settings import PaperConfig, read_settings
from evaluate.store import Store
from evaluate.text import TextMeasure
from evaluate.text_numbers import validity
from labs.known_language.grammar import prepare as grammar
from labs.known_language.grammar.grammar import RULES, build_language, places
from labs.known_language.grammar.machine import UNKNOWN, Machine
from labs.known_language.grammar.prepare import GrammarSettings
from tests.fixtures import chi_square, train_on
from training.run import load_model
from training.text import TRUTH_WINDOWS

SOURCE = "seed=3 train=6000 validation=1500 test=1500 themes=5 nouns=12 verbs=8 adjectives=6 adverbs=4"
NAMES = (
    "vocative nominative genitive noun_sg noun_pl verb_sg verb_pl adjective adverb determiner preposition "
    "that whom if then either or neither nor stop end"
).split()


@pytest.fixture(scope="module")
def machine() -> Machine:
    return build_language(GrammarSettings.parse(SOURCE))[1]


@pytest.fixture(scope="module")
def documents(machine) -> list[np.ndarray]:
    return machine.sample(4000, np.random.default_rng(0))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A prepared folder. Read only."""
    return prepared("grammar", "words", SOURCE, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def truth(folder):
    return open_truth(open_tokens(folder / "validation.bin"))


# ---- the machine ---------------------------------------------------------------------------------


def test_distributions_sum_to_1(machine):
    for symbol, expansions in RULES.items():
        assert sum(p for p, _ in expansions) == pytest.approx(1) and all(p > 0 for p, _ in expansions), symbol
    stacks, arcs = places()
    assert len(set(stacks)) == len(stacks) == len(arcs) > 500 and stacks[0] == ("document",)
    states = np.flatnonzero(machine.visits > 0)
    p, by_class = machine.probs(states), np.add.reduceat(machine.lexicon, machine.first[:-1], axis=1)
    assert np.abs(p.sum(1) - 1).max() < 1e-12 and np.abs(by_class - 1).max() < 1e-12
    for word in range(0, machine.V, 7):
        assert ((p[:, word] > 0) == machine.allows(states, np.full(len(states), word))).all()
    entropies = -(p * np.log(np.where(p > 0, p, 1))).sum(1)
    assert machine.entropies[states] == pytest.approx(entropies)


def test_frequencies_match_the_distributions(machine, documents):
    ids = np.concatenate(documents)
    states = machine.parse_stream(ids)
    often = np.bincount(states).argsort()[::-1][:40]
    counts, p = [np.bincount(ids[states == s], minlength=machine.V) for s in often], machine.probs(often)
    scores = [*map(chi_square, counts, p)]
    assert max(scores) < 5 and abs(np.mean(scores)) < 1
    assert chi_square(counts[0], np.roll(p[0], 1)) > 50  # the test can fail


def test_generated_words_are_allowed_and_entropies_agree(machine, documents):
    ids = np.concatenate(documents)
    states = machine.parse_stream(ids)
    q, x = np.divmod(states, machine.X)
    p = machine.syntax[q, machine.klass[ids]] * machine.lexicon[x, ids]
    assert (p > 0).all() and machine.allows(states, ids).all()
    lengths = np.array([len(d) for d in documents])
    owner = np.repeat(np.arange(len(documents)), lengths)
    # a ratio of means over documents: its standard error by the delta method
    for values in (-np.log(p), machine.entropies[states]):
        sums = np.bincount(owner, values)
        error = np.std(sums - machine.entropy_rate * lengths) / math.sqrt(len(documents)) / lengths.mean()
        assert abs(sums.sum() / lengths.sum() - machine.entropy_rate) < 4 * error and error < 0.01
    assert abs(lengths.mean() - machine.visits.sum()) < 4 * lengths.std() / math.sqrt(len(documents))
    assert np.bincount(states, minlength=machine.Q * machine.X)[machine.visits == 0].sum() == 0


def test_the_words_do_not_depend_on_the_size_of_the_text():
    built = [build_language(GrammarSettings.parse(SOURCE.replace("6000", size))) for size in ("6000", "7000")]
    assert built[0][0] == built[1][0]


def test_parse(machine, documents):
    row = np.concatenate(documents[:2])
    end = len(documents[0])
    known = machine.parse(row[None])[0]
    assert np.array_equal(machine.parse_stream(row), known) and known[0] == known[end] == 0
    late = machine.parse(row[None, 3:], UNKNOWN)[0]  # nothing is known until a document begins
    assert (late[: end - 3] == UNKNOWN).all() and np.array_equal(late[end - 3 :], known[end:])
    wrong = row.copy()
    wrong[4] = machine.first[0]  # a vocative in the middle
    states = machine.parse(wrong[None])[0]
    assert np.array_equal(states[:5], known[:5]) and not machine.allows(states[4:5], wrong[4:5])
    assert (states[5:end] == UNKNOWN).all() and np.array_equal(states[end:], known[end:])


# ---- the language --------------------------------------------------------------------------------


def letters(machine: Machine, document: np.ndarray) -> str:
    """A document as one letter for each word: its class."""
    return "".join("VKGNMvwabDPtoIHEOXYS."[c] for c in machine.klass[document])


NP = "Da{0,2}[NM](?:PD[NM])?"
INNER = "Da{0,2}(?:N(?:PD[NM])?v|M(?:PD[NM])?w)"
OBJECT = f"(?:{NP}|b)?"
CLAUSE = f"(?:Da{{0,2}}(?:N(?:P{NP}|tv{NP}|o{INNER})?v|M(?:P{NP}|tw{NP}|o{INNER})?w)|Kv){OBJECT}"
DOCUMENT = re.compile(
    f"V(?:(?:{CLAUSE}|I{CLAUSE}H{CLAUSE}|E{CLAUSE}O{CLAUSE}|X{CLAUSE}Y{CLAUSE})S){{1,4}}G[.]"
)


def test_documents_obey_the_rules(machine, documents):
    """The rules, written down again as a regular expression: agreement and matching over any distance."""
    texts = [letters(machine, d) for d in documents]
    assert all(DOCUMENT.fullmatch(t) for t in texts)
    verb_after = re.compile(f"Da{{0,2}}N(P{NP}|tv{NP}|o{INNER})v")
    distances = [len(m[1]) + 1 for t in texts for m in verb_after.finditer(t)]
    assert max(distances) >= 9 and np.mean(distances) > 4
    for d, t in zip(documents, texts):
        names = d[[c in "VKG" for c in t]]
        assert len({*(names - machine.first[machine.klass[names]])}) == 1  # one name a document
    assert max(len(t) for t in texts) > 50


def test_what_breaks_the_rules_is_forbidden(machine, documents):
    sg, pl = NAMES.index("verb_sg"), NAMES.index("verb_pl")
    size, ids = machine.first[sg + 1] - machine.first[sg], np.concatenate(documents[:300])
    states, klass = machine.parse_stream(ids), machine.klass[ids]
    verbs = (klass == sg) | (klass == pl)
    other = ids[verbs] + np.where(klass[verbs] == sg, size, -size)  # the same verb, the other number
    assert verbs.sum() > 500 and not machine.allows(states[verbs], other).any()
    names = np.isin(klass, (1, 2))
    start = machine.first[klass[names]]
    other = start + (ids[names] - start + 1) % machine.X  # another name
    assert names.sum() > 300 and not machine.allows(states[names], other).any()
    for close, wrong in (("then", "or"), ("or", "nor"), ("nor", "then")):
        at = klass == NAMES.index(close)
        others = np.full(at.sum(), machine.first[NAMES.index(wrong)])
        assert at.sum() > 10 and not machine.allows(states[at], others).any()


def test_synonyms_are_interchangeable_and_words_are_zipfian():
    words, machine = build_language(GrammarSettings())
    assert len(set(words)) == len(words) and 2000 < len(words) < 5000
    nouns = machine.lexicon[:, machine.first[3] : machine.first[4]]
    same = (nouns[:, 1:] == nouns[:, :-1]).all(0)  # neighbours that no theme tells apart
    assert 0.4 < same.mean() < 0.8
    # each theme has its own frequent nouns
    assert len({tuple(np.argsort(-row)[:20]) for row in nouns}) == machine.X
    assert [words[i] for i in machine.first[9:11]] == ["the", "of"] and words[machine.end] == "\n"
    frequency, rank = np.sort(nouns.mean(0))[::-1], np.arange(10, 300)
    slope = np.polyfit(np.log(rank), np.log(frequency[rank - 1]), 1)[0]
    assert -1.5 < slope < -0.5


# ---- prepared folders ----------------------------------------------------------------------------


def test_prepared(folder):
    words, machine = build_language(settings := GrammarSettings.parse(SOURCE))
    meta = read_made(folder)
    assert load_tokenizer(folder).words == words and meta["source"] == f"{settings} language={machine.digest}"
    assert open_tokens(folder / "test.bin").ids[-1] == machine.end


def test_a_folder_is_named_by_its_settings(tmp_path):
    sources = {"": "words", "seed=1": "words", "validation=600 train=700": "words-train=700-validation=600"}
    for source, name in sources.items():  # whatever the order
        assert folder_of("grammar", "words", source, tmp_path).name == name
    for source in ("train=9", "nouns=" + 25 * "9", "words=9"):
        with pytest.raises(ValueError, match=source.split("=")[0]):
            folder_of("grammar", "words", source, tmp_path)
    records = [f"{GrammarSettings.parse(text)} language=abc" for text in ("", "seed=2 train=500000")]
    assert [*map(grammar.corpus.unusual_settings, records)] == ["", "seed=2 train=500000"]


def test_other_rules_or_another_truth_are_refused(folder, tmp_path, monkeypatch):
    out = shutil.copytree(folder, tmp_path / "out")
    whole = (folder / "test.truth.npz").read_bytes()
    for content in (whole, (folder / "validation.truth.npz").read_bytes()[:500], b""):
        (out / "validation.truth.npz").write_bytes(content)
        with pytest.raises(ValueError, match="validation.truth.npz"):
            open_truth(open_tokens(out / "validation.bin"))
    record = read_made(folder)["source"]
    assert grammar.corpus.truth(record, 16)
    monkeypatch.setitem(RULES, "object", ((0.3, ""), (0.5, "np"), (0.2, "adverb")))
    with pytest.raises(ValueError, match="other rules"):
        grammar.corpus.truth(record, 16)


def test_truth_round_trip(folder, truth, machine):
    tokens = open_tokens(folder / "validation.bin")
    assert np.array_equal(truth.states, machine.parse_stream(np.asarray(tokens.ids, np.int64)))
    assert all(np.array_equal(a, b) for a, b in zip(truth.machine.tables, machine.tables))
    p = truth.probs(np.arange(len(tokens.ids)))
    assert p.dtype == np.float64 and np.abs(p.sum(1) - 1).max() < 1e-12
    assert (p[np.arange(len(p)), tokens.ids] > 0).all()
    assert truth.info["entropy"] == pytest.approx(-(p * np.log(np.where(p > 0, p, 1))).sum(1).mean())
    assert truth.info["entropy_rate"] == machine.entropy_rate


# ---- scoring against the truth -------------------------------------------------------------------


@pytest.mark.parametrize("block", [16, 40])
def test_document_windows(truth, block):
    ends = np.flatnonzero(truth.states == 0)[1:] - 1
    ends = np.append(ends, len(truth.states) - 1)
    seen = np.zeros(len(truth.states), int)
    for start, first, stop in document_windows(ends, block):
        assert start in ends and first == 0 and 1 <= stop <= block
        seen[start + 1 : start + 1 + stop] += 1
    begins = np.concatenate(([0], ends + 1))[np.searchsorted(ends, np.arange(len(seen)))]
    inside = np.arange(len(seen)) - begins  # place in the document
    wanted = (inside < block) & (np.arange(len(seen)) > ends[0])
    assert np.array_equal(seen, wanted.astype(int))
    assert document_windows(ends[:1], block) == []


@pytest.mark.parametrize("block", [16, 40])
def test_training_windows(folder, block):
    """Of the windows of training, the targets whose document has its start in the window, after another."""
    tokens = open_tokens(folder / "train.bin")
    batches, ends = Windows(tokens, block), np.flatnonzero(tokens.ids == open_truth(tokens).end)
    found = {w.start: range(w.first, w.stop) for w in training_windows(ends, block)}
    assert all(start % block == 0 for start in found)
    for i in range(len(batches)):
        after = [t for t in range(block) if np.isin(i * block + np.arange(t + 1), ends).any()]
        assert list(found.pop(i * block, [])) == after
    assert not found


# ---- training and the table ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """The out folder of a tiny run. Read only."""
    out = tmp_path_factory.mktemp("run") / "baseline"
    size = dict(block_size=64, max_steps=40, learning_rate=1e-2, eval_interval=20)
    train_on(folder, out, dataset="grammar", **size)
    return out


def test_the_log_of_a_run_has_the_masses(run, folder):
    """Of the validation split, and of the first windows of the train split as the saved model gives them."""
    log = [e for e in entries(run) if "val_nll" in e]
    assert [e["step"] for e in log] == [20, 40]
    for e in log:
        assert e["mass_observed"] + e["mass_alternatives"] + e["mass_invalid"] == pytest.approx(1, abs=1e-4)
    first, last = log
    assert last["kl_truth_model"] < first["kl_truth_model"] and last["mass_observed"] > first["mass_observed"]
    assert first["true_observed"] == last["true_observed"]
    train = open_held_out(folder / "train.bin")
    model, _ = load_model(run, "last")
    plan = training_windows(np.flatnonzero(train.ids == train.truth.end), 64)[:TRUTH_WINDOWS]
    blocks = document_blocks(model, train.ids, plan, model.head.draws(4, 0), "cpu", "float32")
    found = recovery_numbers(recover(blocks, train.ids, train.truth), "train_")
    assert found["train_document_tokens"] > 1000 and found["train_nll"] < last["document_nll"]
    for key in ("train_nll", "train_kl_truth_model", "train_alternatives"):
        assert last[key] == pytest.approx(found[key], rel=1e-4), key


def test_the_table(run, folder, tmp_path):
    out = tmp_path / "table"
    argv = [str(run), "--texts=8", "--prompt_tokens=20", "--new_tokens=40", "--device=cpu", f"--out={out}"]
    assert eval_diversity.main(argv) == 0
    rows = {r["name"]: r for r in Store(out.with_name("table.jsonl")).rows("text")}
    model, human = rows["baseline"], rows["human"]
    columns = [c.key for c in TRUTH]
    assert all(math.isfinite(model[k]) for k in columns)
    assert [human[k] for k in columns if k != "coverage"] == pytest.approx([1, 0, 0, 0, 0, 1, 0, 1], abs=1e-9)
    assert 0.9 <= human["coverage"] < 1 and 0 < rows["loop"]["validity"] < 1
    assert rows["unigram noise"]["validity"] < 0.5
    above_truth = math.exp(model["document_nll"] - model["document_true_nll"])
    assert model["ppl_floor"] == pytest.approx(above_truth) and model["ppl_floor"] > 1


def test_a_run_has_the_same_score_in_the_library(run, folder, monkeypatch):
    """And the library's splits are the prepared ones."""
    lang = library.Language(**vars(GrammarSettings.parse(SOURCE)))
    for split in SPLITS:
        assert np.array_equal(getattr(lang, split), open_tokens(folder / f"{split}.bin").ids), split
    for module in (scoring, library):  # the coverage at every position
        monkeypatch.setattr(module, "EVERY", 1)
    model, _ = load_model(run)
    held = open_held_out(folder / "test.bin")
    data = SimpleNamespace(split=held, truth=held.truth)
    settings, draws = SimpleNamespace(block_size=64, dtype="float32"), model.head.draws(1, 0)
    ours = text_numbers.recovery(data, settings, model, draws)
    log_probs = lambda x: model.head.log_probs(model.trunk(x).flatten(0, 1), draws).unflatten(0, x.shape)
    theirs = lang.score(log_probs, context=64)
    keys = [c.key for c in TRUTH if c.key != "validity"]
    assert [theirs[k] for k in keys] == pytest.approx([ours[k] for k in keys], rel=1e-5)
    assert (theirs["nll"], theirs["tokens"]) == (pytest.approx(ours["document_nll"]), ours["document_tokens"])


def test_validity(folder, run):
    argv = [str(run), "--texts=4", "--prompt_tokens=30", "--new_tokens=30", "--device=cpu"]
    data = TextMeasure().session(read_settings(PaperConfig, argv)).data
    whole = {"validity": 1.0, "judged_tokens": pytest.approx(100, abs=20)}
    assert validity(data, data.prompts.human) == whole
    prompts, M = data.prompts, data.truth.machine
    data = data._replace(prompts=prompts._replace(prompt=np.full((1, 1), M.end)))
    document = M.sample(1, np.random.default_rng(0))[0]
    broken = document.copy()
    broken[3] = M.first[0]
    assert validity(data, document[None]) == {"validity": 1.0, "judged_tokens": len(document)}
    # what follows the mistake is not judged
    assert validity(data, broken[None]) == {"validity": 0.75, "judged_tokens": 4}
    unknown = data._replace(prompts=prompts._replace(prompt=document[None, 2:4]))
    assert math.isnan(validity(unknown, document[None, 4:8])["validity"])
    assert validity(data._replace(split=data.split._replace(truth=None)), document[None]) == {}


@pytest.mark.slow
def test_a_model_comes_near_the_truth(tmp_path):
    """On a small language KL(truth || model) falls at every evaluation, to less than 0.2 nats. Its estimate
    from the text alone, cross-entropy minus entropy, agrees."""
    folder = prepared("grammar", "words", SOURCE.replace("6000", "200000"), tmp_path / "data")
    size = dict(learning_rate=1e-2, min_lr=1e-3, block_size=64, batch_size=16, n_layer=2, n_embd=64, n_head=4)
    length = dict(max_steps=800, warmup_steps=40, eval_interval=200, log_interval=100)
    train_on(folder, tmp_path / "out", dataset="grammar", **size, **length)
    log = [entry for entry in entries(tmp_path / "out") if "val_nll" in entry]
    kl, last = [entry["kl_truth_model"] for entry in log], log[-1]
    assert len(kl) == 4 and kl == sorted(kl, reverse=True)
    assert kl[-1] < 0.2 and last["mass_invalid"] < 0.1
    assert last["document_nll"] - last["document_true_nll"] == pytest.approx(kl[-1], abs=0.03)
