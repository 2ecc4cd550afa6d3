"""The known language as a library, and how far any model is from its truth: README.md of this lab."""

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

# by the package's name: installed, no module of ours is called `evaluate` beside other people's
from nanoheads.evaluate.metrics import Calibration
from torch import Tensor
from tqdm import tqdm

from .grammar.grammar import LanguageSettings, build_language, documents
from .recovery import Window, document_windows, means, position_numbers

CONTEXT = 128  # tokens, as config/grammar.py has it
OFF = 1e-3  # how far from 1 a sum of probabilities may be: float16 rounds log-probabilities so far
DRAWS = 1000  # of the bootstrap
NUCLEUS = 0.9  # top_p of the coverage
EVERY = 8  # the coverage is measured at one position of so many, because it takes sorting
ROWS = 1024  # of a file that are read at a time

SPLITS = "train", "validation", "test"
Model = Callable[[Tensor], Any]  # token ids (B, T) int64 -> log p of the token after each (B, T, V)
Block = tuple[np.ndarray, Tensor]  # positions (n,) in a split, log p (n, V) of the tokens there


class Language:
    """The language: its text, the exact distribution of each next word, and the distance of a model to it.

    settings  those of LanguageSettings that are not to be the standard ones, such as seed=2 or test=10_000;
              TypeError for another
    words     the word of each id; the last one, the line's end, ends a document
    train, validation, test  token ids (T,) of documents, one after the other, each with its end token
    """

    def __init__(self, **settings: int):
        for key, value in settings.items():
            good = isinstance(value, (int, np.integer)) and value >= (key != "seed")
            require(good, key, value, "a whole number above 0")
        self.settings = LanguageSettings(**settings)
        self.words, self.machine = build_language(self.settings)
        self._id = {word: i for i, word in enumerate(self.words)}

    train = cached_property(lambda self: self._split("train"))
    validation = cached_property(lambda self: self._split("validation"))
    test = cached_property(lambda self: self._split("test"))

    def _split(self, name: str) -> np.ndarray:
        size, seed = getattr(self.settings, name), (self.settings.seed, 1 + SPLITS.index(name))
        return np.concatenate(list(documents(self.machine, size, seed)))

    def encode(self, text: str) -> np.ndarray:
        """The ids (T,) of a text, a document a line. KeyError for a word that the language has not."""
        words = text.replace("\n", " \n ").split(" ")
        return np.array([self._id[word] for word in words if word], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids (T,)."""
        text = " ".join(self.words[i] for i in ids)
        return text.replace(" \n", "\n").replace("\n ", "\n")

    def _rows(self, given: Any, least: int) -> np.ndarray:
        ids, V = np.asarray(given), len(self.words)
        good = ids.ndim == 2 and ids.dtype.kind in "iu" and ((least <= ids) & (ids < V)).all()
        require(good, "tokens", given, f"rows of whole numbers, {least} to {V - 1}")
        return ids.astype(np.int64)

    def log_probs(self, tokens: Tensor) -> Tensor:
        """The truth as a model: log p (B, T, V), float64, of the word after each of `tokens` (B, T).

        Each row begins with a document, or with the end token before one; an end token begins a new document
        wherever it stands. ValueError where it is no text of the language.
        """
        rows = self._rows(tokens, 0)
        states = self.machine.step(self.machine.parse(rows).ravel(), rows.ravel()).reshape(rows.shape)
        forbidden = np.argwhere(states < 0)[:1].tolist()
        require(not forbidden, "tokens", forbidden, "text of the language, each row from a document's start")
        return torch.from_numpy(self.machine.probs(states.ravel())).log().reshape(*rows.shape, -1)

    def fill_log_probs(self, text: Tensor) -> Tensor:
        """The two-sided truth: log p (B, T, V), float64, of the word at each place of `text` (B, T), -1 where
        none is known, given all words that are. Rows are cut anywhere from documents one after the other.

        ValueError where the known words of a row are impossible together.
        """
        from .two_sided import ForwardBackward  # which needs scipy

        rows = self._rows(text, -1)
        out = torch.full((*rows.shape, len(self.words)), -torch.inf, dtype=torch.float64)
        free = torch.from_numpy(rows < 0)
        out[free] = torch.from_numpy(ForwardBackward(self.machine).log_probs(rows))
        out[~free, torch.from_numpy(rows)[~free]] = 0
        return out

    @torch.no_grad()
    def score(
        self, model: Model | str | Path, split: str = "test", context: int = CONTEXT, batch: int = 16
    ) -> dict[str, Any]:
        """How far a model is from the truth, over all documents of a split but the first.

        model    a function from token ids (B, T) int64 to log-probabilities (B, T, V), torch's or numpy's, of
                 the token after each; a folder that transformers' AutoModelForCausalLM loads with no code of
                 its own; or a .npy file (T, V) whose row t has the log-probabilities of the split's token t
        context  how many tokens the model reads. It sees each document from its start, after the end token of
                 the one before it; of a longer document the first `context` tokens count
        batch    how many windows of so many tokens it reads at a time

        The names are those of `recovery.means`, "coverage", p's mass on the words that sampling with top_p =
        0.9 can reach, at every eighth token, and "ece" (`Calibration`) over the same tokens. Under
        NAME_ci is half of the 95% interval over documents: 1.96 standard deviations of the number over 1000
        bootstrap samples of them (Efron 1979); nan where the number is infinite.
        ValueError for what is no model of this language.
        """
        require(split in SPLITS, "split", split, f"one of {', '.join(SPLITS)}")
        require(context >= 2, "context", context, "two tokens at least")
        ids, V = getattr(self, split), len(self.words)
        ends = np.flatnonzero(ids == self.machine.end)
        plan = document_windows(ends, context)
        require(len(plan) > 0, split, getattr(self.settings, split), "more tokens than those of one document")
        if callable(model):
            blocks = blocks_of(model, ids, plan, context, batch, V)
        elif Path(model).suffix == ".npy":
            blocks = file_blocks(Path(model), plan, (len(ids), V))
        else:
            loaded = load_transformers(Path(model), V, context)
            blocks = blocks_of(loaded, ids, plan, context, batch, V)
        totals = self._totals(blocks, ids, ends)
        count = {"split": split, "context": context, "documents": len(totals)}
        return bootstrap_intervals(totals) | count | {"tokens": int(totals[:, 2].sum())}

    def _totals(self, blocks: Iterator[Block], ids: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """What is summed in each document (D, K): what is covered, of how many tokens, the bins of
        `Calibration`, and `position_numbers`."""
        states = self.machine.parse_stream(ids)
        sums: dict[int, np.ndarray] = {}
        for at, log_p in blocks:
            log_p = normalise(log_p if log_p.dtype == torch.float64 else log_p.float(), at)
            p, picked, covered = self.machine.probs(states[at]), at % EVERY == 0, np.zeros(len(at))
            reach = nucleus(log_p[torch.from_numpy(picked)].softmax(1)).numpy()
            covered[picked] = np.where(reach, p[picked], 0).sum(1)
            numbers = np.column_stack([covered, picked, position_numbers(log_p.numpy(), p, ids[at])])
            top, best = log_p.max(1)
            confidence, right = top.exp().clamp(max=1).numpy(), best.numpy() == ids[at]
            document = np.searchsorted(ends, at)
            for n in np.unique(document):
                rows, bins = document == n, Calibration()
                bins.add(confidence[rows], right[rows])
                counted = [*numbers[rows].sum(0), *bins.count, *bins.confidence, *bins.correct]
                sums[n] = sums.get(n, 0) + np.array(counted)
        return np.array([*sums.values()])


def score_numbers(totals: np.ndarray) -> dict[str, float]:
    """The numbers of what is summed (K,) in some documents."""
    calibration = Calibration()
    (covered, picked), sums, bins = np.split(totals, [2, -3 * len(calibration.count)])
    calibration.count, calibration.confidence, calibration.correct = bins.reshape(3, -1)
    coverage = covered / picked if picked else np.nan
    return {**means(sums), "coverage": float(coverage), "ece": calibration.ece()}


def bootstrap_intervals(totals: np.ndarray) -> dict[str, Any]:
    """The numbers over all documents, of `totals` (D, K), and under NAME_ci half of their 95% intervals."""
    D = len(totals)
    weights = np.random.default_rng(0).multinomial(D, np.full(D, 1 / D), DRAWS).astype(np.float64)
    with np.errstate(invalid="ignore"):  # 0 times infinity
        drawn = [score_numbers(row) for row in weights @ totals]
        half = lambda name: 1.96 * float(np.std([numbers[name] for numbers in drawn], ddof=1))
        numbers = score_numbers(totals.sum(0))
        return {key: x for name in numbers for key, x in ((name, numbers[name]), (f"{name}_ci", half(name)))}


# -----------------------------------------------------------------------------
# Models


def require(good: Any, name: str, value: Any, wanted: str) -> None:
    if not good:
        raise ValueError(f"{name} = {value!r}: give {wanted}")


def as_tensor(out: Any, shape: tuple[int, ...], name: str = "the model's array") -> Tensor:
    """What a model gave. ValueError if these are no log-probabilities of that shape."""
    array = out if isinstance(out, Tensor) else np.asarray(out)
    good = array.shape == shape and "float" in str(array.dtype)
    require(good, name, f"{tuple(array.shape)} of {array.dtype}", f"floating-point log-probabilities {shape}")
    return array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))


def normalise(log_p: Tensor, at: np.ndarray) -> Tensor:
    """log p (n, V), its probabilities divided by their sum. ValueError if that is off from 1 by more than
    rounding."""
    total = log_p.exp().sum(1, dtype=torch.float64)
    wrong = ~((total - 1).abs() <= OFF)  # written so that NaN is wrong
    if wrong.any():
        where = f"the sum of the model's probabilities of the token at {at[wrong.numpy()][0]}"
        require(False, where, total[wrong][0].item(), "torch.log_softmax(logits.float(), -1), finite logits")
    return log_p - total.log()[:, None].to(log_p.dtype)  # else a constant beside each log p lowers the KL


def nucleus(p: Tensor) -> Tensor:
    """The tokens (n, V) that sampling with top_p = NUCLEUS can draw (evaluate.decoding.top_p)."""
    ordered, at = p.sort(descending=True, stable=True)
    ordered = ordered / ordered.sum(1, keepdim=True)
    beyond = ordered.cumsum(1) - ordered >= NUCLEUS
    return ~torch.zeros_like(beyond).scatter_(1, at, beyond)


def blocks_of(
    model: Model, ids: np.ndarray, plan: list[Window], context: int, batch: int, V: int
) -> Iterator[Block]:
    """The model's log-probabilities of all tokens that count, a few windows at a time."""
    for i in tqdm(range(0, len(plan), batch), desc="scoring", leave=False, disable=None):
        starts, stops = np.array(plan[i : i + batch]).T[:, :, None]  # (B, 1) each
        # beyond the text anything will do: nothing that counts sees it
        inputs, counted = starts + np.arange(context), np.arange(context) < stops
        tokens = torch.from_numpy(ids[np.minimum(inputs, len(ids) - 1)].astype(np.int64))
        log_p = as_tensor(model(tokens), (*tokens.shape, V))
        yield inputs[counted] + 1, log_p[torch.from_numpy(counted)].cpu()


def load_transformers(folder: Path, V: int, context: int) -> Model:
    """The model in a folder, as a function. ValueError if it lacks weights, or reads fewer tokens or another
    vocabulary; what transformers raises if it cannot be loaded."""
    from transformers import AutoConfig, AutoModelForCausalLM

    # sizes first: a config.json can ask for a model that is never built
    config: Any = AutoConfig.from_pretrained(folder, local_files_only=True)
    layers, words = config.num_hidden_layers, config.vocab_size
    require(layers <= 1000, f"layers of {folder}", layers, "at most 1000")
    require(words == V, f"vocab_size of {folder}", words, f"{V}, in the order of the language's ids")
    reads = getattr(config, "max_position_embeddings", context)
    require(reads >= context, "context", context, f"at most {reads}, which {folder} reads")
    read: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    model, found = read
    wrong = sorted({*found["missing_keys"], *found["unexpected_keys"]})
    # transformers has filled them with random numbers, or left them out
    require(not wrong, str(folder), wrong[:1], "the weights that its config.json asks for")
    model = model.float().eval().to("cuda" if torch.cuda.is_available() else "cpu")
    return lambda tokens: model(tokens.to(model.device)).logits.log_softmax(-1)


def file_blocks(path: Path, plan: list[Window], shape: tuple[int, int]) -> Iterator[Block]:
    """The rows of a file's array of that shape, of all tokens that count. ValueError if it holds none."""
    array = np.load(path, mmap_mode="r", allow_pickle=False)
    require(array.shape == shape, str(path), tuple(array.shape), f"log-probabilities {shape}")
    positions = np.concatenate([np.arange(start + 1, start + 1 + stop) for start, stop in plan])
    for at in np.split(positions, range(ROWS, len(positions), ROWS)):
        yield at, as_tensor(array[at], (len(at), shape[1]), str(path))
