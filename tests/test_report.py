"""A report: the page is well-formed, holds what the tables hold, escapes what it is given, and asks no
network for anything; in a browser it sorts, unfolds, darkens and fits a phone."""

import base64
import json
import math
import os
import shutil
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from conftest import TINY, train_in_process

import report
from config.defaults import TrainConfig
from data.held_out import open_held_out
from data.prepared import prepared, tokenizer_of
from evaluation.any_order import FREE, reader_of
from evaluation.report import tables
from evaluation.report.page import render
from evaluation.report.runs import BEFORE, Machine, examine, pieces, shown_word, spread_places
from evaluation.report.tables import open_table
from evaluation.rows import entries
from evaluation.sampling import weight_draws
from evaluation.texts import held_out_prompts
from runtime.checkpoint import load_model
from runtime.errors import UserError

REPO = Path(__file__).resolve().parents[1]
SOURCE = "seed=3 train=6000 validation=1500 test=1500 themes=5 nouns=12 verbs=8 adjectives=6 adverbs=4"
EVIL = "<script>alert(1)</script>"
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


def summary(folder: Path, name: str = "x") -> Path:
    """The files of a table of two rows and human text, of two seeds; one row has the name of a script."""
    rows, runs = [], []
    for row, ppl in (("baseline", 40.0), (EVIL, math.inf)):
        own = [f"{row}-{seed}" for seed in (1, 2)]
        numbers = {"ppl_tok": str(ppl) if ppl == math.inf else ppl, "ppl_tok_ci": "nan", "self_bleu": 12.5}
        marks = {"self_bleu_ci": 0.25, "self_bleu_best": row == EVIL, "ppl_tok_best": row == "baseline"}
        rows.append({"name": row, "runs": own, "seeds": [1, 2], **numbers, **marks})
        runs += [{"name": r, "training": {"seed": i + 1}, "self_bleu": 12.0 + i} for i, r in enumerate(own)]
    rows.append({"name": "human", "reference": True, "runs": ["human"], "self_bleu": 10.0})
    settings = {"table": {}, "evaluation": {"words": 4}}
    (folder / f"{name}.json").write_text(json.dumps({"settings": settings, "rows": rows}))
    (folder / f"{name}.runs.json").write_text(json.dumps({"settings": {}, "rows": runs}))
    (folder / f"{name}.md").write_text(
        f"| a |\n\nA note, {EVIL}.\nAnother.\n\n| b |\n\n- ECE: what.\n- Zipf: it is.\n"
    )
    texts = folder / f"{name}.runs.samples"
    texts.mkdir()
    (texts / "human.jsonl").write_text('" one two three four five"\n"second"\n')
    (texts / "baseline-1.jsonl").write_text(json.dumps(EVIL + " b c d e") + '\n"other"\n')
    (folder / f"{name}.trials.svg").write_text(f"<svg>{EVIL}</svg>")
    (folder / f"{name}.runs.embeddings.svg").write_text("<svg/>")
    return folder / name


def page_of(*names: Path, **flags) -> str:
    return render([open_table(n, 3) for n in names], None)


def test_a_table_on_a_page(tmp_path):
    page = Page(page_of(summary(tmp_path)))
    base, evil, human = page.row("baseline"), page.row(EVIL), page.row("human")
    assert [text for _, text in page.rows[0]] == ["Row", "PPL_tok", "Self-BLEU"]
    assert base[1][0] == {"data-v": "40.0", "class": "best", "title": "seed 1: -; seed 2: -"}
    assert base[2] == ({"data-v": "12.5", "title": "seed 1: 12.00; seed 2: 13.00"}, "12.50 ± 0.25 (+2.50)")
    assert (evil[1][0]["data-v"], evil[1][1]) == ("inf", "inf") and evil[2][0]["class"] == "best"
    assert evil[0][1] == EVIL and human[1] == ({"data-v": ""}, "-") and human[2][1] == "10.00"
    seeds = [[text for _, text in r] for r in page.rows if r[0][1].startswith("seed")]
    assert seeds == [["seed 1", "-", "12.00"], ["seed 2", "-", "13.00"]] * 2


