"""The grammar: exact distributions, text that obeys the rules at any distance, measurements against it."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data.grammar import prepare as grammar
from data.grammar.grammar import RULES, build, places
from data.grammar.machine import UNKNOWN, Machine
from data.grammar.prepare import GrammarSettings
from data.grammar.truth import write_truth

import eval_diversity
import export
from data import corpus
from data.batches import Windows
from data.held_out import open_held_out, open_truth, truth_path
from data.prepared import SPLITS, folder_of, is_prepared, load_tokenizer, prepared
from data.tokens import open_tokens
from evaluation import scoring
from evaluation.metrics import Recovery
from evaluation.scoring import described, document_blocks, recover, truth_blocks
from evaluation.windows import document_windows, training_windows
from measures import text_numbers
from measures.columns import HONEST, TRUTH, shown
from measures.store import Store
from measures.text import TextMeasure
from measures.text_numbers import validity
from nanoheads import truth as library
from nanoheads.truth import Language
from runtime.checkpoint import load_model
from tests.fixtures import TINY, train_in_process
from train import TrainConfig
from training.text import TRUTH_WINDOWS

SOURCE = "seed=3 train=6000 validation=1500 test=1500 themes=5 nouns=12 verbs=8 adjectives=6 adverbs=4"
NAMES = (
    "vocative nominative genitive noun_sg noun_pl verb_sg verb_pl adjective adverb determiner preposition "
    "that whom if then either or neither nor stop end"
).split()


@pytest.fixture(scope="module")
def language() -> tuple[list[str], Machine]:
    return build(GrammarSettings.parse(SOURCE))


@pytest.fixture(scope="module")
def machine(language) -> Machine:
    return language[1]


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


def one_stream(documents: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(documents)


# ---- the machine ---------------------------------------------------------------------------------


def test_rules_are_distributions():
    for symbol, expansions in RULES.items():
        assert sum(p for p, _ in expansions) == pytest.approx(1) and all(p > 0 for p, _ in expansions), symbol
    stacks, arcs = places()
    assert len(set(stacks)) == len(stacks) == len(arcs) > 500 and stacks[0] == ("document",)


def test_distributions_sum_to_1(machine):
    states = np.flatnonzero(machine.visits > 0)
    sums, by_class = (
        machine.probs(states).sum(1),
        np.add.reduceat(machine.lexicon, machine.first[:-1], axis=1),
    )
    assert np.abs(sums - 1).max() < 1e-12 and np.abs(by_class - 1).max() < 1e-12
    p = machine.probs(states)
    some = np.random.default_rng(0).integers(len(states), size=300)
    for word in range(0, machine.V, 7):
        assert ((p[some, word] > 0) == machine.allows(states[some], np.full(300, word))).all()
    assert machine.entropies[states[some]] == pytest.approx(
        -(p[some] * np.log(np.where(p[some] > 0, p[some], 1))).sum(1)
    )


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    """How many standard deviations the chi-square statistic is above its mean; 0 where one word is certain.

    Words expected less than 5 times are pooled.
    """
    expected = p * counts.sum()
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    keep = expected > 0
    statistic, dof = ((counts - expected)[keep] ** 2 / expected[keep]).sum(), keep.sum() - 1
    return (statistic - dof) / math.sqrt(2 * max(1, dof))


def test_frequencies_match_the_distributions(machine, documents):
    ids = one_stream(documents)
    states = machine.parse_stream(ids)
    often = np.bincount(states).argsort()[::-1][:40]
    scores = [
        chi_square(np.bincount(ids[states == s], minlength=machine.V), machine.probs(np.array([s]))[0])
        for s in often
    ]
    assert max(scores) < 5 and abs(np.mean(scores)) < 1
    other = np.roll(machine.probs(often[:1])[0], 1)
    counts = np.bincount(ids[states == often[0]], minlength=machine.V)
    assert chi_square(counts, other) > 50  # the test can fail


def test_generated_words_are_allowed_and_entropies_agree(machine, documents):
    ids = one_stream(documents)
    states = machine.parse_stream(ids)
    q, x = np.divmod(states, machine.X)
    p = machine.syntax[q, machine.klass[ids]] * machine.lexicon[x, ids]
    assert (p > 0).all() and machine.allows(states, ids).all()
    lengths, owner = (
        np.array([len(d) for d in documents]),
        np.repeat(np.arange(len(documents)), [len(d) for d in documents]),
    )
    # a ratio of means over documents: its standard error by the delta method
    for values in (-np.log(p), machine.entropies[states]):
        sums = np.bincount(owner, values)
        rate, error = (
            sums.sum() / lengths.sum(),
            np.std(sums - machine.entropy_rate * lengths) / math.sqrt(len(documents)) / lengths.mean(),
        )
        assert abs(rate - machine.entropy_rate) < 4 * error and error < 0.01
    assert abs(lengths.mean() - machine.mean_length) < 4 * lengths.std() / math.sqrt(len(documents))
    assert np.bincount(states, minlength=machine.Q * machine.X)[machine.visits == 0].sum() == 0


def test_a_sample_is_a_function_of_the_seed(machine):
    a, b, c = (one_stream(machine.sample(50, np.random.default_rng(seed))) for seed in (1, 1, 2))
    assert np.array_equal(a, b) and not np.array_equal(a, c)
    built = lambda old="", new="": build(GrammarSettings.parse(SOURCE.replace(old, new)))
    words, again = built()
    assert again.digest == machine.digest != built("seed=3", "seed=4")[1].digest
    assert built("train=6000", "train=7000")[0] == words


def test_parse(machine, documents):
    row = np.concatenate(documents[:2])
    end = len(documents[0])
    known = machine.parse(row[None])[0]
    assert np.array_equal(machine.parse_stream(row), known) and known[0] == known[end] == 0
    late = machine.parse(row[None, 3:], UNKNOWN)[
        0
    ]  # from the middle nothing is known until a document begins
    assert (late[: end - 3] == UNKNOWN).all() and np.array_equal(late[end - 3 :], known[end:])
    wrong = row.copy()
    wrong[4] = machine.first[0]  # a vocative in the middle
    states = machine.parse(wrong[None])[0]
    assert np.array_equal(states[:5], known[:5]) and not machine.allows(states[4:5], wrong[4:5])
    assert (states[5:end] == UNKNOWN).all() and np.array_equal(states[end:], known[end:])
    with pytest.raises(ValueError, match="do not end with the end"):
        machine.parse_stream(row[:-1])


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
        themes = {
            machine.klass[w]: w - machine.first[machine.klass[w]]
            for w in d[[i for i, c in enumerate(t) if c in "VKG"]]
        }
        assert len(set(themes.values())) == 1  # one name a document
    assert max(len(t) for t in texts) > 50


def test_what_breaks_the_rules_is_forbidden(machine, documents):
    sg, pl = NAMES.index("verb_sg"), NAMES.index("verb_pl")
    size, ids = machine.first[sg + 1] - machine.first[sg], one_stream(documents[:300])
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
    words, machine = build(GrammarSettings())
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


def files(folder) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != ".lock"}


def test_prepared(folder):
    assert folder.name == "words-" + SOURCE.replace(" ", "-") and is_prepared(folder, "words")
    tokenizer, meta = load_tokenizer(folder), json.loads((folder / "meta.json").read_text())
    settings = GrammarSettings.parse(SOURCE)
    words, machine = build(settings)
    assert tokenizer.words == words and meta["source"] == f"{settings} language={machine.digest}"
    for split, least in (("train", 6000), ("validation", 1500), ("test", 1500)):
        file = open_tokens(folder / f"{split}.bin")
        assert least <= len(file.ids) < least + 130 and file.ids[-1] == machine.end
        assert file.info["words"] + file.info["lines"] == len(file.ids)
        assert file.info["lines"] == (file.ids == machine.end).sum()
        assert tokenizer.encode(tokenizer.decode(file.ids)) == file.ids.tolist()
    a, b = (open_tokens(folder / f"{split}.bin").ids[:1500] for split in ("validation", "test"))
    assert not np.array_equal(a, b)
    assert files(prepared("grammar", "words", SOURCE, folder.parents[1])) == files(folder)


def test_corpora_of_other_settings_stand_side_by_side(tmp_path, monkeypatch, capsys):
    standard, same = (folder_of("grammar", "words", source, tmp_path) for source in ("", "seed=1"))
    assert standard == same == tmp_path / "grammar" / "words"
    name = "words-train=700-validation=600"  # whatever the order
    assert folder_of("grammar", "words", "validation=600 train=700", tmp_path).name == name
    assert folder_of("demo", "bpe300", "anywhere", tmp_path).name == "bpe300"
    monkeypatch.setattr("data.corpus.DATA", tmp_path)
    assert grammar.command(["--source=validation=600 train=700 test=600"]) == 0
    out = tmp_path / "grammar" / "words-train=700-validation=600-test=600"
    assert is_prepared(out, "words") and [p.name for p in out.parent.iterdir()] == [out.name]
    assert prepared("grammar", "words", "test=600 train=700 validation=600", tmp_path) == out
    with pytest.raises(ValueError, match="'x' is not a setting"):
        folder_of("grammar", "words", "x", tmp_path)


def test_the_evaluations_of_the_memorise_overlay_are_at_the_ends_of_epochs():
    c = TrainConfig.read(["config/memorise.py"])
    windows = 50_012 // c.block_size
    epochs = [step * c.batch_size / windows for step in c.eval_steps]
    assert epochs == pytest.approx([1, 2, 4, 8, 16, 32, 64], rel=0.03)
    assert c.eval_steps[-1] == c.max_steps and epochs[-1] == 64
    same = ("block_size", "n_layer", "n_head", "n_embd", "batch_size", "learning_rate", "min_lr")
    standard = TrainConfig.read(["config/grammar.py"])
    assert all(getattr(c, key) == getattr(standard, key) for key in same)


def test_truth_round_trip(folder, truth, machine):
    tokens = open_tokens(folder / "validation.bin")
    assert np.array_equal(truth.states, machine.parse_stream(np.asarray(tokens.ids, np.int64)))
    assert all(np.array_equal(a, b) for a, b in zip(truth.machine.tables, machine.tables))
    p = truth.probs(np.arange(len(tokens.ids)))
    assert p.dtype == np.float64 and np.abs(p.sum(1) - 1).max() < 1e-12
    assert (p[np.arange(len(p)), tokens.ids] > 0).all()
    assert truth.info["entropy"] == pytest.approx(-(p * np.log(np.where(p > 0, p, 1))).sum(1).mean())
    assert truth.info["entropy_rate"] == machine.entropy_rate
    assert truth.info["documents"] == (tokens.ids == machine.end).sum()
    for split in ("train", "test"):
        assert len(open_truth(open_tokens(folder / f"{split}.bin")).states) > 1000


def test_stopped_and_resumed(folder, tmp_path, monkeypatch):
    """Stopped in a split or before the truth is written, the folder is not whole. Run again, it is."""
    out, real = tmp_path / "words", corpus.tokenise_split

    def stop(*_):
        raise KeyboardInterrupt

    stop_at_test = lambda path, *rest: stop() if path.stem == "test" else real(path, *rest)
    for name, place, replacement in (
        ("tokenise_split", corpus, stop_at_test),
        ("write_truth", grammar, stop),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, replacement)
            with pytest.raises(KeyboardInterrupt):
                grammar.corpus.prepare(out, "words", SOURCE)
        assert not is_prepared(out, "words") and not list(out.glob("*.tmp")) and not list(out.glob("*.npz"))
    written = (out / "train.bin").stat().st_mtime_ns
    grammar.corpus.prepare(out, "words", SOURCE)
    assert (out / "train.bin").stat().st_mtime_ns == written
    same = lambda a, b: a.keys() == b.keys() and all(a[k] == b[k] for k in a if not k.endswith(".npz"))
    assert same(files(out), files(folder))
    assert np.array_equal(
        open_truth(open_tokens(out / "test.bin")).states, open_truth(open_tokens(folder / "test.bin")).states
    )


def test_wrong_folders(folder, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="tokenizer = 'bpe300'.*'words'"):
        grammar.corpus.prepare(tmp_path / "bpe300", "bpe300")
    with pytest.raises(ValueError, match="tokenizer 'words'.*no word list"):
        prepared("demo", "words", root=tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="was prepared from source .*--force"):
        grammar.corpus.prepare(folder, "words", SOURCE.replace("seed=3", "seed=4"))
    monkeypatch.setitem(
        RULES, "object", ((0.3, ""), (0.5, "np"), (0.2, "adverb"))
    )  # the same settings, another language
    with pytest.raises(ValueError, match="was prepared from source .*--force"):
        grammar.corpus.prepare(folder, "words", SOURCE)


def test_wrong_truth_files(tmp_path):
    folder = grammar.corpus.prepare(tmp_path / "words", "words", SOURCE)
    tokens, path = open_tokens(folder / "validation.bin"), truth_path(folder / "validation.bin")
    whole = path.read_bytes()
    for content, says in ((whole[:500], ""), (b"", ""), ((folder / "test.truth.npz").read_bytes(), "")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"validation.truth.npz .*{says}"):
            open_truth(tokens)
    kept = (folder / "train.truth.npz").stat().st_mtime_ns
    grammar.corpus.prepare(folder, "words", SOURCE)  # what is damaged is written again, and no more
    assert open_truth(tokens) is not None and (folder / "train.truth.npz").stat().st_mtime_ns == kept
    with pytest.raises(ValueError, match="is not text of this grammar"):
        write_truth(tokens, build(GrammarSettings.parse(SOURCE.replace("nouns=12", "nouns=13")))[1])


# ---- scoring against the truth -------------------------------------------------------------------


@pytest.mark.parametrize("block", [16, 40, 200])
def test_document_windows(truth, block):
    ends = np.flatnonzero(truth.states == 0)[1:] - 1
    ends = np.append(ends, len(truth.states) - 1)
    seen = np.zeros(len(truth.states), int)
    for start, first, stop in document_windows(ends, block):
        assert start in ends and first == 0 and 1 <= stop <= block
        seen[start + 1 : start + 1 + stop] += 1
    inside = (
        np.arange(len(seen)) - np.concatenate(([0], ends + 1))[np.searchsorted(ends, np.arange(len(seen)))]
    )  # place in the document
    wanted = (inside < block) & (np.arange(len(seen)) > ends[0])
    assert np.array_equal(seen, wanted.astype(int))
    assert document_windows(ends[:1], block) == []


@pytest.mark.parametrize("block", [16, 40, 200])
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


class Oracle:
    """A model that says the truth as far as its window tells it, with the state in place of hidden states.

    Where the window does not tell, it guesses uniformly.
    """

    def __init__(self, machine: Machine, block: int, noise: float = 0.0):
        self.machine, self.noise, self.block = machine, noise, block
        self.head = SimpleNamespace(log_prob_blocks=self.log_prob_blocks)

    @property
    def trunk(self):
        def states(tokens):
            rows = tokens.numpy()
            return torch.from_numpy(
                self.machine.step(self.machine.parse(rows, UNKNOWN).ravel(), rows.ravel()).reshape(
                    *rows.shape, 1
                )
            )

        states.config = SimpleNamespace(block_size=self.block)
        states.context = self.block
        return states

    def log_prob_blocks(self, hidden, draws):
        for i in range(0, len(hidden), 7):
            states = hidden[i : i + 7, 0].numpy()
            p = self.machine.probs(np.maximum(states, 0))
            p[states == UNKNOWN] = 1 / self.machine.V
            yield (
                slice(i, i + len(states)),
                torch.from_numpy((1 - self.noise) * p + self.noise / self.machine.V).log(),
            )


def recovered(truth, folder, noise: float, reach=None) -> Recovery:
    ids = open_tokens(folder / "validation.bin").ids
    plan = document_windows(np.flatnonzero(ids == truth.machine.end), 64)
    return recover(
        document_blocks(Oracle(truth.machine, 64, noise), ids, plan, [], "cpu", "float32", batch=3),
        ids,
        truth,
        reach,
    )


def test_a_perfect_model(truth, folder):
    r = recovered(truth, folder, 0.0, lambda log_p: log_p > -math.inf)
    means = r.means()
    for key in ("kl_truth_model", "kl_model_truth", "tv", "mass_invalid", "alternatives_error"):
        assert means[key] == pytest.approx(0, abs=1e-12), key
    for key in ("ppl_floor", "alternatives", "coverage"):
        assert means[key] == pytest.approx(1), key
    assert means["mass_observed"] == pytest.approx(means["true_observed"]) and means["nll"] == pytest.approx(
        means["true_nll"]
    )
    assert abs(means["entropy"] - truth.info["entropy"]) < 0.05  # all documents but the first
    ids = open_tokens(folder / "validation.bin").ids
    again = recover(
        truth_blocks(truth, document_windows(np.flatnonzero(ids == truth.machine.end), 64)), ids, truth
    ).means()
    assert again == pytest.approx({k: v for k, v in means.items() if k != "coverage"})


def test_a_uniform_model(truth, folder):
    means, V = recovered(truth, folder, 1.0).means(), truth.machine.V
    ids = open_tokens(folder / "validation.bin").ids
    first = int(np.flatnonzero(ids == truth.machine.end)[0]) + 1
    p = truth.probs(np.arange(first, len(ids)))
    valid = (p > 0).sum(1)
    H = -(p * np.log(np.where(p > 0, p, 1))).sum(1)
    assert means["kl_truth_model"] == pytest.approx((math.log(V) - H).mean())
    assert means["kl_model_truth"] == pytest.approx(
        np.mean([-np.log(row[row > 0]).mean() - math.log(n) for row, n in zip(p, valid)])
    )
    assert means["mass_invalid"] == pytest.approx((1 - valid / V).mean()) and means[
        "mass_alternatives"
    ] == pytest.approx(((valid - 1) / V).mean())
    assert means["nll"] == pytest.approx(math.log(V)) and means["entropy"] == pytest.approx(H.mean())
    assert means["tv"] == pytest.approx((np.abs(p - 1 / V).sum(1) / 2).mean())


def test_recovery_by_hand():
    log = lambda *p: [math.log(v) if v else -math.inf for v in p]
    r = Recovery()
    r.add([log(0.5, 0.2, 0.2, 0.1)], [[0.6, 0.35, 0.05, 0.0]], [0])
    r.add_coverage([[0.6, 0.35, 0.05, 0.0]], [[True, True, False, False]])
    m = r.means()
    assert m["kl_truth_model"] == pytest.approx(
        0.6 * math.log(1.2) + 0.35 * math.log(1.75) + 0.05 * math.log(0.25)
    )
    assert m["kl_model_truth"] == pytest.approx(
        5 / 9 * math.log(5 / 9 / 0.6) + 2 / 9 * math.log(2 / 9 / 0.35) + 2 / 9 * math.log(2 / 9 / 0.05)
    )
    assert (m["tv"], m["mass_invalid"], m["coverage"]) == pytest.approx((0.25, 0.1, 0.95)) and m[
        "ppl_floor"
    ] == pytest.approx(1.2)
    alternatives = m["mass_alternatives"], m["alternatives"], m["alternatives_error"]
    assert alternatives == pytest.approx((0.4, 1, 0.15 + 0.15))
    assert r.by_decade()[:2] == [pytest.approx((0.2, 0.35)), pytest.approx((0.2, 0.05))]
    r.add([log(0.0, 1.0, 0.0, 0.0)], [[0.6, 0.4, 0.0, 0.0]], [0])  # a valid token ruled out
    m = r.means()
    assert m["kl_truth_model"] == m["nll"] == m["ppl_floor"] == math.inf
    assert 0 < m["kl_model_truth"] < math.inf and m["tv"] == pytest.approx((0.25 + 0.6) / 2)
    r.add([log(0.0, 0.0, 0.0, 1.0)], [[0.6, 0.4, 0.0, 0.0]], [0])  # nothing valid left
    assert r.means()["kl_model_truth"] == math.inf


def ratios(*pairs: tuple[float, float]) -> Recovery:
    """Positions of three tokens, the last forbidden: m's and p's probability of the observed first one."""
    r = Recovery()
    for m, p in pairs:
        with np.errstate(divide="ignore"):
            r.add(np.log([[m, 0.9 - m, 0.1]]), [[p, 1 - p, 0.0]], [0])
    return r


def test_the_quantiles_are_those_of_the_positions():
    m, p = np.random.default_rng(0).uniform(0.01, 0.89, (2, 2000))
    ratio, found = (0.9 - m) / (1 - p), ratios(*zip(m, p)).spread()
    quantiles = [found[f"alternatives_q{q:02}"] for q in Recovery.QUANTILES]
    assert quantiles == pytest.approx(np.percentile(ratio, Recovery.QUANTILES), rel=0.05)
    shares = found["alternatives_below_half"], found["alternatives_below_tenth"]
    assert shares == ((ratio < 0.5).mean(), (ratio < 0.1).mean())


def test_positions_without_alternatives_have_no_part_in_the_spread():
    r = ratios((0.45, 0.5))
    before = r.spread()
    r.add(np.log([[0.2, 0.3, 0.5]]), [[1.0, 0.0, 0.0]], [0])
    assert r.spread() == before and r.count == 2
    assert all(math.isnan(v) for v in Recovery().spread().values())


def test_recovery_of_shares_adds_up(truth, folder):
    """As several processes do it, one of which may have nothing."""
    ids = np.asarray(open_tokens(folder / "validation.bin").ids)
    plan = document_windows(np.flatnonzero(ids == truth.end), 64)
    oracle = Oracle(truth.machine, 64, 0.3)

    def recovery(share: slice) -> Recovery:
        return recover(document_blocks(oracle, ids, plan[share], [], "cpu", "float32"), ids, truth)

    whole, shares = recovery(slice(None)), [recovery(slice(r, None, 2)) for r in (0, 1)]
    shares.append(recovery(slice(0, 0)))
    total = Recovery()
    total.set_totals(np.sum([s.totals() for s in shares], axis=0).tolist())
    assert total.count == whole.count and total.means() == pytest.approx(whole.means())
    assert total.by_decade() == [pytest.approx(pair) for pair in whole.by_decade()]
    assert total.spread() == whole.spread()


# ---- training and the table ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    """The out folder of a tiny run. Read only."""
    out = tmp_path_factory.mktemp("run") / "baseline"
    changes = dict(
        name="baseline",
        dataset="grammar",
        tokenizer="words",
        out_dir=str(out),
        block_size=64,
        max_steps=40,
        learning_rate=1e-2,
        eval_interval=20,
    )
    config = TrainConfig(**TINY | changes)
    assert train_in_process(config, folder) == 0
    return out


def test_the_log_of_a_run_has_the_masses(run):
    entries = [e for e in map(json.loads, (run / "log.jsonl").read_text().splitlines()) if "val_nll" in e]
    assert [e["step"] for e in entries] == [20, 40]
    for e in entries:
        assert e["mass_observed"] + e["mass_alternatives"] + e["mass_invalid"] == pytest.approx(1, abs=1e-4)
    first, last = entries
    assert last["kl_truth_model"] < first["kl_truth_model"] and last["mass_observed"] > first["mass_observed"]
    assert first["true_observed"] == last["true_observed"]
    assert 0 < last["alternatives_q05"] < last["alternatives_q95"]


def test_the_log_of_a_run_has_the_masses_on_its_train_split(run, folder):
    """Over the first windows of it, as the saved model gives them."""
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    train = open_held_out(folder / "train.bin")
    model, _ = load_model(run, "last")
    plan = training_windows(np.flatnonzero(train.ids == train.truth.end), 64)[:TRUTH_WINDOWS]
    blocks = document_blocks(model, train.ids, plan, model.head.draws(4, 0), "cpu", "float32")
    found = described(recover(blocks, train.ids, train.truth), "train_")
    assert found["train_document_tokens"] > 1000 and found["train_nll"] < last["document_nll"]
    for key in ("train_nll", "train_kl_truth_model", "train_alternatives", "train_alternatives_q50"):
        assert last[key] == pytest.approx(found[key], rel=1e-4), key


def test_a_folder_without_the_truth_of_its_train_split(tmp_path):
    """As an earlier version prepared it: it is whole, trains, and prepare.py adds what is missing."""
    folder, out = grammar.corpus.prepare(tmp_path / "words", "words", SOURCE), str(tmp_path / "run")
    missing, written = truth_path(folder / "train.bin"), (folder / "train.bin").stat().st_mtime_ns
    missing.unlink()
    assert is_prepared(folder, "words") and open_truth(open_tokens(folder / "train.bin")) is None
    changes = dict(name="x", dataset="grammar", tokenizer="words", out_dir=out, block_size=64, max_steps=2)
    assert train_in_process(TrainConfig(**TINY | changes), folder) == 0
    last = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    assert "tv" in last and not any(key.startswith("train_") for key in last)
    grammar.corpus.prepare(folder, "words", SOURCE)
    assert missing.is_file() and (folder / "train.bin").stat().st_mtime_ns == written


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
    assert model["ppl_tok"] == pytest.approx(math.exp(model["nll"] / model["tokens"]))
    assert model["ppl_tok"] == pytest.approx(model["ppl_word"], rel=0.01)
    md = out.with_name("table.md").read_text()
    assert all(c.title in md for c in TRUTH) and "nats a token in closed form" in md
    seen = shown(HONEST + TRUTH, list(rows.values()))
    assert {line.count("|") for line in md.splitlines() if line.startswith("|")} == {len(seen) + 2}
    assert set(TRUTH) < set(seen)
    assert eval_diversity.main(argv) == 0  # kept rows


def test_an_exported_run_has_the_same_score_in_the_library(run, folder, tmp_path, monkeypatch):
    """And the library's splits are the prepared ones."""
    pytest.importorskip("transformers")
    lang = Language(**vars(GrammarSettings.parse(SOURCE)))
    for split in SPLITS:
        assert np.array_equal(getattr(lang, split), open_tokens(folder / f"{split}.bin").ids), split
    for module in (scoring, library):  # the coverage at every position
        monkeypatch.setattr(module, "EVERY", 1)
    model, _ = load_model(run)
    data = SimpleNamespace(
        split=SimpleNamespace(ids=lang.test), truth=open_held_out(folder / "test.bin").truth
    )
    settings, draws = SimpleNamespace(block_size=64, dtype="float32"), model.head.draws(1, 0)
    ours = text_numbers.recovery(data, settings, model, draws)
    export.export(run, tmp_path / "theirs")
    theirs = lang.score(tmp_path / "theirs", context=64)
    keys = [c.key for c in TRUTH if c.key != "validity"]
    assert [theirs[k] for k in keys] == pytest.approx([ours[k] for k in keys], rel=1e-5)
    assert (theirs["nll"], theirs["tokens"]) == (pytest.approx(ours["document_nll"]), ours["document_tokens"])


def test_validity(folder, run):
    argv = [str(run), "--texts=4", "--prompt_tokens=30", "--new_tokens=30", "--device=cpu"]
    data = TextMeasure().open(eval_diversity.program.read(argv)).data
    assert validity(data, data.prompts.human) == {
        "validity": 1.0,
        "judged_tokens": pytest.approx(100, abs=20),
    }
    prompts, M = data.prompts, data.truth.machine
    data = data._replace(prompts=prompts._replace(prompt=np.full((1, 1), M.end)))
    document = M.sample(1, np.random.default_rng(0))[0]
    broken = document.copy()
    broken[3] = M.first[0]
    assert validity(data, document[None]) == {"validity": 1.0, "judged_tokens": len(document)}
    assert validity(data, broken[None]) == {
        "validity": 0.75,
        "judged_tokens": 4,
    }  # what follows the mistake is not judged
    unknown = data._replace(prompts=prompts._replace(prompt=document[None, 2:4]))
    assert math.isnan(validity(unknown, document[None, 4:8])["validity"])
    unheard = data._replace(split=data.split._replace(truth=None))
    assert validity(unheard, document[None]) == {}
