"""The language: rules, word classes and words, and the machine that they make.

A document is one line: a name in the vocative, which sets the theme; one to four sentences; the same name in
the genitive; the line's end.

    Mefove if my nefalos neruge then her kaded puboles his girif . Mefovus dugupes my penam . Mefovi
    Vomove our puvisic gofuzic dipulos kasuze the vamaz . his futagos tileme . Vomovi

Nouns end in a consonant (plural "os"), verbs in "es" (plural "e"), adjectives in "ic", adverbs in "ily".

What a model has to carry over a distance:
- agreement: a verb has the number of its subject. Between the two may stand adjectives, prepositional phrases
  and relative clauses, with nouns and verbs of their own
- nesting: "whom" opens a clause with a subject and a verb of its own, before the verb of the outer subject
- matching: "if" is closed by "then", "either" by "or", "neither" by "nor", a whole clause later
- the theme: the first word decides which nouns and verbs are frequent, and which name alone may come again

Nouns, verbs, adjectives and adverbs come in synonym classes of one to four words. The words of a class have
the same probability everywhere; the classes are Zipfian.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from .machine import Machine, Tables

# Of each symbol its expansions: probability, then symbols. One without a line is a class of words.
# The class of the next word decides between the expansions (the grammar is LL(1)). So the stack of symbols to
# come is a function of the words seen: see `places`.
GRAMMAR = """
document: 1 vocative sentence second genitive end
second: 0.9 sentence third | 0.1
third: 0.7 sentence fourth | 0.3
fourth: 0.6 sentence | 0.4
sentence: 0.7 clause stop | 0.1 if clause then clause stop | 0.1 either clause or clause stop | \
    0.1 neither clause nor clause stop
clause: 0.8 determiner adjectives subject | 0.2 nominative verb_sg object
subject: 0.6 noun_sg modifier_sg verb_sg object | 0.4 noun_pl modifier_pl verb_pl object
modifier_sg: 0.6 | 0.2 preposition np | 0.1 that verb_sg np | 0.1 whom determiner adjectives inner
modifier_pl: 0.6 | 0.2 preposition np | 0.1 that verb_pl np | 0.1 whom determiner adjectives inner
inner: 0.6 noun_sg phrase verb_sg | 0.4 noun_pl phrase verb_pl
object: 0.25 | 0.55 np | 0.2 adverb
np: 1 determiner adjectives noun phrase
noun: 0.6 noun_sg | 0.4 noun_pl
phrase: 0.8 | 0.2 preposition determiner noun
adjectives: 0.7 | 0.3 adjective more
more: 0.8 | 0.2 adjective
"""
RULES: dict[str, list[tuple[float, tuple[str, ...]]]] = {}
for symbol, _, expansions in (rule.partition(":") for rule in GRAMMAR.strip().splitlines()):
    parts = [expansion.split() for expansion in expansions.split("|")]
    RULES[symbol] = [(float(p), tuple(symbols)) for p, *symbols in parts]

FUNCTION_WORDS = {  # classes with words of their own, the most frequent first
    "determiner": "the his her my their our your its",
    "preposition": "of in with on by near under behind over for",
    "that": "that which",
    **{word: word for word in "whom if then either or neither nor".split()},
    "stop": ".",
}
END = "\n"
OWN = 0.7  # share of the nouns, and of the verbs, that come from the theme's own concepts
OWN_CONCEPTS = 40  # how many concepts a theme has of its own
SYNONYMS = 4  # at most
AT_ONCE = 4096  # documents that are drawn together


@dataclass(frozen=True)
class LanguageSettings:
    """Everything that decides the language and its splits."""

    seed: int = 1
    train: int = 2_000_000  # tokens at least: a split ends with the document that reaches them
    validation: int = 100_000
    test: int = 100_000
    themes: int = 48  # names
    nouns: int = 300  # concepts, of one to SYNONYMS words each, with two forms
    verbs: int = 120  # likewise
    adjectives: int = 150  # concepts, with one form
    adverbs: int = 60


# ---- places: the stacks of the grammar
# ------------------------------------------------------------------------------


def _first(stack: tuple[str, ...]) -> list[tuple[float, str, tuple[str, ...]]]:
    """(probability, class of the next word, stack after it) of each way to go on from `stack`."""
    head, rest = stack[0], stack[1:]
    if head not in RULES:
        return [(1.0, head, rest)]
    return [(p * q, name, after) for p, begun in RULES[head] for q, name, after in _first(begun + rest)]


def places() -> tuple[list[tuple[str, ...]], list[dict[str, tuple[float, int]]]]:
    """All stacks that the grammar can reach, "document" first, and the arcs that leave each.

    The arcs of a stack are {class of the next word: (probability, number of the stack after it)}.
    """
    stacks: list[tuple[str, ...]] = [("document",)]
    number, arcs = {stacks[0]: 0}, []
    for stack in stacks:  # which grow
        out: dict[str, tuple[float, int]] = {}
        for p, name, rest in _first(stack):
            rest = rest or ("document",)
            to = number.setdefault(rest, len(stacks))
            stacks += [rest] * (to == len(stacks))
            before, same = out.get(name, (0.0, to))
            assert to == same, f"{name} has two ways to go on: the grammar is not LL(1)"
            out[name] = (before + p, to)
        arcs.append(out)
    return stacks, arcs


# ---- words
# ----------------------------------------------------------------------------------------------------------


def _stems(count: int, rng: np.random.Generator) -> list[str]:
    """`count` different pronounceable stems, two syllables and a consonant each, in random order."""
    syllables = [a + b for a, b in product("bdfgklmnprstvz", "aeiou")]
    stems = ["".join(s) for s in product(syllables, syllables, "bdfgklmnprstvz")]
    if count > len(stems):
        raise ValueError(f"the concepts and themes need {count} different stems: there are {len(stems)}")
    return [stems[i] for i in rng.permutation(len(stems))[:count]]


def _zipf(n: int) -> np.ndarray:
    """Zipf's probabilities of the ranks 1 to n (n,)."""
    return 1 / np.arange(1, n + 1) / np.sum(1 / np.arange(1, n + 1))