def test_nothing_given_becomes_code_and_nothing_is_asked_of_a_network(tmp_path):
    """Names, notes, texts and pictures are text; the page may load nothing by its own policy."""
    text = page_of(summary(tmp_path))
    page = Page(text)
    scripts = [tag for tag, _ in page.tags if tag == "script"]
    assert len(scripts) == 1 and "alert" not in text.partition("<script>")[2]
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "http" not in policy
    asked = [a[k] for tag, a in page.tags for k in ("src", "href", "xlink:href") if k in a]
    assert asked and all(target.startswith(("#", "data:")) for target in asked)


def test_notes_and_texts_are_the_tables_own(tmp_path):
    table = open_table(summary(tmp_path), 1)
    assert table.notes.paragraphs == [f"A note, {EVIL}.", "Another."]
    assert table.notes.columns == ["ECE: what.", "Zipf: it is."]
    assert table.samples == [[("human", "one two three four"), ("baseline", f"{EVIL} b c d")]]
    assert [f.source[:26] for f in table.figures] == ["data:image/svg+xml;base64,"] * 2
    assert table.figures[0].caption == tables.CAPTIONS["embeddings"]  # of its runs


@pytest.mark.parametrize("name", ["heads_250", "grammar", "small", "paper_protocol"])
def test_every_number_of_the_committed_tables_is_there(name, monkeypatch):
    monkeypatch.setattr(tables, "own_figures", lambda *_: iter(()))
    rows = json.loads((REPO / "results" / f"{name}.json").read_text())["rows"]
    table = open_table(REPO / "results" / name, 1)
    page = Page(render([table], None))
    for row in rows:
        cells = page.row(row["name"])[1:]
        assert len(cells) == len(table.columns) > 2
        for column, (attributes, text) in zip(table.columns, cells):
            assert ("class" in attributes) == bool(row.get(column.key + "_best"))
            if not math.isnan(float(row.get(column.key, "nan"))):
                assert float(attributes["data-v"]) == float(row[column.key])
                assert text.startswith(f"{float(row[column.key]):{column.form.replace('d', '.0f')}}")
            else:
                assert text == "-"


def test_the_seeds_of_a_committed_table_are_those_of_its_json(monkeypatch):
    monkeypatch.setattr(tables, "own_figures", lambda *_: iter(()))
    row = next(r for r in json.loads((REPO / "results" / "heads_250.json").read_text())["rows"])
    table = open_table(REPO / "results" / "heads_250", 1)
    at = [c.key for c in table.columns].index("ppl_eps")
    assert [values[at] for _, values in table.lines[0].seeds] == [f"{v:.2f}" for v in row["ppl_eps_seeds"]]
    assert [seed for seed, _ in table.lines[0].seeds] == [f"seed {s}" for s in row["seeds"]]


def test_a_table_of_orders(tmp_path):
    row = {"name": "a-1", "row": "a", "seed": 1, "ppl": 40.25, "kl_next_10%": 0.5}
    rows = [{**row, "name": f"a-{seed}"} for seed in (1, 2)]
    (tmp_path / "o.json").write_text(json.dumps({"settings": {"gaps": [1]}, "rows": rows}))
    with pytest.raises(UserError, match="o.md is missing: the program that wrote"):
        page_of(tmp_path / "o")
    table = f"|     | ppl      |\n|-----|----------|\n| a   | 40.25 ± 2 |\n| {EVIL} | - |"
    (tmp_path / "o.md").write_text(f"{table}\n\n|  | sampler |\n|--|--|\n| b | burst |\n\nA note.\n")
    (tmp_path / "o.samples").mkdir()
    for run in ("a-1", "a-2"):
        (tmp_path / "o.samples" / f"{run}.png").write_bytes(run.encode())
    page = Page(page_of(tmp_path / "o"))
    assert [[text for _, text in row] for row in page.rows] == [
        ["Row", "ppl"], ["a", "40.25 ± 2"], [EVIL, "-"], ["Row", "sampler"], ["b", "burst"]
    ]  # fmt: skip
    assert [attrs["data-v"] for attrs, _ in page.row("a") + page.row(EVIL)] == ["a", "40.25", EVIL, ""]
    drawn = [a["src"] for tag, a in page.tags if tag == "img"]
    assert drawn == ["data:image/png;base64,YS0x"]  # of each row its first run
    assert open_table(tmp_path / "o", 1).notes.paragraphs == ["A note."]


