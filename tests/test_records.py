"""records/: the committed board is that of its entries, and a record is what the page says."""

import json
import math
import shutil

import numpy as np
import pytest
import torch

from nanoheads.truth import Language
from records import check

SEEDS = range(2, 7)


def test_the_committed_board_is_made_anew_of_its_entries():
    records = check.read_all(check.HERE)
    text = (check.HERE / "README.md").read_text(encoding="utf-8")
    assert check.page(text, records) == text
    assert check.main([]) == 0


@pytest.fixture
def home(tmp_path):
    """Entries of the committed page, without any yet."""
    shutil.copy(check.HERE / "README.md", tmp_path)
    return tmp_path


def put(home, name, kl, seeds=SEEDS, **changes):
    """An entry whose seeds have these numbers."""
    folder = home / name
    folder.mkdir(exist_ok=True)
    entry = dict(title="A model", track="once", author="somebody", date="2026-11-24", code="https://x.test/y")
    entry |= dict(
        commit="0" * 40, commands=["train --seed={seed}"], models="by the commands", machine="a CPU"
    )
    entry |= dict(seconds=1.0, parameters=1, readings=2_000_000, search="none") | changes
    (folder / "entry.json").write_text(json.dumps(entry))
    score = dict(language=Language().machine.digest, split="test", context=128, tokens=9, tv=0.1, ece=0.0)
    score |= dict(mass_invalid=0.0, alternatives_error=0.0)
    rows = [
        score | {"seed": s, "sha256": f"{i:064x}", "kl_truth_model": v}
        for i, (s, v) in enumerate(zip(seeds, kl))
    ]
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


BASE = [0.10, 0.11, 0.12, 0.13, 0.14]


def verdict(home, *others, seeds=SEEDS):
    put(home, "001-first", BASE)
    for i, kl in enumerate(others):
        put(home, f"{i + 2:03}-next", kl, seeds)
    return check.verdicts(check.read_all(home))


def test_a_record_is_lower_by_a_paired_test(home):
    """By .005 from seed to seed, which the seeds' own spread hides from Welch's test."""
    lower = [v - 0.005 + 0.0005 * (i % 2) for i, v in enumerate(BASE)]
    says, standing = verdict(home, lower)
    assert says["002-next"].startswith("lower than 001 by 0.0048") and standing.name == "002-next"
    says, standing = verdict(home, lower, seeds=range(12, 17))
    assert says["002-next"].startswith("cannot be told from 001 (-0.0048") and standing.name == "001-first"


def test_each_entry_meets_the_record_that_stands(home):
    half = [v / 2 for v in BASE]
    says, standing = verdict(home, half, BASE, half)
    assert standing.name == "002-next" and says["003-next"].startswith("higher than 002 by 0.06")
    assert says["004-next"].startswith("cannot be told from 002 (+0.0000")


def test_the_board(home, capsys):
    put(home, "001-first", BASE)
    put(home, "002-next", [v / 2 for v in BASE])
    assert check.main([], home) == 1 and "--write" in capsys.readouterr().err
    assert check.main(["--write"], home) == 0 and check.main([], home) == 0
    text = (home / "README.md").read_text()
    assert text.index("| **[002-next]") < text.index("| [001-first]") and "No entry yet." in text
    assert "| **0.0600 ± 0.0098** |" in text and "## The rules" in text


@pytest.mark.parametrize(
    "entry, says",
    [
        (dict(kl=BASE[:4]), "at least 5 different ones"),
        (dict(kl=[*BASE, 0.1], seeds=[2, 2, 3, 4, 5, 6]), "give each one line"),
        (dict(kl=[*BASE[:4], 0.0]), "kl_truth_model"),
        (dict(kl=BASE, readings=2_000_001), "readings = 2,000,001: at most 2,000,000"),
        (dict(kl=BASE, track="twice"), "track"),
        (dict(kl=BASE, commands=["train"]), "seed"),
        (dict(kl=BASE, commit="main"), "commit"),
        (dict(kl=BASE, gpu="H100"), "gpu"),
        (dict(kl=BASE, date="2026-11-23"), "is older than 001"),
    ],
)
def test_what_is_no_entry(home, capsys, entry, says):
    put(home, "001-first", BASE)
    put(home, "002-next", **entry)
    assert check.main([], home) == 1 and says in capsys.readouterr().err


def test_numbers_follow_each_other_and_scores_are_of_one_language(home, capsys):
    folder = put(home, "002-first", BASE)
    assert check.main([], home) == 1 and "give a new one the next number" in capsys.readouterr().err
    folder.rename(home / "001-first")
    path = home / "001-first" / "scores.jsonl"
    path.write_text(path.read_text().replace(Language().machine.digest, "0" * 12))
    assert check.main([], home) == 1 and "of another language" in capsys.readouterr().err


def test_a_page_without_a_place_for_the_board(home, capsys):
    (home / "README.md").write_text("# Records\n")
    assert check.main([], home) == 1 and "has not once each of <!-- board" in capsys.readouterr().err


def test_the_verifier_scores_models_of_anybodys(tmp_path, monkeypatch, capsys):
    """Here a table of the next word given the last one, in a small language."""
    lang = Language(train=600, validation=600, test=900, themes=5, nouns=12, verbs=8, adjectives=6, adverbs=4)
    monkeypatch.setattr(check, "Language", lambda: lang)
    V = len(lang.words)
    for seed in (3, 2):
        table = torch.randn(V, V, generator=torch.Generator().manual_seed(seed)).log_softmax(1)
        np.save(tmp_path / f"{seed}.npy", table[np.roll(lang.test, 1)].numpy())
        assert check.main(["--score", str(tmp_path), f"{seed}={tmp_path}/{seed}.npy"]) == 0
    rows = [check.Scored.model_validate_json(line) for line in open(tmp_path / "scores.jsonl")]
    assert [row.seed for row in rows] == [2, 3] and rows[0].kl_truth_model != rows[1].kl_truth_model
    assert rows[1].kl_truth_model == lang.score(tmp_path / "3.npy")["kl_truth_model"]
    for models, says in (
        ([], "takes the models"),
        ([f"3={tmp_path}/3.npy", "seed2=x"], "'seed2=x' is no model with its seed"),
        ([f"{tmp_path}/3.npy"], "give SEED=PATH"),
        ([f"3={tmp_path}/3.npy", f"03={tmp_path}/2.npy"], "a seed has two models"),
        ([f"3={tmp_path}"], "holds no weights as safetensors"),
    ):
        assert check.main(["--score", str(tmp_path / "new"), *models]) == 1
        assert says in capsys.readouterr().err and not (tmp_path / "new").exists()
    assert rows[0].sha256 != rows[1].sha256 and rows[0].language == lang.machine.digest
    table[:, int(lang.test[5])] = -math.inf
    np.save(tmp_path / "4.npy", table.log_softmax(1)[np.roll(lang.test, 1)].numpy())
    assert check.main(["--score", str(tmp_path), f"4={tmp_path}/4.npy"]) == 1
    assert "4.npy has inf nats" in capsys.readouterr().err
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == 2
