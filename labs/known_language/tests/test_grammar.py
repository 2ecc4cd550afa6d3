"""The grammar: exact distributions, text that obeys the rules at any distance, measurements against it."""

import math
import re

import numpy as np
import pytest

from data.open import folder_of, load_tokenizer, prepared
from data.tokens import open_tokens, read_made
from labs.known_language.grammar import prepare as grammar
from labs.known_language.grammar.grammar import RULES, build_language, places
from labs.known_language.grammar.machine import UNKNOWN, Machine
from labs.known_language.grammar.prepare import GrammarSettings
from labs.known_language.recovery import document_windows
from labs.known_language.truth.measure import language_of, validity
from labs.known_language.two_sided import CutDocuments
from tests.fixtures import chi_square

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


def test_frequencies_match_the_distributions(machine, documents):
    ids = np.concatenate(documents)
    states = machine.parse_stream(ids)
    often = np.bincount(states).argsort()[::-1][:40]
    counts, p = [np.bincount(ids[states == s], minlength=machine.V) for s in often], machine.probs(often)
    scores = [*map(chi_square, counts, p)]
    assert max(scores) < 5 and abs(np.mean(scores)) < 1
    assert chi_square(counts[0], np.roll(p[0], 1)) > 50  # the test can fail


def entropy_rate(machine: Machine) -> tuple[float, np.ndarray]:
    """Nats a word: a document's expected sum of entropies over its expected length; and those of states."""
    p = machine.probs(np.arange(machine.Q * machine.X))
    entropies = -(p * np.log(np.where(p > 0, p, 1))).sum(1)
    return float(machine.visits @ entropies / machine.visits.sum()), entropies


def test_generated_words_are_allowed_and_entropies_agree(machine, documents):
    ids = np.concatenate(documents)
    states = machine.parse_stream(ids)
    q, x = np.divmod(states, machine.X)
    p = machine.syntax[q, machine.klass[ids]] * machine.lexicon[x, ids]
    assert (p > 0).all() and machine.allows(states, ids).all()
    lengths = np.array([len(d) for d in documents])
    owner = np.repeat(np.arange(len(documents)), lengths)
    # a ratio of means over documents: its standard error by the delta method
    rate, entropies = entropy_rate(machine)
    for values in (-np.log(p), entropies[states]):
        sums = np.bincount(owner, values)
        error = np.std(sums - rate * lengths) / math.sqrt(len(documents)) / lengths.mean()
        assert abs(sums.sum() / lengths.sum() - rate) < 4 * error and error < 0.01
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


def letters(machine: Machine, document: np.ndarray) -> str:
    """A document as one letter for each word: its class."""
    return "".join("VKGNMvwabDPtoIHEOXYS."[c] for c in machine.klass[document])


NP = "Da{0,2}[NM](?:PD[NM])?"
INNER = "Da{0,2}(?:N(?:PD[NM])?v|M(?:PD[NM])?w)"
OBJECT = f"(?:{NP}|b)?"
CLAUSE = f"(?:Da{{0,2}}(?:N(?:P{NP}|tv{NP}|o{INNER})?v|M(?:P{NP}|tw{NP}|o{INNER})?w)|Kv){OBJECT}"
SENTENCE = f"(?:{CLAUSE}|I{CLAUSE}H{CLAUSE}|E{CLAUSE}O{CLAUSE}|X{CLAUSE}Y{CLAUSE})S"
DOCUMENT = re.compile(f"V(?:{SENTENCE}){{1,4}}G[.]")


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


def test_a_prepared_folder_is_of_these_rules(tmp_path, monkeypatch):
    words, machine = build_language(settings := GrammarSettings.parse(SOURCE))
    folder = prepared("grammar", "words", SOURCE, tmp_path)
    record, test = read_made(folder)["source"], open_tokens(folder / "test.bin")
    assert load_tokenizer(folder).words == words and record == f"{settings} language={machine.digest}"
    assert test.ids[-1] == machine.end and grammar.corpus.truth(record, 16) and language_of(test)
    monkeypatch.setitem(RULES, "object", [(0.3, ()), (0.5, ("np",)), (0.2, ("adverb",))])
    for read in (lambda: grammar.corpus.truth(record, 16), lambda: language_of(test)):
        with pytest.raises(ValueError, match="other rules"):
            read()


def test_a_folder_is_named_by_its_settings(tmp_path):
    sources = {"": "words", "seed=1": "words", "validation=600 train=700": "words-train=700-validation=600"}
    for source, name in sources.items():  # whatever the order
        assert folder_of("grammar", "words", source, tmp_path).name == name
    for source in ("train=9", "nouns=" + 25 * "9", "words=9"):
        with pytest.raises(ValueError, match=source.split("=")[0]):
            folder_of("grammar", "words", source, tmp_path)


@pytest.mark.parametrize("block", [16, 40])
def test_document_windows(machine, documents, block):
    ids = np.concatenate(documents[:50])
    ends, seen = np.flatnonzero(ids == machine.end), np.zeros(len(ids), int)
    for start, stop in document_windows(ends, block):
        assert start in ends and 1 <= stop <= block
        seen[start + 1 : start + 1 + stop] += 1
    inside = np.concatenate([np.arange(len(d)) for d in documents[:50]])  # place in the document
    assert np.array_equal(seen, (inside < block) & (np.arange(len(ids)) > ends[0]))
    assert document_windows(ends[:1], block) == []


def test_what_follows_the_beginning_of_a_document_and_what_is_valid(machine):
    document, truth = machine.sample(1, np.random.default_rng(0))[0], CutDocuments(machine)
    p = machine.probs(machine.parse(document[None])[0])
    for i in range(len(document)):
        for begun in (document[:i], np.append(truth.end, document[:i])):
            assert np.array_equal(truth.after(begun), p[i])
    assert truth.after(document[1:3]) is None
    broken = document.copy()
    broken[3] = machine.first[0]
    assert validity(machine, document[None]) == 1
    assert validity(machine, broken[None]) == 0.75  # what follows the mistake is not judged
