"""The comparison table: what is scored, what stands in it, what may stand side by side, and what is kept."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import table as tables_program
from common.config import read
from data.open import load_tokenizer
from data.tokens import open_tokens
from eval_diversity import main
from evaluate import sampling, text_numbers
from evaluate.diversity import text_metrics
from evaluate.sampling import held_out_prompts
from evaluate.scoring import TemperedCalibration, fit_temperature, score
from evaluate.settings import TextConfig, run_seed
from evaluate.text_numbers import reference_texts
from tables import text as measure
from tables.columns import HONEST, Column
from tables.names import REFERENCES
from tables.store import Store
from tables.text import TextSession
from tests.fixtures import rows, samples, scale, seal, train_on
from training.run import load_model

SMALL = ["--texts=8", "--prompt_tokens=4", "--new_tokens=12", "--device=cpu", "--halves=2"]
PAPER_SMALL = ["--measure=paper", "--texts=20", "--new_tokens=20", "--texts_kept=0", "--device=cpu"]


@pytest.fixture(scope="module")
def sig(token_folder, tmp_path_factory) -> Path:
    """A second run, Bayesian, on the same tokens."""
    out = tmp_path_factory.mktemp("trained") / "bayes_sig_gpt-tiny"
    return train_on(token_folder, out, head="sigmoid", bayesian=True, max_steps=20, learning_rate=1e-2)


@pytest.fixture
def variant(trained, tmp_path):
    """variant(folder, **changes) -> a copy of the trained checkpoint with another config.json."""

    def make(folder: str, **changes) -> Path:
        path = Path(shutil.copytree(trained / "best", tmp_path / folder))
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | changes))
        seal(path)
        return path

    return make


@pytest.fixture
def no_work(monkeypatch):
    """From here on neither a reference nor a model may be sampled or scored."""

    def fail(*args, **kwargs):
        raise AssertionError("work was done")

    monkeypatch.setattr(sampling, "generate", fail)
    monkeypatch.setattr(text_numbers, "score", fail)
    monkeypatch.setattr(measure, "reference_texts", fail)


@pytest.fixture(scope="module")
def honest(trained, sig, tmp_path_factory) -> Path:
    """The files of an honest table of two rows. Read only."""
    out = tmp_path_factory.mktemp("tables") / "table"
    assert main([str(trained), str(sig), *SMALL, f"--out={out}"]) == 0
    return out


def same(a: dict, b: dict) -> bool:
    """Equal rows, nan being equal to itself."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


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
    with pytest.raises(ValueError):
        held_out_prompts(ids, length // (prompt + new) + 1, prompt, new)


def test_reference_texts(trained):
    data = TextSession(read(TextConfig, [str(trained), *SMALL])).data
    human, noise, loop = (reference_texts(name, data.prompts, data.train.ids, 1) for name in REFERENCES)
    split = open_tokens(data.train.path.with_name("test.bin")).ids
    assert human[0].tolist() == split[4:16].tolist() and human[-1].tolist() == split[-12:].tolist()
    assert (loop[:, :10] == human[:, :10]).all() and (loop[:, 10:] == human[:, :2]).all()
    assert set(noise.ravel()) <= set(data.train.ids.tolist())
    large, top = data.prompts._replace(human=np.zeros((400, 50))), np.bincount(data.train.ids).argmax()
    many = reference_texts("unigram noise", large, data.train.ids, 1)  # by frequency, not uniform
    assert (many == top).mean() == pytest.approx((data.train.ids == top).mean(), rel=0.1)


def test_perplexity_columns(honest, trained, sig, token_folder):
    ids, info, *_ = open_tokens(token_folder / "test.bin")
    for path in (trained, sig):
        r = rows(honest)[path.name]
        model, run = load_model(path)
        draws = model.head.draws(8, run_seed(1337, run.record))
        validation = open_tokens(token_folder / "validation.bin").ids
        calibrated = TemperedCalibration(fit_temperature(model, validation, draws))
        again = score(model, ids, 0, draws, each=calibrated)
        assert r["nll"] == again.nll and r["zero_probability_tokens"] == 0
        assert r == r | calibrated.numbers()
        assert r["ppl_eps"] == pytest.approx(math.exp(again.eps_nll / again.tokens))
        assert r["tokens"] == len(ids) - 1 == info["tokens"] - 1
        assert r["ppl_tok"] == pytest.approx(math.exp(r["nll"] / r["tokens"]))
        assert r["ppl_word"] == pytest.approx(math.exp(r["nll"] / (info["words"] + info["lines"])))
        assert r["bits_per_byte"] == pytest.approx(r["nll"] / math.log(2) / info["bytes"])
    assert rows(honest)["baseline"]["ppl_tok"] < 50  # of 300: it has learned something
    assert not any(c in rows(honest)["human"] for c in ("ppl_tok", "nll", "ece"))


def capture(monkeypatch) -> list[np.ndarray]:
    """Everything that is sampled from here on, (prompt, new ids) of each text."""
    seen, real = [], sampling.generate

    def generate(model, prompt, *args, **kwargs):
        new = []
        for token, hidden in real(model, prompt, *args, **kwargs):
            new.append(token)
            yield token, hidden
        seen.extend(zip(prompt.tolist(), torch.stack(new, 1).tolist()))

    monkeypatch.setattr(sampling, "generate", generate)
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
    assert same({k: r[k] for k in text_metrics(want, 4)}, text_metrics(want, 4))


def test_the_seed_is_the_table(honest, trained, sig, variant, tmp_path):
    """And a run that was trained with another seed has other texts."""
    for name, seed in (("again", 1337), ("other", 7)):
        assert main([str(trained), str(sig), *SMALL, f"--seed={seed}", f"--out={tmp_path / name}"]) == 0
    for kind in ("md", "csv"):
        text = lambda out: out.with_name(f"{out.name}.{kind}").read_text()
        assert text(honest) == text(tmp_path / "again") != text(tmp_path / "other")
    for name in ("baseline", sig.name, "unigram_noise"):
        assert samples(honest, name) == samples(tmp_path / "again", name) != samples(tmp_path / "other", name)
    # nothing is random where weights are points
    assert rows(honest)["baseline"]["nll"] == rows(tmp_path / "other")["baseline"]["nll"]
    runs = [f"twin={trained}", f"third={variant('third', seed=7)}"]
    assert main([*runs, *SMALL, f"--out={tmp_path / 'again'}"]) == 0
    texts = [samples(tmp_path / "again", name) for name in ("baseline", "twin", "third")]
    assert texts[0] == texts[1] != texts[2]


@pytest.fixture
def table(honest, tmp_path) -> Path:
    """A copy of the table, to add to."""
    shutil.copytree(honest.parent, tmp_path / "copy")
    return tmp_path / "copy" / honest.name


def test_rows_are_kept_where_nothing_changed_and_columns_may_be_chosen(table, trained, sig, no_work):
    files = lambda: {p.name: p.read_bytes() for p in table.parent.rglob("*") if p.is_file()}
    there, before = rows(table), files()
    assert main([str(trained), str(sig), *SMALL, f"--out={table}"]) == 0
    assert files() == before
    assert main([str(sig), *SMALL, f"--out={table}"]) == 0  # one of them alone: the other row stays
    assert same(rows(table), there)
    whole, argv = table.with_suffix(".csv").read_text(), [str(trained), str(sig), *SMALL, f"--out={table}"]
    assert main([*argv, "--columns=self_bleu,ppl_eps"]) == 0
    head, _, first = table.with_suffix(".md").read_text().splitlines()[:3]
    assert [cell.strip() for cell in head.split("|")[1:-1]] == ["", "Self-BLEU", "PPL_eps"]
    assert f"{rows(table)['baseline']['ppl_eps']:.2f}" in first.split("|")[3]
    assert " & Self-BLEU & PPL\\_eps \\\\" in table.with_suffix(".tex").read_text()
    keys = table.with_suffix(".csv").read_text().splitlines()[0].split(",")
    assert {"self_bleu", "ppl_eps"} < {*keys} < {*whole.splitlines()[0].split(",")} and "zipf" not in keys
    assert "Zipf" not in table.with_suffix(".md").read_text()
    with pytest.raises(ValueError, match="nope"):
        main([*argv, "--columns=nope"])
    # rows without a setting, as of an earlier version, are of another table
    lacking = [*rows(table).values()]
    for row in lacking:
        del row["settings"]["min_p"]
    Store(table.with_suffix(".jsonl")).put(lacking)
    with pytest.raises(ValueError, match="min_p"):
        main(argv)


def test_a_new_column_is_measured_in_kept_rows(table, trained, sig, monkeypatch):
    numbers, before = TemperedCalibration.numbers, rows(table)
    monkeypatch.setattr(TemperedCalibration, "numbers", lambda self: numbers(self) | {"mine": 7.0})
    monkeypatch.setattr(measure, "HONEST", (*HONEST, Column("mine", "mine", ".1f", "low", "a user's own")))
    assert main([str(trained), str(sig), *SMALL, f"--out={table}"]) == 0
    for name in ("baseline", sig.name):
        assert rows(table)[name] == before[name] | {"mine": 7.0, "command": rows(table)[name]["command"]}
    assert all(same(rows(table)[name], before[name]) for name in REFERENCES)


def test_only_what_is_new_or_changed_is_done(table, trained, variant, monkeypatch):
    seen, there = capture(monkeypatch), rows(table)
    assert main([str(trained), f"third={trained}/last", *SMALL, f"--out={table}"]) == 0
    assert len(seen) == 8 and list(rows(table)) == [*there, "third"]
    third = rows(table)["third"]
    assert third["row"] == "third" and third["training"]["name"] == "baseline"
    assert third["checkpoint"] == f"{trained}/last"
    # a changed configuration, of the same weights, is another row
    assert main([str(variant("other", head="sigsoftmax")), *SMALL, f"--out={table}"]) == 0
    assert len(seen) == 16 and rows(table)["baseline"]["training"]["head"] == "sigsoftmax"
    old = rows(table)["baseline"]
    retrained = variant("retrained")  # the same name, other weights
    scale(retrained, 1.1)
    assert main([str(retrained), *SMALL, f"--out={table}"]) == 0
    assert len(seen) == 24 and rows(table)["baseline"]["nll"] != old["nll"] and len(rows(table)) == 6


def test_a_table_that_is_stopped_goes_on(honest, trained, sig, tmp_path, monkeypatch):
    argv, real = [str(trained), str(sig), *SMALL, f"--out={tmp_path / 't'}"], TextSession.numbers

    def stop(self, subject):
        if subject.path != trained:
            raise KeyboardInterrupt
        return real(self, subject)

    with monkeypatch.context() as m, pytest.raises(KeyboardInterrupt):
        m.setattr(TextSession, "numbers", stop)
        main(argv)
    assert rows(tmp_path / "t").keys() == {"baseline", *REFERENCES}
    seen = capture(monkeypatch)
    assert main(argv) == 0 and len(seen) == 8 and not list(tmp_path.glob(".*"))
    for name in ("baseline", sig.name):
        assert rows(tmp_path / "t")[name]["nll"] == rows(honest)[name]["nll"]


def test_two_tables_of_other_settings_that_are_begun_at_once(trained, tmp_path, monkeypatch):
    """The second one to store a row is refused."""
    real, out = TextSession.references, tmp_path / "t"

    def meanwhile(self):
        monkeypatch.undo()
        assert main([f"b={trained}", *SMALL, "--temperature=0.5", f"--out={out}"]) == 0
        return real(self)

    monkeypatch.setattr(TextSession, "references", meanwhile)
    with pytest.raises(ValueError, match="temperature"):
        main([f"a={trained}", *SMALL, f"--out={out}"])
    assert list(rows(out)) == ["b", *REFERENCES]
    assert {r["settings"]["temperature"] for r in rows(out).values()} == {0.5}


def test_a_training_that_was_stopped_is_no_seed(trained, sig, tmp_path):
    """It is a row of its own, until it has gone on to its end."""
    runs = [shutil.copytree(trained, tmp_path / name) for name in ("one", "two", "three")]
    for seed, run in enumerate(runs):
        for config in (run / "best/config.json", run / "last/config.json"):
            changes = {"name": run.name, "row": "baseline", "overlay": "tiny", "seed": seed}
            config.write_text(json.dumps(json.loads(config.read_text()) | changes))
            seal(config.parent)
    progress = runs[2] / "last/progress.json"
    whole = json.loads(progress.read_text())
    shown = []
    for step in (40, whole["step"]):
        progress.write_text(json.dumps(whole | {"step": step}))
        seal(progress.parent)
        assert main([*map(str, runs), *SMALL, f"--out={tmp_path / 't'}"]) == 0
        shown.append([line.split(" |")[0] for line in (tmp_path / "t.md").read_text().splitlines()])
    stopped = "| three (stopped at step 40)"
    assert stopped in shown[0] and stopped not in shown[1] and "| baseline     " in shown[1]


def test_a_model_of_no_numbers_is_a_row_that_says_so(trained, variant, tmp_path):
    out, bad = tmp_path / "t", variant("bad", name="bad")
    scale(bad, math.nan)
    for _ in range(2):  # and again, from the kept row
        assert main([str(bad), str(trained), *SMALL, f"--out={out}"]) == 1
        assert rows(out)["bad"]["problem"] and rows(out)["baseline"]["ppl_tok"] > 1
    assert main([str(trained), *SMALL, f"--out={out}"]) == 0 and "bad" in rows(out)  # it stays beside others


@pytest.mark.parametrize(
    "changes, key",
    [
        (dict(name="human"), "name"),
        ({}, "baseline"),
        (dict(name="a", tokenizer_fingerprint="other"), "token files"),
        (dict(name="a", data_sha256="other"), "token files"),
        (dict(name="a", texts=1000), "split"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(trained, variant, no_work, changes, key):
    texts = f"--texts={changes.pop('texts', 8)}"
    with pytest.raises(ValueError, match=key):
        main([str(trained), str(variant("a", **changes)), *SMALL, texts])


def test_the_papers_protocol(trained, sig, token_folder, tmp_path, monkeypatch):
    seen, tokenizer = capture(monkeypatch), load_tokenizer(token_folder)
    out = tmp_path / "paper"
    assert tables_program.main([str(trained), str(sig), *PAPER_SMALL, f"--out={out}"]) == 0
    made = {row["name"]: row for row in Store(out.with_suffix(".jsonl")).rows("paper")}
    r = made["baseline"]
    said = dict(loops=10, prompt_tokens=16, temperature=0.8, top_k=200)
    assert said.items() <= r["settings"].items()
    want = [tokenizer.decode(p + new) for p, new in seen[:20]]  # the prompt is scored along
    assert samples(tmp_path / "paper.paper", "baseline") == want
    train = open_tokens(token_folder / "train.bin").ids.astype(np.int64)
    places = held_out_prompts(train, 20, 16, 20, seed=1337)
    assert [p for p, _ in seen] == places.prompt.tolist() * 2  # training text, the same for each row
    human = np.concatenate((places.prompt, places.human), 1).tolist()
    assert samples(tmp_path / "paper.paper", "human") == [tokenizer.decode(row) for row in human]
    loops = [text_metrics(want[i::10]) for i in range(10)]
    assert {k: r[k] for k in loops[0]} == {k: pytest.approx(np.mean([v[k] for v in loops])) for k in loops[0]}
    bleu = [v["self_bleu"] for v in loops]
    assert r["self_bleu_sd"] == pytest.approx(np.std(bleu) * math.sqrt(10 / 9)) and r["self_bleu_sd"] > 0
    assert [r[f"published_{key}"] for key in ("ppl", "self_bleu", "distinct_4")] == [6.1855, 27.1660, 0.9709]
    assert made[sig.name]["published_ppl"] == 2257.3240  # by the name's first part
    assert 1 < r["ppl_train"] < 50 and "ppl_tok" not in r and "published_ppl" not in made["human"]
    for flag in ("--texts=15", "--prompt_tokens=17"):
        with pytest.raises(ValueError, match=flag[2:].split("=")[0]):
            tables_program.main([str(trained), *PAPER_SMALL, flag])
