"""A report: the page is well-formed, holds what the rows hold, escapes what it is given, and asks no network
for anything; in a browser it sorts, darkens and fits a phone."""

import json
import math
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch

import report
from config.defaults import TrainConfig
from data.held_out import open_held_out
from data.prepared import load_tokenizer, prepared, tokenizer_of
from evaluation.sampling import weight_draws
from evaluation.texts import held_out_prompts
from measures import search
from measures.columns import ALL
from measures.measure import open_runs
from measures.report.about import corpus_line, first_comment, opening
from measures.report.page import render
from measures.report.runs import BEFORE, SamplingSettings, examine, shown_word, spread_places
from measures.report.tables import CAPTIONS, ReportedTable, data_url, leading_number, open_table
from measures.store import Store
from measures.text import TextMeasure
from runtime.checkpoint import load_model
from tests.fixtures import TINY, train_in_process

REPO = Path(__file__).resolve().parents[1]
SOURCE = "seed=3 train=6000 validation=1500 test=1500 themes=5 nouns=12 verbs=8 adjectives=6 adverbs=4"
EVIL = "<img src=x onerror=alert(1)>"
VOID = {"meta", "br", "img", "input", "link", "hr"}
NEW = 12


class Page(HTMLParser):
    """A parsed page: every tag is closed, ids are there once; a row of a table is [(attributes, text)]."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[tuple[dict, str]]] = []
        self.tags: list[tuple[str, dict]] = []
        self.cell: tuple[dict, list[str]] | None = None
        self.feed(text)
        self.close()
        assert not self.open
        ids = [a["id"] for _, a in self.tags if "id" in a]
        assert len(ids) == len(set(ids))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.cell = dict(attrs), []

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            attrs, texts = self.cell
            self.rows[-1].append((attrs, "".join(texts).strip()))
            self.cell = None

    def handle_data(self, data):
        if self.cell:
            self.cell[1].append(data)

    def row(self, name: str) -> list[tuple[dict, str]]:
        return next(r for r in self.rows if r[0][0].get("data-v") == name)


# ---- tables


HONEST = {"protocol": "honest", "split": "test", "texts": 2, "loops": 1, "words": 4, "block_size": 16}
HONEST |= {"prompt_tokens": 4, "new_tokens": 8, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1}
HONEST |= {"stride": 16, "samples": 8, "dtype": "float32", "tokenizer": "", "train": "", "corpus": ""}


def text_row(row: str, seed: int, **numbers) -> dict:
    """A row of the text measure."""
    run = {"name": f"{row}-{seed}", "row": row, "overlay": "x", "seed": seed, "training": {"head": row}}
    return {"measure": "text", "definition": TextMeasure.definition, "settings": HONEST, **run, **numbers}


def human_row(**numbers) -> dict:
    about = {"tokenizer": EVIL, "complete": True}
    return text_row("human", 0, about=about) | {"name": "human", "reference": True, **numbers}


def table_of(folder: Path, *rows: dict, name: str = "x") -> Path:
    Store(folder / f"{name}.jsonl").put(rows)
    return folder / name


@pytest.fixture
def seeds(tmp_path) -> Path:
    """A table of two rows with three seeds each and of human text; one row has the name of a picture that
    runs code. Texts of two rows lie beside it."""
    rows = []
    for seed in (1, 2, 3):
        rows.append(text_row("baseline", seed, ppl_tok=40.0 + seed, ppl_eps=40.0 + seed, self_bleu=11 + seed))
        rows.append(text_row(EVIL, seed, ppl_tok=math.inf, ppl_eps=90.0 + seed, self_bleu=10.0))
    out = table_of(tmp_path, *rows, human_row(self_bleu=10.0, self_bleu_ci=0.5))
    texts = tmp_path / "x.samples"
    texts.mkdir()
    (texts / "human.jsonl").write_text('" one two three four five"\n"second"\n')
    (texts / "baseline-1.jsonl").write_text(json.dumps(EVIL + " d e f g h") + '\n"other"\n')
    return out


def page_of(*tables: ReportedTable) -> Page:
    return Page(render([*tables], None))


def test_a_table_on_a_page(seeds):
    """Of few rows each number has a line, and says what it is."""
    page = page_of(open_table(seeds, 3))
    assert [text for _, text in page.rows[0]] == ["Number", "baseline", EVIL, "human"]
    tok, eps, bleu = (page.row(name) for name in ("PPL_tok", "PPL_eps", "Self-BLEU"))
    assert tok[0][1] == "PPL_tokexp(NLL / tokens); lower is better"
    assert tok[1:] == [({"class": "best"}, "42.00 ± 2.48 *"), ({}, "inf"), ({}, "-")]
    assert (
        render([open_table(seeds, 3)], None).count("inf: somewhere") == 1
    )  # not of the seeds, where it is not
    assert "class" not in eps[2][0]
    assert bleu[1][1] == "13.00 ± 2.48 (+3.00) *" and bleu[3][1] == "10.00 ± 0.50"
    by_seed = page.row("baseline")
    assert [text for _, text in by_seed[1:4]] == ["41.00", "42.00", "43.00"]
    assert page.row(EVIL)[1][0] == {"data-v": "91.0"}


def test_many_rows_stand_below_each_other_and_the_columns_are_explained_under_them(tmp_path):
    rows = [text_row(f"r{i}", 1, ppl_tok=40.0 + i, self_bleu=3.0) for i in range(9)]
    table = open_table(table_of(tmp_path, *rows, human_row(self_bleu=4.0)), 1)
    text = render([table], None)
    assert [cell for _, cell in Page(text).row("r3-1")] == ["r3-1", "43.00", "3.00 (-1.00)"]
    assert "<dt>PPL_tok</dt><dd>exp(NLL / tokens); lower is better.</dd>" in text
    assert text.count("exp(NLL / tokens)") == 1 and "<dt>Self-BLEU</dt>" in text
    assert [column.what for column in ALL if column.what in text.replace("&#39;", "'")] == [
        column.what for column in ALL if column.key in ("ppl_tok", "self_bleu")
    ]


def test_a_column_is_sorted_by_the_number_that_a_cell_begins_with():
    cells = {
        "13.00 ± 2.48 (+3.00) *": "13.0",
        "65,536,000": "65536000.0",
        "-1.5e-05": "-1.5e-05",
        "inf": "inf",
    }
    assert {cell: leading_number(cell) for cell in cells} == cells
    assert leading_number("-") == leading_number("") == leading_number("random order") == ""


def test_nothing_given_becomes_code_and_nothing_is_asked_of_a_network(seeds):
    """Names, notes, texts and pictures are text; the page may load nothing by its own policy."""
    page = page_of(open_table(seeds, 3))
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not any(key.startswith("on") for _, attributes in page.tags for key in attributes)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "http" not in policy
    asked = [a[k] for tag, a in page.tags for k in ("src", "href", "xlink:href") if k in a]
    assert asked and all(target.startswith(("#", "data:")) for target in asked)


def test_texts_are_those_that_the_table_measures(seeds):
    assert open_table(seeds, 1).samples == [[("human", "one two three four"), ("baseline", f"{EVIL} d")]]
    # a file's texts continue other prompts
    table_of(seeds.parent, text_row("theirs", 0, self_bleu=9.0) | {"name": "theirs", "texts_sha256": "0"})
    (seeds.parent / "x.samples" / "theirs.jsonl").write_text('"a"\n')
    assert [s.row for s in open_table(seeds, 1).samples[0]] == ["human", "baseline"]


def test_single_runs_stand_by_themselves(tmp_path):
    rows = [text_row("a", 1, step=5, ppl_tok=40.0), text_row("b", 1, problem=f"nan {EVIL}")]
    page = page_of(open_table(table_of(tmp_path, *rows, human_row()), 1))
    assert [text for _, text in page.rows[0]] == ["Number", "a-1", f"b-1 (nan {EVIL})", "human"]
    assert [text for _, text in page.row("checkpoint")][1:] == ["5", "-", "-"]
    assert [text for _, text in page.row("PPL_tok")][1:] == ["40.00", "-", "-"]


def test_the_other_measures_have_the_tables_of_their_views(tmp_path):
    """A search, beside the text measure and in one store with it."""
    common = {"overlay": "x", "seed": 1, "training": {}, "definition": 1}
    trial = common | {"measure": search.NAME, "row": "s", "diverged": False, "vocab_size": 9}
    trial["settings"] = {"space": {"gain": [1, 2]}, "design": 2}
    rows = [trial | {"name": f"s-{i}", "trial": i, "point": {"gain": i + 1}, "nll": 1.0} for i in (0, 1)]
    table = open_table(table_of(tmp_path, text_row("a", 1, ppl_tok=40.0), human_row(), *rows), 1)
    assert [part.measure for part in table.parts] == ["text", "search"]
    page = page_of(table)
    assert page.row("s")[0][1] == "s" and table.parts[1].notes == [
        search.NOTE.format(when="at the end of training")
    ]
    assert [f.caption for f in table.figures] == [CAPTIONS["tune"]]


def test_figures_are_made_of_the_rows_and_others_lie_beside(seeds):
    table_of(seeds.parent, *(text_row("baseline", s, ppl_eps=40.0, ece=0.01) for s in (1, 2, 3)))
    for name in ("x.ece.png", "x.curves.tv.png", "x.svg", "xy.ece.png", "x.samples/baseline-1.png"):
        (seeds.parent / name).write_bytes(name.encode())
    curves, ece, drawn = open_table(seeds, 1).figures
    assert curves == (CAPTIONS["tv"], data_url(seeds.parent / "x.curves.tv.png"), False)
    assert ece.caption == CAPTIONS["ece"] and ece.source.startswith("data:image/png;base64,iVBORw0KGgo")
    assert drawn == ("Drawn by baseline", data_url(seeds.parent / "x.samples/baseline-1.png"), True)


def test_rows_of_another_definition_are_named(tmp_path):
    rows = [text_row("a", 1, ppl_tok=40.0), human_row(), text_row("old", 1) | {"definition": 0}]
    table = open_table(table_of(tmp_path, *rows), 1)
    assert [line[0] for line in table.parts[0].grids[0].lines] == ["a-1", "human"]
    assert "left out: old-1." in table.parts[0].notes[0]
    page_of(open_table(table_of(tmp_path, rows[2], name="y"), 1))


@pytest.mark.parametrize(
    "content, says",
    [
        ("[", "x.jsonl"),
        (json.dumps(text_row("a", 1, ppl_tok="x")), "x.jsonl"),
        (json.dumps(text_row("a", 1) | {"measure": "nosuch"}), "x.jsonl"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, content, says):
    (tmp_path / "x.jsonl").write_text(content)
    with pytest.raises(ValueError, match=says):
        report.main([str(tmp_path / "x"), f"--out={tmp_path / 'r.html'}"])
    assert not (tmp_path / "r.html").exists()


# ---- what is said first


def test_the_page_opens_with_the_training_and_what_each_row_does_differently():
    files = ("config/baseline.py", "config/smooth_gpt.py", "config/bayes_gpt.py")
    configs = [vars(TrainConfig.read([f, "config/tiny.py"])) | {"vocab_size": 420} for f in files]
    about = opening([("softmax", configs[0]), (EVIL, configs[1]), ("b", configs[2])], [271_000], "Judged.")
    first, second, third = about.rows
    assert first.sentence.startswith("Softmax: the usual head") and "GPT-2" not in first.sentence
    assert first.changes == [] and first.formula.startswith("p = softmax(u(z))")
    assert second.changes == ["head = label_smoothing", "head_args = {'eps': 0.05}"]
    assert (
        third.changes == ["bayesian = True"]
        and third.sentence == "Bayes-GPT: softmax over a Bayesian projection."
    )
    for said in (
        "a GPT (2 layers, 96 wide, reads 64 tokens, 0.27 million",
        "250 steps (512,000 tokens)",
        "a vocabulary of 420, ",
    ):
        assert said in about.training
    text = render([], None, about)
    assert about.training in text and "Judged." in text and EVIL not in text
    at = [text.index(part) for part in ("output head turns", about.training, "Where to go next")]
    assert at == sorted(at)
    Page(text)
    slower = [("a", configs[0]), ("b", configs[0] | {"learning_rate": 1e-3, "max_steps": 99})]
    assert opening(slower).rows[1].changes == ["max_steps = 99", "learning_rate = 0.001"]
    assert "for 250 or 99 steps" in opening(slower).training and opening([]) is None


def test_the_demo_asks_for_what_its_models_read():
    demo = (REPO / "Makefile").read_text().partition("\nROWS := ")[2].partition("\n\n")[0]
    for row in demo.split("\n")[0].split():
        c = TrainConfig.read([f"config/{row}.py", "config/tiny.py"])
        assert first_comment(row) and c.dataset == "grammar"
    asked = [int(p) + int(n) for p, n in re.findall(r"--prompt_tokens (\d+) --new_tokens (\d+)", demo)]
    assert len(asked) == 1 and max(asked) <= c.block_size


def test_a_head_and_a_corpus_that_say_nothing_are_named_alone(tmp_path, monkeypatch):
    """A row of a user's own: its config file lies where the user works, or is not there at all."""
    assert (
        first_comment("nosuch") == first_comment("../tests/conftest") == first_comment("x" * 300) == ""
        and corpus_line("x") == "x"
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config/mine.py").write_text(
        "# My head.\n# python train.py config/mine.py\nhead = 'softmax'\n"
    )
    assert first_comment("mine") == "My head."