def _open_class(concepts: int, themes: int, themed: bool, rng: np.random.Generator) -> np.ndarray:
    """P(word | theme) (X, words): Zipf over the concepts, each shared evenly among its synonyms.

    If `themed`, a share OWN of the mass goes by Zipf to OWN_CONCEPTS concepts that each theme draws.
    """
    synonyms = rng.integers(1, SYNONYMS + 1, concepts)
    p = np.tile(_zipf(concepts), (themes, 1))
    if themed:
        zipf = _zipf(min(OWN_CONCEPTS, concepts))
        p *= 1 - OWN
        for x in range(themes):
            p[x, rng.permutation(concepts)[: len(zipf)]] += OWN * zipf
    return np.repeat(p / synonyms, synonyms, axis=1)


def _classes(s: LanguageSettings) -> list[tuple[str, list[str], np.ndarray]]:
    """(class, its words, P(word | class, theme) (X, words)) of all classes, the end last."""
    rng, X = np.random.default_rng((s.seed, 0)), s.themes
    sizes = {"noun": s.nouns, "verb": s.verbs, "adjective": s.adjectives, "adverb": s.adverbs}
    open_classes = {kind: _open_class(n, X, kind in ("noun", "verb"), rng) for kind, n in sizes.items()}
    stems = iter(_stems(X + sum(p.shape[1] for p in open_classes.values()), rng))
    names = [next(stems).capitalize() for _ in range(X)]
    only_own = np.eye(X)  # a document mentions no name but its own
    out = [
        ("vocative", [n + "e" for n in names], np.tile(_zipf(X), (X, 1))),
        ("nominative", [n + "us" for n in names], only_own),
        ("genitive", [n + "i" for n in names], only_own),
    ]
    noun, verb = {"noun_sg": "", "noun_pl": "os"}, {"verb_sg": "es", "verb_pl": "e"}
    for p, forms in zip(open_classes.values(), (noun, verb, {"adjective": "ic"}, {"adverb": "ily"})):
        own_stems = [next(stems) for _ in range(p.shape[1])]
        out += [(name, [stem + ending for stem in own_stems], p) for name, ending in forms.items()]
    for name, words in FUNCTION_WORDS.items():
        out.append((name, words.split(), np.tile(_zipf(len(words.split())), (X, 1))))
    return [*out, ("end", [END], np.ones((X, 1)))]


def build_language(s: LanguageSettings) -> tuple[list[str], Machine]:
    """The words (V,) and the machine of the language: a pure function of the settings.

    The sizes of the splits do not matter.
    """
    classes = _classes(s)
    names = [name for name, _, _ in classes]
    _, arcs = places()
    syntax = np.zeros((len(arcs), len(names)))
    after = np.full((len(arcs), len(names)), -1)
    for q, out in enumerate(arcs):
        for name, (p, to) in out.items():
            c = names.index(name)
            syntax[q, c], after[q, c] = p, to
    words = [word for _, words, _ in classes for word in words]
    klass = np.repeat(np.arange(len(classes)), [len(words) for _, words, _ in classes])
    theme = np.full(len(words), -1)
    theme[: s.themes] = np.arange(s.themes)  # the vocatives
    lexicon = np.hstack([p for _, _, p in classes])
    return words, Machine(Tables(klass, syntax, after, lexicon, theme))


def documents(machine: Machine, tokens: int, seed: tuple[int, ...]) -> Iterator[np.ndarray]:
    """Documents of ids, until there are at least `tokens` ids of them. `seed`: (that of the settings, 1 + the
    number of the split)."""
    rng, count = np.random.default_rng(seed), 0
    while True:
        for document in machine.sample(AT_ONCE, rng):
            yield document
            count += len(document)
            if count >= tokens:
                return