def test_the_figures_of_a_page(tmp_path):
    """Each is a picture of its own, whose ids are not the page's and in which nothing runs; its text is text.
    The dark page inverts it."""
    name = summary(tmp_path)
    content = json.loads(name.with_suffix(".json").read_text())
    for row in content["rows"][:2]:
        row["ece"] = 0.0123
    name.with_suffix(".json").write_text(json.dumps(content))
    tags = Page(page_of(name, name)).tags
    assert "svg" not in {tag for tag, _ in tags}
    at = next(i for i, (_, a) in enumerate(tags) if a.get("alt") == tables.CAPTIONS["ece"])
    assert tags[at - 1][1]["class"] == "scroll picture"
    kind, _, held = tags[at][1]["src"].partition(",")
    assert kind == "data:image/svg+xml;base64"
    picture = ElementTree.fromstring(base64.b64decode(held))
    texts = [e.text for e in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"baseline", EVIL, "expected calibration error; 0 is calibrated"} <= {*texts}


# ---- runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return prepared("grammar", "words", SOURCE, tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained_runs(folder, tmp_path_factory) -> list[Path]:
    """Tiny runs: Bayesian, of any order, masked diffusion. Read only."""
    out = []
    for name, changes in (
        ("bayes", {"bayesian": True}),
        ("any", {"order": "random"}),
        ("masked", {"order": "masked"}),
    ):
        out.append(tmp_path_factory.mktemp("run") / name)
        shared = dict(name=name, dataset="grammar", tokenizer="words", block_size=32, out_dir=str(out[-1]))
        assert train_in_process(TrainConfig(**TINY | shared | changes), folder) == 0
    return out


@pytest.fixture(scope="module")
def examined(folder, trained_runs):
    split, asked = open_held_out(folder / "test.bin"), entries([str(p) for p in trained_runs])
    prompts = held_out_prompts(split.ids, 2, 6, NEW)
    places = spread_places(split, 31, 3)
    machine = Machine(torch.device("cpu"), "float32", 3, 0)
    return split, places, examine(asked, split, tokenizer_of(asked[0].ckpt), prompts, places, machine)


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
        assert all(t.epistemic is not None and t.epistemic > -1e-6 and t.rank == 0 for t in tokens)


def test_of_any_order_tokens_come_in_an_order_each_given_those_before(examined, trained_runs):
    model, ckpt = load_model(trained_runs[1])
    tokenizer, draws = tokenizer_of(ckpt), weight_draws(model, ckpt.config, 1, 0)
    prompt, tokens = ids_of(examined, "any", 0)
    new = tokenizer.encode("".join(t.text for t in tokens).strip(" "))
    order = np.argsort([t.rank for t in tokens])
    assert sorted(t.rank for t in tokens) == [*range(1, NEW + 1)] and list(order) != sorted(order)
    text = torch.cat((prompt, torch.full((1, NEW), FREE)), 1)
    conditionals = reader_of(model, text, draws)
    for n in order:
        place, token = torch.tensor([[6 + n]]), torch.tensor([[new[n]]])
        said = conditionals.along(place, token)
        assert tokens[n].nll == pytest.approx(-math.log(said.probs(token)), abs=1e-4)
        assert tokens[n].epistemic is None
        conditionals.accept(said, place, token, torch.tensor([1]))


def test_masked_diffusion_has_rounds_and_no_next_word(examined):
    _, _, runs = examined
    _, tokens = ids_of(examined, "masked", 1)
    assert all(1 <= t.rank <= NEW and math.isfinite(t.nll) for t in tokens) and len(tokens) == NEW
    assert runs.judged == ["bayes", "any"] and runs.names[-1] == "masked"


def test_next_words_stand_beside_the_truth(examined, trained_runs):
    split, places, runs = examined
    model, ckpt = load_model(trained_runs[0])
    tokenizer = tokenizer_of(ckpt)
    assert len(runs.contexts) == len(places) == 3
    for (start, target, stop), context in zip(places, runs.contexts):
        at = start + 1 + target
        assert stop == target + 1 and context.before == tokenizer.decode(
            split.ids[max(start + 1, at - BEFORE) : at]
        )
        truth = split.truth.probs(np.array([at]))[0]
        read = torch.from_numpy(split.ids[start:at].astype(np.int64))[None]
        said = model.log_probs(read, weight_draws(model, ckpt.config, 3, 0))[0, -1].exp()
        *words, alternatives, forbidden = context.words
        valid, observed = truth > 0, int(split.ids[at])
        assert [w.text for w in words if w.observed] == [shown_word(tokenizer, observed)]
        due = (
            truth[valid].sum() - truth[observed],
            float(said[torch.from_numpy(valid)].sum() - said[observed]),
        )
        assert alternatives.probabilities[:2] == pytest.approx(due, abs=1e-4)
        assert forbidden.probabilities[:2] == pytest.approx(
            (0, float(said[~torch.from_numpy(valid)].sum())), abs=1e-4
        )
        assert words[0].probabilities[0] == truth.max()