def test_a_table_says_of_its_rows_what_the_runs_have_not_said(tmp_path):
    table = open_table(table_of(tmp_path, *(text_row(r, 1, ppl_tok=4.0) for r in ("softmax", "sigmoid"))), 1)
    assert table.opening.rows[1].changes == ["head = sigmoid"] and table.opening.names == {
        "softmax-1",
        "sigmoid-1",
    }
    assert "Judged on the test split, and by 2 texts of 8 tokens" in table.opening.judging
    runs = opening([("softmax-1", {}), ("sigmoid-1", {"head": "sigmoid"})])
    assert render([table], None, runs).count("head = sigmoid") == 1
    assert render([table], None, opening([("softmax-1", {})])).count("head = sigmoid") == 1
    assert render([table], None).count(table.opening.training) == 1


# ---- runs


def tokenizer_ids(tokens, split) -> np.ndarray:
    """The ids of what was written, by the vocabulary beside the split."""
    tokenizer = load_tokenizer(split.path.parent)
    return np.array(tokenizer.encode("".join(t.text for t in tokens).strip(" ")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared("grammar", "words", SOURCE, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained_runs(folder, tmp_path_factory) -> list[Path]:
    """Tiny runs, one of them Bayesian. Read only."""
    out = []
    for name, changes in (("bayes", {"bayesian": True}), ("plain", {})):
        out.append(tmp_path_factory.mktemp("run") / name)
        shared = dict(name=name, dataset="grammar", tokenizer="words", block_size=32, out_dir=str(out[-1]))
        assert train_in_process(TrainConfig(**TINY | shared | changes), folder) == 0
    return out


@pytest.fixture(scope="module")
def examined(folder, trained_runs):
    split, asked = open_held_out(folder / "test.bin"), open_runs([str(p) for p in trained_runs])
    prompts = held_out_prompts(split.ids, 2, 6, NEW)
    places = spread_places(split, 31, 3)
    settings = SamplingSettings(torch.device("cpu"), "float32", 3, 0)
    return split, places, examine(asked, split, tokenizer_of(asked[0].ckpt), prompts, places, settings)


def ids_of(examined, run: str, at: int) -> tuple[torch.Tensor, list]:
    """The prompt's ids (1, P), and the tokens that the run wrote after it."""
    split, _, runs = examined
    tokens = next(c.tokens for c in runs.prompts[at].continued if c.run == run)
    prompt = held_out_prompts(split.ids, 2, 6, NEW).prompt[at]
    return torch.from_numpy(prompt)[None], tokens


def test_each_token_has_the_probability_that_it_was_drawn_with(examined, trained_runs):
    model, ckpt = load_model(trained_runs[0])
    tokenizer, draws = tokenizer_of(ckpt), weight_draws(model, ckpt.config, 3, 0)
    for at in (0, 1):
        prompt, tokens = ids_of(examined, "bayes", at)
        new = tokenizer.encode("".join(t.text for t in tokens).strip(" "))
        assert len(new) == len(tokens) == NEW
        text = torch.cat((prompt, torch.tensor([new])), 1)
        log_p = model.log_probs(text[:, :-1], draws)[0, -NEW:].gather(1, torch.tensor(new)[:, None])[:, 0]
        assert [t.nll for t in tokens] == pytest.approx((-log_p).tolist(), abs=1e-4)
        assert all(t.epistemic is not None and t.epistemic > -1e-6 for t in tokens)


def test_next_words_stand_beside_the_truth(examined, trained_runs):
    split, places, runs = examined
    model, ckpt = load_model(trained_runs[0])
    tokenizer = tokenizer_of(ckpt)
    assert len(runs.contexts) == len(places) == 3
    for (start, target, stop), context in zip(places, runs.contexts):
        at = start + 1 + target
        before = split.ids[max(start + 1, at - BEFORE) : at].tolist()
        while split.truth.end in before:  # the words of its document alone
            before = before[before.index(split.truth.end) + 1 :]
        assert stop == target + 1 and context.before == tokenizer.decode(before)
        truth = split.truth.probs(np.array([at]))[0]
        read = torch.from_numpy(split.ids[start:at].astype(np.int64))[None]
        said = model.log_probs(read, weight_draws(model, ckpt.config, 3, 0))[0, -1].exp()
        *words, alternatives, forbidden = context.words
        valid, observed = truth > 0, int(split.ids[at])
        assert [w.text for w in words if w.kind == "observed"] == [shown_word(tokenizer, observed)]
        on_valid = torch.from_numpy(valid)
        due = truth[valid].sum() - truth[observed], float(said[on_valid].sum() - said[observed])
        assert alternatives.probabilities[:2] == pytest.approx(due, abs=1e-4)
        assert forbidden.probabilities[:2] == pytest.approx((0, float(said[~on_valid].sum())), abs=1e-4)
        assert words[0].probabilities[0] == truth.max()
        ids = [tokenizer.encode(w.text)[0] if w.text != r"\n" else split.truth.end for w in words]
        assert [w.probabilities[0] for w in words] == truth[ids].tolist()
        assert [w.probabilities[1] for w in words] == pytest.approx(said[ids].tolist(), abs=1e-5)
        (worst,) = (i for i, w in zip(ids, words) if w.kind == "forbidden")
        believed = said.numpy() * ~valid
        assert truth[worst] == 0 and believed[worst] > 0 and len(runs.judged) == 2


def test_the_pictures_numbers_are_the_truths(examined):
    """Of each place the page's column "truth" is the truth, word for word."""
    split, places, runs = examined
    page = Page(render([], runs))
    heads = [n for n, row in enumerate(page.rows) if [text for _, text in row[:2]] == ["Next word", "truth"]]
    assert len(heads) == len(places)
    for at, (start, target, _), context in zip(heads, places, runs.contexts):
        truth = split.truth.probs(np.array([start + 1 + target]))[0]
        shown = [row[1] for row in page.rows[at + 1 : at + 1 + len(context.words)]]
        assert all(attributes == {"class": "true"} for attributes, _ in shown)
        listed = [text for _, text in shown[:-2] if text != "0"]
        best = sorted(truth[truth > 0], reverse=True)[:8]
        assert listed[: len(best)] == [f"{p:.3f}" for p in best] and shown[-1][1] == "0"


def test_a_word_is_marked_where_the_language_forbids_it(examined):
    split, _, runs = examined
    machine, prompts, marked = split.truth.machine, held_out_prompts(split.ids, 2, 6, NEW).prompt, 0
    for at, prompt in enumerate(runs.prompts):
        for c in prompt.continued:
            ids = tokenizer_ids(c.tokens, split)
            states = machine.parse(np.concatenate([prompts[at], ids])[None], -1)[0, 6:]
            due = [s >= 0 and machine.probs(np.array([s]))[0, i] == 0 for s, i in zip(states, ids)]
            assert [t.forbidden for t in c.tokens] == due
            marked += sum(due)
    page = Page(render([], runs))
    wrong = [a for tag, a in page.tags if a.get("class") == "token wrong"]
    assert len(wrong) == marked > 0 and all("forbids" in a["title"] for a in wrong)


def test_a_report_of_a_table_and_runs(folder, trained_runs, seeds, tmp_path, capsys):
    flags = ["--prompt_tokens=6", "--new_tokens=8", "--device=cpu", f"--data={folder}", "--prompts=2"]
    out = tmp_path / "r.html"
    runs = [str(p) for p in trained_runs[:2]]
    assert report.main([f"{seeds}.jsonl", *runs, f"--out={out}", *flags]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    page = Page(out.read_text(encoding="utf-8"))
    tokens = [a for tag, a in page.tags if a.get("class", "").startswith("token")]
    assert len(tokens) == 2 * 2 * 8 and all("-log p" in a["title"] and "--nll:" in a["style"] for a in tokens)
    shades = [a["value"] for tag, a in page.tags if tag == "input"]
    assert shades == ["nll", "epistemic", "rank"]
    assert {"table-1", "runs", "truth"} <= {a["id"] for tag, a in page.tags if tag == "section"}
    bars = [a["style"] for _, a in page.tags if a.get("class") == "bar"]
    assert bars and all(0 <= float(style.removeprefix("--p:")) for style in bars)


@pytest.mark.parametrize("table", [True, False])
def test_prompts_are_as_long_as_the_tables(folder, trained_runs, seeds, tmp_path, table):
    """Without a table a third of what the runs read, if that is less than usual."""
    out, shown = tmp_path / "r.html", [str(seeds)] * table + [str(trained_runs[1])]  # which reads 31
    assert report.main([*shown, f"--data={folder}", f"--out={out}", "--prompts=1", "--device=cpu"]) == 0
    page = Page(out.read_text(encoding="utf-8"))
    tokens = [a for tag, a in page.tags if a.get("class", "").startswith("token")]
    assert len(tokens) == 31 - (4 if table else 10)


# ---- mistakes


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--prompt_tokens=31"], "prompt_tokens . new_tokens = 32: these models read 31"),
        (["--new_tokens=30"], "prompt_tokens . new_tokens = 40: these models read 31"),
        (["--prompts=0"], "prompts = 0: must be at least 1"),
        (["--data=/nowhere"], "no token file|nowhere"),
        (["nowhere"], "'nowhere' is neither a table nor a run"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_any_work(
    folder, trained_runs, tmp_path, monkeypatch, flags, says
):
    monkeypatch.setattr(report, "examine", None)
    data = [] if any("data" in f for f in flags) else [f"--data={folder}"]
    with pytest.raises((ValueError, OSError), match=says):
        report.main([str(trained_runs[1]), *data, f"--out={tmp_path / 'r.html'}", *flags])


def test_runs_of_two_corpora_are_refused(trained_runs, trained, tmp_path):
    with pytest.raises(ValueError, match="other token files"):
        report.main([str(trained_runs[0]), str(trained), f"--out={tmp_path / 'r.html'}"])


def test_data_of_another_tokenizer_are_refused(trained_runs, token_folder, tmp_path):
    with pytest.raises(ValueError, match="was made with another tokenizer"):
        report.main([str(trained_runs[0]), f"--data={token_folder}", f"--out={tmp_path / 'r.html'}"])


# ---- in a browser: apt-get install chromium; pip install playwright


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def chromium():
    if not CHROMIUM:
        pytest.skip("there is no Chromium here")
    api = pytest.importorskip("playwright.sync_api")
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    with api.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if root else [])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(folder, trained_runs, tmp_path_factory) -> Path:
    """A report of two committed tables and of runs."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    shown = [str(REPO / "results" / name) for name in ("grammar", "heads")]
    flags = ["--prompt_tokens=6", "--new_tokens=20", "--device=cpu", f"--data={folder}", f"--out={out}"]
    assert report.main([*shown, *map(str, trained_runs), *flags]) == 0
    return out


@pytest.fixture
def opened(chromium, file):
    """opened(width, scheme) -> the page; in the end it has said nothing and asked for nothing."""
    heard, asked, made = [], [], []

    def go(width: int = 1280, scheme: str = "light"):
        page = chromium.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        made.append(page)
        return page

    yield go
    for page in made:
        page.close()
    others = [url for url in asked if not url.startswith("data:")]  # pictures that the page holds
    assert not heard and others == [file.as_uri()] * len(made)


FIRST = "#table-1 > div:first-of-type tbody > tr:first-child"  # the rows of the page's first table


def names(page) -> list[str]:
    return page.eval_on_selector_all(f"{FIRST} > th", "a => a.map(e => e.dataset.v)")


def column(page, number: int) -> list[str]:
    picked = f"{FIRST} > td:nth-child({number})"
    return page.eval_on_selector_all(picked, "a => a.map(e => e.dataset.v)")


@pytest.mark.slow
def test_a_heading_sorts_by_click_and_by_key(opened):
    page = opened()
    own = names(page)
    head = page.locator("#table-1 thead th").nth(1)
    head.locator("button").click()
    *values, human, noise, loop = column(page, 2)
    assert head.get_attribute("aria-sort") == "ascending" and [human, noise, loop] == [""] * 3
    assert [float(v) for v in values] == sorted(map(float, values)) and names(page) != own
    head.locator("button").focus()
    page.keyboard.press("Enter")
    *values, human, noise, loop = column(page, 2)
    assert head.get_attribute("aria-sort") == "descending" and human == ""
    assert [float(v) for v in values] == sorted(map(float, values), reverse=True)
    page.keyboard.press("Space")
    assert head.get_attribute("aria-sort") == "none" and names(page) == own


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_light_or_dark_as_the_system_and_by_its_button(opened, scheme):
    page = opened(scheme=scheme)
    dark = "getComputedStyle(document.body).backgroundColor !== 'rgb(255, 255, 255)'"
    assert page.evaluate(dark) == (scheme == "dark")
    page.locator("#theme").click()
    assert page.evaluate(dark) == (scheme == "light")


@pytest.mark.slow
def test_tokens_are_shaded_by_what_is_chosen(opened):
    page = opened()
    colour = "getComputedStyle(document.querySelectorAll('#continued .token')[3]).backgroundColor"
    by = {}
    for value in ("nll", "epistemic", "rank"):
        page.locator(f"input[value={value}]").check()
        by[value] = page.evaluate(colour)
    assert len(set(by.values())) > 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 1280, 1440])
def test_no_row_is_cut_beside_the_truth(opened, width):
    page, widths = opened(width), "a => a.map(e => [e.scrollWidth, e.clientWidth])"
    third = "document.querySelectorAll('.bars tr').forEach(r => r.append(r.lastElementChild.cloneNode(true)))"
    page.evaluate(third)
    assert all(w <= c for w, c in page.eval_on_selector_all(".places .scroll", widths))


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_does_not_scroll_sideways(opened, width):
    page = opened(width)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    wide = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide == [width, width] or wide[0] <= wide[1]
    assert page.evaluate("(() => { scrollTo(500, 0); return scrollX })()") == 0
