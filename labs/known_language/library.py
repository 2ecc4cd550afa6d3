"""The known language as a library, and how far any model is from its truth: README.md of this lab."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

# by the package's name: installed, no module of ours is called `evaluate` beside other people's
from nanoheads.evaluate.metrics import Calibration
from nanoheads.labs.sequences.questions import KINDS, questions
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from tqdm import tqdm

from .grammar.grammar import LanguageSettings, build_language, documents
from .recovery import Window, document_windows, means, position_numbers, positions_of

CONTEXT = 128  # tokens, as config/grammar.py has it
OFF = 1e-3  # how far from 1 a sum of probabilities may be: float16 rounds log-probabilities so far
DRAWS = 1000  # of the bootstrap
NUCLEUS = 0.9  # top_p of the coverage
EVERY = 8  # the coverage is measured at one position of so many, because it takes sorting
ROWS = 1024  # of a file that are read at a time

SPLITS = "train", "validation", "test"
Model = Callable[[Tensor], Any]  # token ids (B, T) int64 -> log p of the token after each (B, T, V)
Filler = Callable[[Tensor], Any]  # the same, -1 where a token is not known -> log p of the token at each
Block = tuple[np.ndarray, Tensor]  # positions (n,) in a split, log p (n, V) of the tokens there


class Language:
    """The language: its text, the exact distribution of each next word, and the distance of a model to it.

    settings  those of LanguageSettings that are not to be the standard ones, such as seed=2 or test=10_000
    words     the word of each id; the last one, the line's end, ends a document
    train, validation, test  token ids (T,) of documents, one after the other, each with its end token
    """

    def __init__(self, **settings: int):
        known = asdict(LanguageSettings())
        for key, value in settings.items():
            require(key in known, key, value, f"some of {', '.join(known)}")
            require_whole(key != "seed", **{key: value})
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
        """The ids (T,) of a text, a document a line. ValueError for a word that the language has not."""
        words = [word for word in text.replace("\n", " \n ").split(" ") if word]
        for word in words:
            require(word in self._id, "text", word, "the words of Language.words")
        return np.array([self._id[word] for word in words], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids (T,). ValueError for one that there is not."""
        text = " ".join(self.words[i] for i in self._ids("ids", ids, 1))
        return text.replace(" \n", "\n").replace("\n ", "\n")

    def _ids(self, name: str, ids: Any, dims: int, least: int = 0) -> np.ndarray:
        ids, V = np.asarray(ids), len(self.words)
        whole = ids.dtype.kind in "iu" or not ids.size
        require(whole and ids.ndim == dims, name, ids, f"whole numbers in {dims} dimensions")
        wrong = ids[(ids < least) | (ids >= V)]
        require(not len(wrong), name, wrong[:1], f"{least} to {V - 1}")
        return ids.astype(np.int64)

    def log_probs(self, tokens: Tensor) -> Tensor:
        """The truth as a model: log p (B, T, V), float64, of the word after each of `tokens` (B, T).

        Each row begins with a document, or with the end token before one; an end token begins a new document
        wherever it stands. ValueError where it is no text of the language.
        """
        rows = self._ids("tokens", tokens, 2)
        states = self.machine.step(self.machine.parse(rows).ravel(), rows.ravel()).reshape(rows.shape)
        forbidden = np.argwhere(states < 0)[:1].tolist()
        require(not forbidden, "tokens", forbidden, "text of the language, each row from a document's start")
        return torch.from_numpy(self.machine.probs(states.ravel())).log().reshape(*rows.shape, -1)

    def fill_log_probs(self, text: Tensor) -> Tensor:
        """The two-sided truth: log p (B, T, V), float64, of the word at each place of `text` (B, T), -1 where
        none is known, given all words that are. Rows are cut anywhere from documents one after the other.

        ValueError where the known words of a row are impossible together.
        """
        rows = self._ids("text", text, 2, -1)
        out = torch.full((*rows.shape, len(self.words)), -torch.inf, dtype=torch.float64)
        free = torch.from_numpy(rows < 0)
        out[free] = torch.from_numpy(self._two_sided(rows, rows < 0))
        out[~free, torch.from_numpy(rows)[~free]] = 0
        return out

    def _two_sided(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """log p (m, V) of the words at the m places `asked` (B, T)."""
        from .two_sided import ForwardBackward  # which needs scipy

        return ForwardBackward(self.machine).log_probs(text, asked)

    @torch.no_grad()
    def score_filler(
        self,
        model: Filler,
        known: float = 0.5,
        kind: str = "random",
        split: str = "test",
        windows: int = 256,
        context: int = CONTEXT,
        batch: int = 16,
    ) -> dict[str, Any]:
        """How far a model that fills gaps, in any order, is from the two-sided truth.

        model    a function from texts (B, T) int64, -1 where a word is not known, to log-probabilities
                 (B, T, V) of the word at each place, given all known ones. Only free places are read
        known    the share of places that are known
        kind     which: `random` ones; all but a gap in the `middle`; those to the left, and the `next` one
                 is asked for
        windows  how many windows of `context` tokens, evenly spread over the split

        Returns KL(p, m) in nats, infinite where m rules out a possible word, and the total variation
        distance: means over at most 8 free places of each window, the same for every model, and under
        NAME_ci half of the 95% interval over windows. ValueError for what is no such model.
        """
        require(kind in KINDS, "kind", kind, f"one of {', '.join(KINDS)}")
        require(isinstance(known, float) and 0 < known < 1, "known", known, "a share between 0 and 1")
        ids, V = self._read(split, context, batch), len(self.words)
        require_whole(2, len(ids) // context, windows=windows)
        starts = np.linspace(0, len(ids) // context - 1, windows).astype(int) * context
        texts = np.stack([ids[s : s + context] for s in starts]).astype(np.int64)
        sought = questions(self._two_sided, texts, known, kind)
        sums: dict[str, list[float]] = {"kl_truth_model": [], "tv": []}
        for i in tqdm(range(0, len(texts), batch), desc="scoring", leave=False, disable=None):
            text, places, log_p = (torch.from_numpy(part[i : i + batch]) for part in sought)
            log_m = as_tensor(model(text), (*text.shape, V)).cpu().double()
            log_m = log_m.gather(1, places[:, :, None].expand(-1, -1, V))
            log_m = normalise(log_m.flatten(0, 1), places.flatten().numpy()).view_as(log_m)
            p = log_p.exp()
            kl = torch.where(p > 0, p * (log_p - log_m), 0.0).sum(2).mean(1)
            sums["kl_truth_model"] += kl.tolist()
            sums["tv"] += ((p - log_m.exp()).abs().sum(2).mean(1) / 2).tolist()
        score: dict[str, Any] = {"split": split, "context": context, "known": known, "kind": kind}
        for name, values in sums.items():
            half = 1.96 * np.std(values, ddof=1) / len(values) ** 0.5 if np.isfinite(values).all() else np.nan
            score |= {name: float(np.mean(values)), f"{name}_ci": float(half)}
        return score | {"windows": len(texts), "places": int(sought.places.size)}

    def _read(self, split: str, context: int, batch: int) -> np.ndarray:
        """The ids of a split that is to be read in windows of `context`, `batch` of them at a time."""
        require(split in SPLITS, "split", split, f"one of {', '.join(SPLITS)}")
        require_whole(1, batch=batch)
        ids = getattr(self, split)
        require_whole(2, len(ids), context=context)
        return ids

    @torch.no_grad()
    def score(
        self,
        model: Model | str | Path,
        split: str = "test",
        context: int = CONTEXT,
        batch: int = 16,
        trust_remote_code: bool = False,
    ) -> dict[str, Any]:
        """How far a model is from the truth, over all documents of a split but the first.

        model    a function from token ids (B, T) int64 to log-probabilities (B, T, V), torch's or numpy's, of
                 the token after each; a folder that transformers' AutoModelForCausalLM loads; or a .npy or
                 .safetensors file (T, V) whose row t has the log-probabilities of the split's token t
        context  how many tokens the model reads. It sees each document from its start, after the end token of
                 the one before it; of a longer document the first `context` tokens count
        batch    how many windows of so many tokens it reads at a time
        trust_remote_code  whether code that lies in the folder may run

        The names are those of `recovery.means`, "coverage", p's mass on the words that sampling with top_p =
        0.9 can reach, at every eighth token, and "ece" (`Calibration`) over the same tokens. Under
        NAME_ci is half of the 95% interval over documents: 1.96 standard deviations of the number over 1000
        bootstrap samples of them (Efron 1979); nan where the number is infinite. "coverage" is of sampling
        with top_p = 0.9, measured at every eighth token.
        ValueError for what is no model of this language.
        """
        require(callable(model) or isinstance(model, (str, Path)), "model", model, "a function or a path")
        ids, V = self._read(split, context, batch), len(self.words)
        ends = np.flatnonzero(ids == self.machine.end)
        plan = document_windows(ends, context)
        require(len(plan) > 0, split, getattr(self.settings, split), "more tokens than those of one document")
        path = Path(model) if isinstance(model, (str, Path)) else None
        if path and path.suffix in (".npy", ".safetensors"):
            blocks = file_blocks(path, positions_of(plan), (len(ids), V))
        else:
            ours: Any = load_transformers(path, V, context, trust_remote_code) if path else model
            blocks = blocks_of(ours, ids, plan, context, batch, V)
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
        out: dict[str, Any] = {}
        for name, value in score_numbers(totals.sum(0)).items():
            out |= {name: value, f"{name}_ci": 1.96 * float(np.std([n[name] for n in drawn], ddof=1))}
    return out


# -----------------------------------------------------------------------------
# Models


def require(good: Any, name: str, value: Any, wanted: str) -> None:
    if not good:
        raise ValueError(f"{name} = {value!r}: give {wanted}")


def require_whole(least: int, most: float = float("inf"), **given: Any) -> None:
    for name, value in given.items():
        good = isinstance(value, (int, np.integer)) and least <= value <= most
        require(good, name, value, f"a whole number from {least:d} to {most}")


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


def load_transformers(folder: Path, V: int, context: int, trust_remote_code: bool) -> Model:
    """The model in a folder, as a function. ValueError if it cannot be loaded, or reads fewer tokens or
    another vocabulary."""
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"transformers cannot load {folder}: {' '.join(str(error).split())}") from None
    model, wrong = loaded[0], sorted({*loaded[1]["missing_keys"], *loaded[1]["unexpected_keys"]})
    # transformers has filled them with random numbers, or left them out
    require(not wrong, str(folder), wrong[:1], "the weights that its config.json asks for")
    reads, words = getattr(model.config, "max_position_embeddings", context), model.config.vocab_size
    require(reads >= context, "context", context, f"at most {reads}, which {folder} reads")
    require(words == V, f"vocab_size of {folder}", words, f"{V}, in the order of the language's ids")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.float().eval().to(device)
    return lambda tokens: model(tokens.to(device)).logits.log_softmax(-1)


def file_blocks(path: Path, positions: np.ndarray, shape: tuple[int, int]) -> Iterator[Block]:
    """The rows of a file's array of that shape at `positions` (N,). ValueError if it holds none."""
    try:
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            (array,) = load_file(path).values()
    except Exception as error:  # each format has its own for a damaged file
        raise ValueError(f"{path} does not hold one array ({type(error).__name__}: {error})") from None
    require(array.shape == shape, str(path), tuple(array.shape), f"log-probabilities {shape}")
    for at in np.split(positions, range(ROWS, len(positions), ROWS)):
        yield at, as_tensor(array[at], (len(at), shape[1]), str(path))
