"""The comparison table: what is scored, what stands in it, what may stand side by side, and what is kept."""

import csv
import io
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from data.prepared import load_tokenizer
from data.tokens import open_tokens
from eval_diversity import main, program
from evaluation import diversity, texts
from evaluation.calibration import Calibrated, fitted_temperature
from evaluation.scoring import score
from evaluation.settings import of_run
from evaluation.texts import held_out_prompts, reference_texts, sample_texts, text_metrics
from measures import text as measure
from measures import text_numbers
from measures.columns import ALL, HONEST, PAPER, shown
from measures.measure import open_runs
from measures.store import Store
from measures.text import TextMeasure, TextSession
from measures.text_numbers import model_numbers
from measures.views import cells, read_texts, samples_file
from runtime.checkpoint import Degenerate, load_model
from runtime.errors import UserError
from runtime.names import REFERENCES
from tests.fixtures import TINY, train_in_process
from train import TrainConfig

SMALL = ["--texts=8", "--prompt_tokens=4", "--new_tokens=12", "--device=cpu", "--halves=2"]
SHOWN = [c for c in HONEST if c.shown]  # in Markdown
PAPER_SMALL = ["--protocol=paper", "--texts=20", "--new_tokens=20", "--texts_kept=0", "--device=cpu"]


@pytest.fixture(scope="module")
def sig(token_folder, tmp_path_factory) -> Path:
    """A second run, Bayesian, on the same tokens."""
    out = tmp_path_factory.mktemp("trained") / "bayes_sig_gpt-tiny"
    changes = dict(head="sigmoid", bayesian=True, max_steps=20, learning_rate=1e-2)
    config = TrainConfig(**TINY | changes | dict(name=out.name, out_dir=str(out)))
    assert train_in_process(config, token_folder) == 0
    return out


@pytest.fixture
def variant(trained, tmp_path):
    """variant(folder, **changes) -> a copy of the trained checkpoint with another config.json."""

    def make(folder: str, **changes) -> Path:
        path = Path(shutil.copytree(trained / "best", tmp_path / folder))
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changes))
        return path

    return make


@pytest.fixture
def no_work(monkeypatch):
    """From here on neither a reference nor a model may be sampled or scored."""

    def fail(*args, **kwargs):
        raise AssertionError("work was done")

    monkeypatch.setattr(texts, "generate", fail)
    monkeypatch.setattr(text_numbers, "score", fail)
    monkeypatch.setattr(measure, "reference_row", fail)


@pytest.fixture(scope="module")
def honest(trained, sig, tmp_path_factory) -> Path:
    """The files of an honest table of two rows. Read only."""
    out = tmp_path_factory.mktemp("tables") / "table"
    assert main([str(trained), str(sig), *SMALL, f"--out={out}"]) == 0
    return out


def rows(out: Path) -> dict[str, dict]:
    return {r["name"]: r for r in Store(out.with_name(out.name + ".jsonl")).rows("text")}


def samples(out: Path, name: str) -> list[str]:
    return read_texts(samples_file(out, name))


def settings(*argv: str):
    """(Settings, Data, device) that the command would work with."""
    session = TextMeasure().open(program.read(list(argv)))
    return session.s, session.data, session.device


def read_config(path: Path) -> dict:
    """Of a run."""
    return json.loads((path / "best/config.json").read_text())


