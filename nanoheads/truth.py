"""The known language of data/grammar, and how far any model is from its truth: docs/known_language.md."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from .data.grammar.grammar import LanguageSettings, build, documents
from .evaluation.cuts import top_p
from .evaluation.metrics import EVERY, NUCLEUS, Calibration, Recovery
from .evaluation.windows import KINDS, Window, document_windows, positions_of, questions, read_windows

CONTEXT = 128  # tokens, as config/grammar.py has it
OFF = 1e-3  # how far from 1 a sum of probabilities may be: float16 rounds log-probabilities so far
DRAWS = 1000  # of the bootstrap
ROWS = 1024  # of a file that are read at a time

SPLITS = "train", "validation", "test"
Model = Callable[[Tensor], Any]  # token ids (B, T) int64 -> log p of the token after each (B, T, V)
Filler = Callable[[Tensor], Any]  # the same, -1 where a token is not known -> log p of the token at each
Block = tuple[np.ndarray, Tensor]  # positions (n,) in a split, log p (n, V) of the tokens there


class Language:
    """The language: its text, the exact distribution of each next word, and the distance of a model to it.

    settings  those of data/grammar that are not to be the standard ones, such as seed=2 or test=10_000
    words     the word of each id; the last one, the line's end, ends a document
    """

    def __init__(self, **settings: int):
        known = asdict(LanguageSettings())
        for key, value in settings.items():
            if key not in known or not isinstance(value, int) or value < (key != "seed"):
                raise ValueError(
                    f"{key} = {value!r} is no setting of the language: "
                    f"give whole numbers above 0 for some of {', '.join(known)}"
                )
        self.settings = LanguageSettings(**settings)
        self.words, self.machine = build(self.settings)
        self._id = {word: i for i, word in enumerate(self.words)}

    @cached_property
    def train(self) -> np.ndarray:
        """Token ids (T,) of documents, one after the other, each with its end token: so are all splits."""
        return self._split("train")

    @cached_property
    def validation(self) -> np.ndarray:
        return self._split("validation")

    @cached_property
    def test(self) -> np.ndarray:
        return self._split("test")

    def _split(self, name: str) -> np.ndarray:
        number = ("train", "validation", "test").index(name)
        size, seed = getattr(self.settings, name), (self.settings.seed, 1 + number)
        return np.concatenate(list(documents(self.machine, size, seed)))

    def encode(self, text: str) -> np.ndarray:
        """The ids (T,) of a text, a document a line. ValueError for a word that the language has not."""
        words = text.replace("\n", " \n ").split(" ")
        wrong = [word for word in words if word and word not in self._id]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is no word of the language: use those of Language.words")
        return np.array([self._id[word] for word in words if word], np.int64)

    def decode(self, ids: np.ndarray) -> str:
        """The text of ids (T,). ValueError for one that there is not."""
        if len(ids) and not 0 <= min(ids) <= max(ids) < len(self.words):
            raise ValueError(f"ids: {min(ids)} to {max(ids)} are not in 0 .. {len(self.words) - 1}")
        return " ".join(self.words[i] for i in ids).replace(" \n", "\n").replace("\n ", "\n")

    def log_probs(self, tokens: Tensor) -> Tensor:
        """The truth as a model: log p (B, T, V), float64, of the word after each of `tokens` (B, T).

        Each row begins with a document, or with the end token before one; an end token begins a new document
        wherever it stands. ValueError where it is no text of the language.
        """
        rows = np.asarray(tokens)
        if rows.ndim != 2:
            raise ValueError(f"tokens have the shape {rows.shape}: give rows of ids (B, T)")
        wrong = np.argwhere((rows < 0) | (rows >= len(self.words)))
        if len(wrong):
            b, t = wrong[0]
            raise ValueError(f"row {b}: token {t} is {rows[b, t]}: use 0 to {len(self.words) - 1}")
        states = self.machine.step(self.machine.parse(rows).ravel(), rows.ravel()).reshape(rows.shape)
        if (states < 0).any():
            b, t = np.argwhere(states < 0)[0]
            raise ValueError(
                f"row {b}: the language forbids token {t} ({rows[b, t]}) after those before it: "
                "begin each row with a document and give text of the language"
            )
        p = torch.from_numpy(self.machine.probs(states.ravel()))
        return p.log().reshape(*rows.shape, -1)

    def fill_log_probs(self, text: Tensor) -> Tensor:
        """The two-sided truth: log p (B, T, V), float64, of the word at each place of `text` (B, T), -1 where
        none is known, given all words that are. Rows are cut anywhere from documents one after the other.

        ValueError where the known words of a row are impossible together.
        """
        rows = np.asarray(text)
        out = torch.full((*rows.shape, len(self.words)), -torch.inf, dtype=torch.float64)
        free = torch.from_numpy(rows < 0)
        out[free] = torch.from_numpy(self._two_sided(rows, rows < 0))
        out[~free, torch.from_numpy(rows)[~free]] = 0
        return out

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
        check_choices(split=(split, SPLITS), kind=(kind, KINDS))
        check_whole(2, windows=windows, context=context)
        check_whole(1, batch=batch)
        if not (isinstance(known, float) and 0 < known < 1):
            raise ValueError(f"known = {known!r}: give a share between 0 and 1")
        ids, V = getattr(self, split), len(self.words)
        if len(ids) < windows * context:
            raise ValueError(f"windows = {windows}, context = {context}: {split} has {len(ids)} tokens")
        starts = np.linspace(0, len(ids) // context - 1, windows).astype(int) * context
        texts = np.stack([ids[s : s + context] for s in starts]).astype(np.int64)
        sought = questions(self._two_sided, texts, known, kind)
        sums: dict[str, list[float]] = {"kl_truth_model": [], "tv": []}
        for i in tqdm(range(0, len(texts), batch), desc="scoring", leave=False, disable=None):
            text, places, log_p = (torch.from_numpy(part[i : i + batch]) for part in sought)
            log_m = as_tensor(model(text), (*text.shape, V)).cpu().double()
            log_m = log_m.gather(1, places[:, :, None].expand(-1, -1, V))
            log_m = checked(log_m.flatten(0, 1), places.flatten().numpy()).view_as(log_m)
            p = log_p.exp()
            kl = torch.where(p > 0, p * (log_p - log_m), 0.0).sum(2).mean(1)
            sums["kl_truth_model"] += kl.tolist()
            sums["tv"] += ((p - log_m.exp()).abs().sum(2).mean(1) / 2).tolist()
        score: dict[str, Any] = {"split": split, "context": context, "known": known, "kind": kind}
        for name, values in sums.items():
            half = 1.96 * np.std(values, ddof=1) / len(values) ** 0.5 if np.isfinite(values).all() else np.nan
            score |= {name: float(np.mean(values)), f"{name}_ci": float(half)}
        return score | {"windows": len(texts), "places": int(sought.places.size)}

    def _two_sided(self, text: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """log p (m, V) of the words at the m places `asked` (B, T)."""
        try:
            from .data.grammar.two_sided import ForwardBackward
        except ImportError:
            raise ValueError("the two-sided truth needs scipy: pip install scipy") from None
        return ForwardBackward(self.machine).log_probs(text, asked)

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

        The names are those of `Recovery.means`, and "ece" (`Calibration`) over the same tokens. Under
        NAME_ci is half of the 95% interval over documents: 1.96 standard deviations of the number over 1000
        bootstrap samples of them (Efron 1979); nan where the number is infinite. "coverage" is of sampling
        with top_p = 0.9, measured at every eighth token.
        ValueError for what is no model of this language.
        """
        check_choices(split=(split, SPLITS))
        check_whole(2, context=context)
        check_whole(1, batch=batch)
        if not callable(model) and not isinstance(model, (str, Path)):
            raise TypeError(f"model = {model!r}: give a function, a folder or a file")
        ids = getattr(self, split)
        if context > len(ids):
            raise ValueError(f"context = {context}: {split} has {len(ids)} tokens")
        ends = np.flatnonzero(ids == self.machine.end)
        plan = document_windows(ends, context)
        if not plan:
            raise ValueError(f"{split} = {getattr(self.settings, split)} is one document: use more tokens")
        blocks = self._blocks(model, ids, plan, context, batch, trust_remote_code)
        totals = self._totals(blocks, ids, ends)
        count = {"split": split, "context": context, "documents": len(totals)}
        return with_intervals(totals) | count | {"tokens": int(totals[:, 0].sum())}

    def _blocks(
        self,
        model: Model | str | Path,
        ids: np.ndarray,
        plan: list[Window],
        context: int,
        batch: int,
        trust_remote_code: bool,
    ) -> Iterator[Block]:
        """The model's log-probabilities of all tokens that count, a few windows at a time."""
        V = len(self.words)
        if isinstance(model, (str, Path)):
            if Path(model).suffix in (".npy", ".safetensors"):
                yield from file_blocks(Path(model), positions_of(plan), (len(ids), V))
                return
            model = transformers_model(Path(model), V, context, trust_remote_code)
        for i in tqdm(range(0, len(plan), batch), desc="scoring", leave=False, disable=None):
            tokens, counted, at = read_windows(ids, plan[i : i + batch], context)
            log_p = as_tensor(model(torch.from_numpy(tokens)), (*tokens.shape, V))
            yield at, log_p[torch.from_numpy(counted)].cpu()

    def _totals(self, blocks: Iterator[Block], ids: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """What is counted in each document (D, K): `Recovery.totals`, and the bins of `Calibration`."""
        states = self.machine.parse_stream(ids)
        sums: dict[int, tuple[Recovery, Calibration]] = {}
        for at, log_p in blocks:
            log_p = checked(log_p if log_p.dtype == torch.float64 else log_p.float(), at)
            p, picked, reach = self.machine.probs(states[at]), at % EVERY == 0, np.zeros(log_p.shape, bool)
            reach[picked] = top_p(log_p[torch.from_numpy(picked)].softmax(1), NUCLEUS).numpy()
            top, best = log_p.max(1)
            confidence, right = top.exp().clamp(max=1).numpy(), best.numpy() == ids[at]
            document = np.searchsorted(ends, at)
            for n in np.unique(document):
                rows = document == n
                recovery, calibration = sums.setdefault(n, (Recovery(), Calibration()))
                recovery.add(log_p.numpy()[rows], p[rows], ids[at[rows]])
                recovery.add_coverage(p[rows & picked], reach[rows & picked])
                calibration.add(confidence[rows], right[rows])
        return np.array([[*r.totals(), *c.count, *c.confidence, *c.correct] for r, c in sums.values()])


def numbers(totals: np.ndarray) -> dict[str, float]:
    """The numbers of what is counted (K,) in some documents."""
    recovery, calibration = Recovery(), Calibration()
    bins = totals[-3 * len(calibration.count) :]
    recovery.set_totals(totals[: -len(bins)])
    calibration.count, calibration.confidence, calibration.correct = bins.reshape(3, -1)
    return recovery.means() | {"ece": calibration.ece()}


def with_intervals(totals: np.ndarray) -> dict[str, Any]:
    """The numbers over all documents, of `totals` (D, K), and under NAME_ci half of their 95% intervals."""
    D = len(totals)
    weights = np.random.default_rng(0).multinomial(D, np.full(D, 1 / D), DRAWS).astype(np.float64)
    with np.errstate(invalid="ignore"):  # 0 times infinity
        drawn = [numbers(row) for row in weights @ totals]
        out: dict[str, Any] = {}
        for name, value in numbers(totals.sum(0)).items():
            out |= {name: value, f"{name}_ci": 1.96 * float(np.std([n[name] for n in drawn], ddof=1))}
    return out


# -----------------------------------------------------------------------------
# Models


def check_choices(**given: tuple[Any, tuple[str, ...]]) -> None:
    for name, (value, known) in given.items():
        if value not in known:
            raise ValueError(f"{name} = {value!r}: use one of {', '.join(known)}")


def check_whole(least: int, **given: Any) -> None:
    for name, value in given.items():
        if not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} = {value!r}: give a whole number from {least} on")