def test_a_report_of_a_table_and_runs(folder, trained_runs, tmp_path, capsys):
    flags = ["--prompt_tokens=6", "--new_tokens=8", "--device=cpu", f"--data={folder}", "--prompts=2"]
    out = tmp_path / "r.html"
    runs = [str(p) for p in trained_runs[:2]]
    assert report.main([str(summary(tmp_path)), *runs, f"--out={out}", *flags]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    page = Page(out.read_text(encoding="utf-8"))
    tokens = [a for tag, a in page.tags if a.get("class") == "token"]
    assert len(tokens) == 2 * 2 * 8 and all("-log p" in a["title"] and "--nll:" in a["style"] for a in tokens)
    shades = [a["value"] for tag, a in page.tags if tag == "input"]
    assert shades == ["nll", "epistemic", "rank"]
    assert {"table-1", "runs", "truth"} <= {a["id"] for tag, a in page.tags if tag == "section"}
    bars = [a["style"] for _, a in page.tags if a.get("class") == "bar"]
    assert bars and all(0 <= float(style.removeprefix("--p:")) for style in bars)


class Bytes:
    """A tokenizer of bytes."""

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


def test_a_character_of_several_tokens_is_added_by_its_last():
    assert pieces(Bytes(), [*"é!".encode()]) == ["", "é", "!"]
    assert pieces(Bytes(), [97, 0xC3, 98]) == ["a", "", "\ufffdb"]
    assert pieces(Bytes(), [97, 0xC3]) == ["a", "\ufffd"]


# ---- mistakes


@pytest.mark.parametrize(
    "content, says",
    [
        ("[", "is not JSON"),
        ('{"rows": []}', "is not a table of this program"),
        ('{"settings": {}, "rows": [{"ppl": 1.0}]}', "is not a table of this program"),
        (
            '{"settings": {"protocol": "honest"}, "rows": [{"name": "a", "ece": "x"}]}',
            "is not a table of this program",
        ),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path, content, says):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(ValueError, match=says):
        report.main([str(tmp_path / "x"), f"--out={tmp_path / 'r.html'}"])
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    "flags, says",
    [
        (["--prompt_tokens=30"], "prompt_tokens . new_tokens = 90: these models read 31"),
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
    with pytest.raises(ValueError, match="different token files"):
        report.main([str(trained_runs[0]), str(trained), f"--out={tmp_path / 'r.html'}"])


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
    """A report of three committed tables and of runs."""
    out = tmp_path_factory.mktemp("report") / "report.html"
    shown = [str(REPO / "results" / name) for name in ("heads_250", "grammar", "memorise")]
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


def names(page) -> list[str]:
    return page.eval_on_selector_all("#table-1 tbody > tr:first-child > th", "a => a.map(e => e.dataset.v)")


def column(page, number: int) -> list[str]:
    picked = f"#table-1 tbody > tr:first-child > td:nth-child({number})"
    return page.eval_on_selector_all(picked, "a => a.map(e => e.dataset.v)")


@pytest.mark.slow
def test_a_report_is_small(file):
    assert file.stat().st_size < 3e6


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
def test_a_row_unfolds_its_seeds_and_takes_them_along(opened):
    page = opened()
    unfold = page.locator("#table-1 .unfold").first
    assert page.locator("#table-1 tr.seed:visible").count() == 0
    unfold.focus()
    page.keyboard.press("Enter")
    assert unfold.get_attribute("aria-expanded") == "true"
    body = page.locator("#table-1 tbody").first
    assert body.locator("tr.seed:visible").count() == 5
    page.locator("#table-1 thead button").nth(1).click()
    assert page.locator("#table-1 tr.seed:visible").count() == 5
    unfolded = page.locator("#table-1 tbody", has=page.locator(".unfold[aria-expanded=true]"))
    assert unfolded.locator("tr.seed:visible").count() == 5


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
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_does_not_scroll_sideways(opened, width):
    page = opened(width)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    wide = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide == [width, width] or wide[0] <= wide[1]
    assert page.evaluate("(() => { scrollTo(500, 0); return scrollX })()") == 0