def same(a: dict, b: dict) -> bool:
    """Equal rows, nan being equal to itself."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


# ---- texts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "length, n, prompt, new",
    [(1000, 7, 10, 20), (100, 10, 4, 6), (101, 10, 4, 6), (9999, 123, 50, 31), (50, 1, 20, 30)],
)
def test_held_out_prompts(length, n, prompt, new):
    ids = np.arange(length, dtype=np.uint16)
    p = held_out_prompts(ids, n, prompt, new)
    assert p.prompt.shape == (n, prompt) and p.human.shape == (n, new) and p.prompt.dtype == np.int64
    starts = p.prompt[:, 0]
    spans = np.concatenate((p.prompt, p.human), 1)
    assert (spans == starts[:, None] + np.arange(prompt + new)).all()  # each a piece of the text
    if n > 1:
        gaps = np.diff(starts)
        assert gaps.min() >= prompt + new and gaps.max() - gaps.min() <= 1
        assert starts[-1] + prompt + new == length
    with pytest.raises(ValueError, match=f"the split has {length}"):
        held_out_prompts(ids, length // (prompt + new) + 1, prompt, new)


def test_prompts_at_random_places():
    ids = np.arange(500)
    a, b, c = (held_out_prompts(ids, 10, 5, 5, seed) for seed in (1, 1, 2))
    assert (a.prompt == b.prompt).all() and (a.prompt != c.prompt).any() and len(set(a.prompt[:, 0])) == 10
    # a split that just fits
    assert held_out_prompts(np.arange(50), 1, 20, 30, seed=1).prompt[0, 0] == 0


def test_reference_texts(trained):
    s, data, _ = settings(str(trained), *SMALL)
    human, noise, loop = (reference_texts(name, data.prompts, data.train.ids, s) for name in REFERENCES)
    split = open_tokens(data.train.path.with_name("test.bin")).ids
    assert human[0].tolist() == split[4:16].tolist() and human[-1].tolist() == split[-12:].tolist()
    assert loop.shape == noise.shape == human.shape == (8, 12)
    assert (loop[:, :10] == human[:, :10]).all() and (loop[:, 10:] == human[:, :2]).all()
    assert set(noise.ravel()) <= set(data.train.ids.tolist())
    large, top = data.prompts._replace(human=np.zeros((400, 50))), np.bincount(data.train.ids).argmax()
    many = reference_texts("unigram noise", large, data.train.ids, s)  # by frequency, not uniform
    assert (many == top).mean() == pytest.approx((data.train.ids == top).mean(), rel=0.1)
    assert (reference_texts("unigram noise", data.prompts, data.train.ids, s) == noise).all()


TEXTS = [
    "the cat sat on the mat today",
    "the cat sat on a red mat and slept",
    "a dog ran home on the mat today",
    "it is it is it is it is",
    "no two of these are so",
    "the red dog sat on it",
]


def test_text_metrics_are_those_of_diversity():
    words = [t.split() for t in TEXTS]
    got = text_metrics(TEXTS, 1)
    assert "self_bleu_sd" not in got
    assert got == {
        "self_bleu": diversity.self_bleu_sacre(TEXTS),
        "distinct_4": diversity.distinct_n(words, 4),
        "seq_rep_4": diversity.seq_rep_n(words, 4),
        "zipf": diversity.zipf_coefficient(words),
    }
    assert got["self_bleu"] > 1 and 0 < got["seq_rep_4"] < 1


def test_text_metrics_are_means_over_loops():
    got, groups = text_metrics(TEXTS, 2), (TEXTS[::2], TEXTS[1::2])
    bleu = [diversity.self_bleu_sacre(g) for g in groups]
    assert got["self_bleu"] == pytest.approx(np.mean(bleu))
    assert got["self_bleu_sd"] == pytest.approx(abs(bleu[0] - bleu[1]) / math.sqrt(2))
    distinct = [diversity.distinct_n([t.split() for t in g]) for g in groups]
    assert got["distinct_4"] == pytest.approx(np.mean(distinct))


# ---- cells -------------------------------------------------------------------------------------------------


def test_cells():
    text = dict(distinct_4=0.5, seq_rep_4=0.1, zipf=1.0)
    plain = [c for c in HONEST if "fitted" not in c.key]
    keys = ("name", *(c.key for c in plain[:8]))
    table = [
        dict(zip(keys, ("low", 1000, 20.0, math.inf, 1.0, math.nan, 20.0, 0.4, 10.0))) | text,
        dict(zip(keys, ("near", 900, 30.0, 50.0, 1.5, math.nan, 19.0, 0.3, 28.0))) | text,
        dict(name="human", reference=True, self_bleu=25.0, **text),
        dict(name="loop", reference=True, self_bleu=25.5, **text),
    ]
    low, near, human, loop = cells(table, plain)
    # single runs have no star: one run does not tell rows apart
    assert low[:9] == ["low", "1000", "20.00", "inf", "1.000", "-", "20.00", "0.4000", "10.00 (-15.00)"]
    assert near[:9] == ["near", "900", "30.00", "50.00", "1.500", "-", "19.00", "0.3000", "28.00 (+3.00)"]
    assert human[:9] == ["human", *"-------", "25.00"]
    assert loop[8] == "25.50 (+0.50)"
    assert low[9] == near[9] == "0.5000 (+0.0000)"
    assert all(len(line) == 1 + len(plain) for line in (low, near, human, loop))


def test_a_terminal_shows_no_column_that_no_row_has():
    titles = {c.title for c in ALL}
    assert not any(f"{title}s" in titles for title in titles)  # nobody tells `step` from `steps`
    there = [{"self_bleu": 1.0, "unigram_entropy": 2.0}, {"step": 1}]  # the entropy: in the CSV and the rows
    assert [c.key for c in shown(HONEST, there)] == ["step", "self_bleu"]


def test_cells_of_the_paper():
    numbers = (6.0, 27.0, 1.0, 0.97, 6.1855, 27.166, 0.9709)
    row = dict(zip((c.key for c in PAPER), numbers)) | {"name": "baseline"}
    human = dict(name="human", reference=True, self_bleu=25.0, self_bleu_sd=2.0, distinct_4=0.97)
    assert cells([row, human], PAPER) == [
        ["baseline", "6.00", "27.00 (+2.00)", "1.00", "0.9700 (+0.0000)", "6.19", "27.17", "0.9709"],
        ["human", "-", "25.00", "2.00", "0.9700", "-", "-", "-"],
    ]


# ---- the honest protocol -----------------------------------------------------------------------------------


def test_perplexity_columns(honest, trained, sig, token_folder):
    info, ids = open_tokens(token_folder / "test.bin").info, open_tokens(token_folder / "test.bin").ids
    text_bytes = info["bytes"]
    for path in (trained, sig):
        r = rows(honest)[path.name]
        model, _ = load_model(path)
        own = of_run(settings(str(path), *SMALL)[0], read_config(path))
        draws, validation = model.head.draws(8, own.seed), open_tokens(token_folder / "validation.bin").ids
        calibrated = Calibrated(fitted_temperature(model, validation, draws))
        again = score(model, ids, 0, draws, each=calibrated)
        assert r["nll"] == again.nll and r["zero_probability_tokens"] == 0
        assert r == r | calibrated.numbers()
        assert r["ppl_eps"] == pytest.approx(math.exp(again.eps_nll / again.tokens))
        assert r["tokens"] == len(ids) - 1 == info["tokens"] - 1
        assert r["ppl_tok"] == pytest.approx(math.exp(r["nll"] / r["tokens"]))
        assert r["ppl_word"] == pytest.approx(math.exp(r["nll"] / (info["words"] + info["lines"])))
        assert r["bits_per_byte"] == pytest.approx(r["nll"] / math.log(2) / text_bytes)
    assert rows(honest)["baseline"]["ppl_tok"] < 50  # of 300: it has learned something
    assert not any(c in rows(honest)["human"] for c in ("ppl_tok", "nll", "ece"))


def capture(monkeypatch) -> list[np.ndarray]:
    """Everything that is sampled from here on, (prompt, new ids) of each text."""
    seen, real = [], texts.generate

    def generate(model, prompt, *args, **kwargs):
        new = []
        for token, hidden in real(model, prompt, *args, **kwargs):
            new.append(token)
            yield token, hidden
        seen.extend(zip(prompt.tolist(), torch.stack(new, 1).tolist()))

    monkeypatch.setattr(texts, "generate", generate)
    return seen


def test_continuations_alone_are_scored(trained, token_folder, tmp_path, monkeypatch):
    seen, tokenizer = capture(monkeypatch), load_tokenizer(token_folder)
    assert main([str(trained), *SMALL, f"--out={tmp_path / 't'}"]) == 0
    prompts = held_out_prompts(open_tokens(token_folder / "test.bin").ids, 8, 4, 12)
    assert [p for p, _ in seen] == prompts.prompt.tolist() and len(seen) == 8
    want = [tokenizer.decode(new) for _, new in seen]
    assert samples(tmp_path / "t", "baseline") == want
    assert samples(tmp_path / "t", "human") == [tokenizer.decode(h) for h in prompts.human.tolist()]
    r = rows(tmp_path / "t")["baseline"]
    assert r["settings"]["words"] == 4 and r["settings"]["tokenize"] == "13a"
    assert same({k: r[k] for k in text_metrics(want, 1, 4)}, text_metrics(want, 1, 4))


def test_the_validation_split(trained, tmp_path, token_folder):
    assert main([str(trained), *SMALL, "--split=validation", f"--out={tmp_path / 't'}"]) == 0
    tokens = rows(tmp_path / "t")["baseline"]["tokens"]
    assert tokens == len(open_tokens(token_folder / "validation.bin").ids) - 1


def test_the_seed_is_the_table(honest, trained, sig, tmp_path, capsys):
    for name, seed in (("again", 1337), ("other", 7)):
        assert main([str(trained), str(sig), *SMALL, f"--seed={seed}", f"--out={tmp_path / name}"]) == 0
    for kind in ("md", "csv"):
        text = lambda out: out.with_name(f"{out.name}.{kind}").read_text()
        assert text(honest) == text(tmp_path / "again") != text(tmp_path / "other")
    for name in ("baseline", sig.name, "unigram_noise"):
        assert samples(honest, name) == samples(tmp_path / "again", name) != samples(tmp_path / "other", name)
    # nothing is random where weights are points
    assert rows(honest)["baseline"]["nll"] == rows(tmp_path / "other")["baseline"]["nll"]


def test_batches_of_texts_change_nothing(trained):
    s, data, _ = settings(str(trained), *SMALL, "--temperature=0.0")
    model, _ = load_model(trained)
    whole, parts = (sample_texts(model, data.prompts.prompt, s, "cpu", "", batch) for batch in (50, 3))
    assert whole.shape == (8, 12) and (whole == parts).all()


# ---- files -------------------------------------------------------------------------------------------------


def test_files(honest, trained, sig):
    files = sorted(p.name for p in honest.parent.iterdir())
    assert files == ["table.csv", "table.ece.png", "table.jsonl", "table.md", "table.samples"]
    table = rows(honest)
    for row in table.values():
        s = row["settings"]
        assert (s["protocol"], s["texts"], s["seed"], s["new_tokens"]) == ("honest", 8, 1337, 12)
        assert row.get("reference") or (row["versions"]["torch"] == torch.__version__ and row["command"])
    names = ["baseline", sig.name, *REFERENCES]
    assert list(table) == names
    header, *lines = list(csv.reader(io.StringIO(honest.with_name("table.csv").read_text())))
    gone = ("compression", "self_repetition", "unigram_entropy")  # of rows that were made before
    assert (
        header == ["name", *(c.key for c in HONEST if c.key not in gone)]
        and [line[0] for line in lines] == names
    )
    for line in lines:
        for key, cell in zip(header[1:], line[1:]):
            assert cell == str(rows(honest)[line[0]].get(key, ""))
    md = honest.with_name("table.md").read_text()
    bars = [line for line in md.splitlines() if line.startswith("|")]
    assert len(bars) == 2 + 5 and len({len(line) for line in bars}) == 1
    assert all(line.count("|") == len(SHOWN) + 1 for line in bars)  # none has gzip
    assert "8 texts, 4 prompt + 12 new tokens" in md and "test split" in md and "seed 1337" in md
    assert sorted(p.name for p in honest.with_name("table.samples").iterdir()) == sorted(
        f"{n.replace(' ', '_')}.jsonl" for n in names
    )
    assert all(len(samples(honest, n.replace(" ", "_"))) == 8 for n in names)


def test_a_dozen_texts_a_row_are_kept_unless_all_are_asked_for(trained, tmp_path):
    argv = [str(trained), *SMALL, "--texts=14", f"--out={tmp_path / 't'}"]
    for flags, kept in (([], 12), (["--texts_kept=3"], 12), (["--texts_kept=0"], 14)):
        assert main([*argv, *flags]) == 0
        assert {len(samples(tmp_path / "t", name)) for name in ("baseline", *REFERENCES)} == {kept}


def test_the_table_is_printed_and_nothing_written_without_out(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main([str(trained), *SMALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:6]] == ["baseline", *REFERENCES]
    assert all(c.title in lines[0] for c in SHOWN if c.title != "gzip")
    assert not list(tmp_path.iterdir())


# ---- a second run ------------------------------------------------------------------------------------------


@pytest.fixture
def table(honest, tmp_path) -> Path:
    """A copy of the table, to add to."""
    shutil.copytree(honest.parent, tmp_path / "copy")
    return tmp_path / "copy" / honest.name


def test_unchanged_rows_are_kept(table, trained, sig, no_work, capsys):
    files = lambda: {p.name: p.read_bytes() for p in table.parent.rglob("*") if p.is_file()}
    there, before = rows(table), files()
    assert main([str(trained), str(sig), *SMALL, f"--out={table}"]) == 0
    assert files() == before
    assert capsys.readouterr().err.count("kept from") == 2
    assert main([str(sig), *SMALL, f"--out={table}"]) == 0  # one of them alone: the other row stays
    assert same(rows(table), there)


def test_intervals_of_references_are_over_as_many_halves_as_are_asked_for(table, trained, capsys):
    before = rows(table)["human"]
    assert main([str(trained), *SMALL, "--halves=9", f"--out={table}"]) == 0
    assert capsys.readouterr().err.count("kept from") == 1
    human = rows(table)["human"]
    assert human["zipf_ci"] != before["zipf_ci"] and human["zipf"] == before["zipf"]


def test_only_what_is_new_or_changed_is_done(table, trained, variant, monkeypatch):
    seen = capture(monkeypatch)
    assert main([str(trained), str(variant("third", name="third")), *SMALL, f"--out={table}"]) == 0
    assert len(seen) == 8
    assert list(rows(table)) == ["baseline", "third", *REFERENCES, "bayes_sig_gpt-tiny"]
    lines = table.with_name("table.md").read_text().splitlines()[2:8]
    shown = [line.split("|")[1].strip() for line in lines]
    assert shown == ["baseline", "third", "bayes_sig_gpt-tiny", *REFERENCES]
    old = rows(table)["baseline"]
    retrained = variant("retrained")  # the same name, other weights
    from safetensors.torch import load_file, save_file

    save_file(
        {k: v * 1.1 for k, v in load_file(retrained / "model.safetensors").items()},
        retrained / "model.safetensors",
    )
    assert main([str(retrained), *SMALL, f"--out={table}"]) == 0
    assert len(seen) == 16 and rows(table)["baseline"]["nll"] != old["nll"] and len(rows(table)) == 6


def test_a_run_that_is_stopped_goes_on(trained, sig, tmp_path, monkeypatch, honest):
    """Another process writes to the same table before that: both rows stay."""
    real, out = TextSession.numbers, tmp_path / "t"

    def stop(self, subject):
        if subject.path != trained:
            raise KeyboardInterrupt
        monkeypatch.undo()
        with pytest.raises(ValueError, match="rows of other settings"):  # the references' rows have some
            main([str(sig), *SMALL, "--seed=7", f"--out={out}"])
        assert main([f"third={trained}", *SMALL, f"--out={out}"]) == 0
        monkeypatch.setattr(TextSession, "numbers", stop)
        return real(self, subject)

    monkeypatch.setattr(TextSession, "numbers", stop)
    argv = [str(trained), str(sig), *SMALL, f"--out={out}"]
    with pytest.raises(KeyboardInterrupt):
        main(argv)
    assert rows(out).keys() == {"baseline", "third", *REFERENCES}
    monkeypatch.undo()
    seen = capture(monkeypatch)
    assert main(argv) == 0 and len(seen) == 8 and not list(tmp_path.glob(".*"))
    assert {k: r["nll"] for k, r in rows(out).items() if k in rows(honest) and "nll" in r} == {
        k: r["nll"] for k, r in rows(honest).items() if "nll" in r
    }


def test_a_reference_row_that_is_deleted_comes_back(table, trained):
    file, before = Path(f"{table}.jsonl"), rows(table)
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if json.loads(line).get("name") != "unigram noise"))
    assert "unigram noise" not in rows(table)
    assert main([str(trained), *SMALL, f"--out={table}"]) == 0
    assert rows(table)["unigram noise"] == before["unigram noise"] and rows(table).keys() == before.keys()


def test_a_changed_configuration_is_another_row(table, variant, monkeypatch):
    """With the same weights."""
    seen = capture(monkeypatch)
    assert main([str(variant("other", head="sigsoftmax")), *SMALL, f"--out={table}"]) == 0
    assert len(seen) == 8 and rows(table)["baseline"]["training"]["head"] == "sigsoftmax"


# ---- names -------------------------------------------------------------------------------------------------


def test_a_row_gets_the_name_it_is_given(trained, variant, tmp_path):
    other = variant("a=b", name="other")
    runs = open_runs([f"x={trained}", str(trained), str(other), f"y={other}"])
    names = [("x", trained), ("baseline", trained), ("other", other), ("y", other)]
    assert [(run.name, run.path) for run in runs] == names
    named = [str(trained), f"end={trained}/last", f"again={variant('copy')}"]
    assert main([*named, *SMALL, f"--out={tmp_path / 't'}"]) == 0
    table = rows(tmp_path / "t")
    assert list(table) == ["baseline", "end", "again", *REFERENCES]
    assert table["again"]["nll"] == table["baseline"]["nll"]
    assert [table[name]["row"] for name in ("baseline", "end", "again")] == ["baseline", "end", "again"]
    assert table["end"]["training"]["name"] == "baseline" and table["end"]["checkpoint"] == f"{trained}/last"
    assert len(samples(tmp_path / "t", "end")) == 8


# ---- degenerate models -------------------------------------------------------------------------------------


def with_nan(path: Path) -> Path:
    from safetensors.torch import load_file, save_file

    weights = path / "model.safetensors"
    save_file({k: v * math.nan for k, v in load_file(weights).items()}, weights)
    return path


def test_a_model_of_no_numbers_is_a_row_that_says_so(trained, variant, tmp_path, capsys):
    out, bad = tmp_path / "t", with_nan(variant("bad", name="bad"))
    argv = [str(bad), str(trained), *SMALL, f"--out={out}"]
    for _ in range(2):  # and again, from the kept row
        assert main(argv) == 1
        error = capsys.readouterr().err.splitlines()[-1]
        assert "1 of 2 models could not be evaluated: bad (its weights hold nan or inf" in error
        assert "its weights hold nan or inf" in rows(out)["bad"]["problem"]
        assert rows(out)["baseline"]["ppl_tok"] > 1
        lines = out.with_name("t.md").read_text().splitlines()
        line = next(line for line in lines if line.startswith("| bad (its weights hold nan"))
        empty = [c.title for c, cell in zip(SHOWN, line.split("|")[2:]) if cell.strip() == "-"]
        known = ("checkpoint", "steps", "train tokens", "teacher tokens", "short")
        assert empty == [c.title for c in SHOWN if c.title not in known]
    assert main([str(trained), *SMALL, f"--out={out}"]) == 0 and "bad" in rows(out)  # it stays beside others


def test_a_model_that_samples_white_space(trained, variant, tmp_path, monkeypatch, token_folder):
    """Its perplexity stands; its texts have none of their numbers."""
    blank = load_tokenizer(token_folder).encode("\n")[0]
    real = text_numbers.sample_texts

    def sampled(model, prompts, s, device, title):
        new = real(model, prompts, s, device, title)
        return np.full_like(new, blank) if title == "bad" else new

    monkeypatch.setattr(text_numbers, "sample_texts", sampled)
    out = tmp_path / "t"
    assert main([f"bad={trained}", str(trained), *SMALL, f"--out={out}"]) == 1
    bad, good = rows(out)["bad"], rows(out)["baseline"]
    assert bad["problem"].startswith("its texts") and bad["ppl_tok"] == good["ppl_tok"]
    assert "self_bleu" not in bad and good["self_bleu"] > 0
    assert set("".join(samples(out, "bad"))) == {"\n"}


def test_probabilities_that_are_not_numbers(trained, monkeypatch, tmp_path):
    from evaluation.scoring import Score

    monkeypatch.setattr(text_numbers, "score", lambda *a, **k: Score(math.nan, 1, 0, math.nan))
    assert main([str(trained), *PAPER_SMALL, f"--out={tmp_path / 't'}"]) == 1
    assert rows(tmp_path / "t")["baseline"]["problem"] == "its log-probabilities are not numbers"


def test_score_names_nan(trained, token_folder):
    model, _ = load_model(trained)
    model.trunk.ln_f.weight.fill_(math.nan)
    with pytest.raises(Degenerate, match="log-probabilities are not numbers"):
        score(model, open_tokens(token_folder / "test.bin").ids[:100], each=Calibrated())


# ---- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flag, key",
    [
        ("--seed=7", "seed"),
        ("--texts=9", "texts"),
        ("--split=validation", "split"),
        ("--dtype=bfloat16", "dtype"),
    ],
)
def test_rows_of_other_settings_are_refused(table, trained, no_work, flag, key):
    before = {p: p.read_bytes() for p in table.parent.glob("table.*") if p.is_file()}
    with pytest.raises(ValueError, match=f"rows of other settings .*{key} "):
        main([str(trained), *SMALL, flag, f"--out={table}"])
    assert {p: p.read_bytes() for p in table.parent.glob("table.*") if p.is_file()} == before


def test_other_tokens_are_refused(trained, variant, no_work):
    for folder, change in (("a", dict(tokenizer_fingerprint="other")), ("b", dict(data_sha256="other"))):
        with pytest.raises(ValueError, match="other token files"):
            main([str(trained), str(variant(folder, name=folder, **change)), *SMALL])


def test_names_of_rows_are_checked(trained, variant, no_work):
    for name in ("human", "LOOP", "a|b", "@x"):
        with pytest.raises(ValueError, match="name"):
            main([f"{name}={trained}", *SMALL])
    with pytest.raises(ValueError, match="'A' and 'a' would share a file: give one another, as in other="):
        main([f"A={trained}", f"a={trained}", *SMALL])
    with pytest.raises(ValueError, match="two rows have the name 'baseline'"):
        main([str(trained), str(variant("copy")), *SMALL])
    with pytest.raises(ValueError, match="human"):
        main([str(variant("h", name="human")), *SMALL])


def test_a_new_row_shares_no_file_with_a_kept_one(trained, tmp_path, honest):
    table = tmp_path / "t"
    shutil.copytree(honest.with_name(honest.name + ".samples"), tmp_path / "t.samples")
    shutil.copy(honest.with_name(honest.name + ".jsonl"), tmp_path / "t.jsonl")
    with pytest.raises(ValueError, match="'baseline' and 'BASELINE' would share a file: .* other="):
        main([f"BASELINE={trained}", *SMALL, f"--out={table}"])


def test_home_is_found_behind_a_name(trained, monkeypatch):
    monkeypatch.setenv("HOME", str(trained.parent))
    for argument, name in ((f"~/{trained.name}", "baseline"), (f"x=~/{trained.name}", "x")):
        (entry,) = open_runs([argument])
        assert (entry.name, entry.path) == (name, trained)


@pytest.mark.parametrize(
    "flags, match",
    [
        (["--new_tokens=13"], "do not fit block_size = 16"),
        (["--texts=1000"], "the split has"),
        (["--texts=1"], "at least 2 texts"),
        (["--temperature=-1"], "temperature"),
        (["--top_p=0"], "top_p"),
        (["--new_tokens=0"], "new_tokens"),
        (["--dtype=half"], "dtype"),
        (["--samples=0"], "samples"),
        (["--data=/nowhere"], "/nowhere"),
        (["--protocol=paper", "--texts=15"], "at least 2 texts a loop"),
        (["--stride=17"], "stride"),
        (["--halves=1"], "halves = 1"),
        (["--texts_kept=-1"], "texts_kept = -1"),
        (["--protocol=paper", "--texts=20", "--prompt_tokens=17"], "block_size"),
        pytest.param(
            ["--device=cuda"],
            "cuda",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(trained, no_work, flags, match):
    with pytest.raises((ValueError, FileNotFoundError), match=match):
        main([str(trained), *SMALL, *flags])


def test_a_place_that_cannot_be_written_is_found_before_any_work(trained, no_work, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "t.jsonl").mkdir()
    (tmp_path / "s.samples").touch()
    for out in ("file/t", "t", "s"):
        with pytest.raises(OSError):
            main([str(trained), *SMALL, f"--out={tmp_path / out}"])


@pytest.mark.parametrize("there", [True, False])
def test_a_linked_folder_of_samples_is_not_written_through(trained, no_work, tmp_path, there):
    target, out = tmp_path / "target", tmp_path / "t"
    if there:
        target.mkdir()
    (tmp_path / "t.samples").symlink_to(target)
    with pytest.raises(UserError, match="t.samples is a link.*give another --out"):
        main([str(trained), *SMALL, f"--out={out}"])
    with pytest.raises(UserError, match="is a link"):  # one that came during the work
        samples_file(out, "human")
    assert not there or not any(target.iterdir())


def test_a_missing_checkpoint(trained, no_work, tmp_path):
    with pytest.raises(FileNotFoundError, match="no checkpoint in"):
        main([str(trained), str(tmp_path / "none"), *SMALL])


# ---- the paper's protocol ----------------------------------------------------------------------------------


def test_the_papers_protocol(trained, sig, token_folder, tmp_path, monkeypatch):
    seen, tokenizer = capture(monkeypatch), load_tokenizer(token_folder)
    out = tmp_path / "paper"
    assert main([str(trained), str(sig), *PAPER_SMALL, f"--out={out}"]) == 0
    r = rows(out)["baseline"]
    s = r["settings"]
    keys = ("loops", "prompt_tokens", "temperature", "top_k", "split")
    assert [s[key] for key in keys] == [10, 16, 0.8, 200, "train"]
    want = [tokenizer.decode(p + new) for p, new in seen[:20]]  # the prompt is scored along
    assert samples(out, "baseline") == want
    train = open_tokens(token_folder / "train.bin").ids.astype(np.int64)
    places = held_out_prompts(train, 20, 16, 20, seed=1337)
    assert [p for p, _ in seen] == places.prompt.tolist() * 2  # training text, the same for each row
    human = np.concatenate((places.prompt, places.human), 1).tolist()
    assert samples(out, "human") == [tokenizer.decode(row) for row in human]
    assert {k: r[k] for k in text_metrics(want, 10)} == text_metrics(want, 10) and r["self_bleu_sd"] > 0
    assert [r[f"published_{key}"] for key in ("ppl", "self_bleu", "distinct_4")] == [6.1855, 27.1660, 0.9709]
    assert rows(out)[sig.name]["published_ppl"] == 2257.3240  # by the name's first part
    assert 1 < r["ppl_train"] < 50 and "ppl_tok" not in r and "published_ppl" not in rows(out)["human"]
    assert "publ. Self-BLEU" in out.with_name("paper.md").read_text()


def test_the_defaults(trained):
    s, data, _ = settings(str(trained), "--protocol=paper", "--new_tokens=10")
    assert (s.texts, s.loops, s.prompt_tokens, s.temperature, s.top_k, s.top_p) == (100, 10, 16, 0.8, 200, 1)
    assert data.prompts.prompt.shape == (100, 16)
    s, *_ = settings(str(trained), "--new_tokens=12", "--prompt_tokens=2")
    assert (s.protocol, s.texts, s.loops, s.temperature, s.top_k, s.split) == ("honest", 100, 1, 1, 0, "test")


def test_the_papers_protocol_on_little_text(trained):
    s, data, _ = settings(str(trained), *PAPER_SMALL)
    short = data._replace(train=data.train._replace(ids=data.train.ids[:1000]))
    row, _ = model_numbers(trained, "", short, s, "cpu")
    assert row["ppl_train"] > 1