def as_tensor(out: Any, wanted: tuple[int, ...]) -> Tensor:
    """What a model gave. TypeError or ValueError if these are no log-probabilities of that shape."""
    array = out if isinstance(out, Tensor) else np.asarray(out)
    check_floats("the model's array", array)
    check_shape("the model's array", array.shape, wanted)
    return array if isinstance(array, Tensor) else torch.from_numpy(np.array(array))


def check_floats(whose: str, array: Tensor | np.ndarray) -> None:
    floats = array.is_floating_point() if isinstance(array, Tensor) else array.dtype.kind == "f"
    if not floats:
        raise TypeError(f"{whose} is of {array.dtype}: give log-probabilities, floating-point numbers")


def check_shape(whose: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    if tuple(shape) != wanted:
        remedy = "give log-probabilities of the token after each, or in a file of each token itself"
        if shape[-1:] != wanted[-1:]:
            remedy = f"a model of this language has {wanted[-1]} words (vocab_size), in the order of its ids"
        raise ValueError(f"{whose} has the shape {tuple(shape)}, not {wanted}: {remedy}")


def checked(log_p: Tensor, at: np.ndarray) -> Tensor:
    """log p (n, V), its probabilities divided by their sum. ValueError if that is off from 1 by more than
    rounding."""
    total = log_p.exp().sum(1, dtype=torch.float64)
    wrong = ~((total - 1).abs() <= OFF)  # written so that NaN is wrong
    if wrong.any():
        remedy = "give torch.log_softmax(logits.float(), -1), not logits or probabilities"
        if total[wrong][0].isnan():
            remedy = "the training has diverged, or the model needs float32"
        where = f"the model's probabilities of the token at {at[wrong.numpy()][0]}"
        raise ValueError(f"{where} sum to {total[wrong][0]:.6g}, not to 1: {remedy}")
    return log_p - total.log()[:, None].to(log_p.dtype)  # else a constant beside each log p lowers the KL


def transformers_model(folder: Path, V: int, context: int, trust_remote_code: bool) -> Model:
    """The model in a folder, as a function. ValueError if it cannot be loaded, or reads fewer tokens or
    another vocabulary."""
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"{folder} is no folder with a transformers model (config.json), nor a .npy or .safetensors "
            "file: give one of these, or a function"
        )
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise ValueError(f"{folder} needs transformers: pip install transformers") from None
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, trust_remote_code=trust_remote_code, output_loading_info=True
        )
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"transformers cannot load {folder}: {' '.join(str(error).split())}") from None
    model, wrong = loaded[0], sorted({*loaded[1]["missing_keys"], *loaded[1]["unexpected_keys"]})
    if wrong:  # transformers has filled them with random numbers, or left them out
        raise ValueError(
            f"the weights in {folder} do not fit its config.json: {wrong[0]} is missing or extra"
        )
    reads = getattr(model.config, "max_position_embeddings", context)
    if reads < context:
        raise ValueError(f"context = {context}: {folder} reads {reads} tokens, so use context = {reads}")
    check_shape(f"the logits of a token in {folder}", (model.config.vocab_size,), (V,))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = model.float().eval().to(device)
    return lambda tokens: model(tokens.to(device)).logits.log_softmax(-1)


def file_blocks(path: Path, positions: np.ndarray, shape: tuple[int, int]) -> Iterator[Block]:
    """The rows of a file's array of that shape at `positions` (N,). ValueError if it holds none."""
    try:
        if path.suffix == ".npy":
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            has, some, read = array.shape, array[:1], lambda rows: torch.from_numpy(np.array(array[rows]))
        else:
            file = safe_open(path, framework="pt")
            (name,) = file.keys()
            part = file.get_slice(name)
            has, some, read = tuple(part.get_shape()), part[:1], lambda rows: part[rows]
    except FileNotFoundError:
        raise ValueError(f"{path} is not there: write log-probabilities {shape} to it") from None
    except Exception as error:  # each format has its own for a damaged file
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} does not hold one array ({why}): write one {shape} to it") from None
    check_floats(str(path), some)
    check_shape(str(path), has, shape)
    for at in np.split(positions, range(ROWS, len(positions), ROWS)):
        rows = read(slice(int(at[0]), int(at[-1]) + 1))
        yield at, rows[torch.from_numpy(at - at[0])]
