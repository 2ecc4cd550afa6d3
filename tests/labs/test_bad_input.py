"""Bad input at the entry points of the labs: see tests/test_fuzz.py."""

import json

import pytest

import labs.climbs.prepare
import labs.embeddings.draw
import labs.image_tokens.prepare
import labs.images.sample
import labs.mazes.prepare
import labs.synthetic.prepare
import table
import train
from labs.classes.sets import KINDS
from measures.find import find_measure
from measures.store import Store
from tests import bad_input
from tests.bad_input import (
    NOT_A_STORE,
    OUT,
    PROGRAMS,
    Trains,
    changed,
    check_all,
    check_random_damage,
    fill,
    flags,
    named,
    refused,
    resettled,
    rows,
)
from tests.labs.test_classes import made, write_mnist

call, here = bad_input.call, bad_input.here  # fixtures
PROGRAMS |= {
    "climbs": labs.climbs.prepare.command,
    "embeddings": labs.embeddings.draw.main,
    "image_tokens": labs.image_tokens.prepare.command,
    "mazes": labs.mazes.prepare.command,
    "sample_images": labs.images.sample.main,
    "synthetic": labs.synthetic.prepare.command,
}
BIG = "9" * 25
IMAGES = "--dataset=mnist --source=images --trunk_args.layers=FC[4] --batch_size=20 --max_steps=3"
IMAGES += " --device=cpu --dtype=float32"
CLASSIFY = f"{IMAGES} --name=x --out_dir=new"
RECLASSIFY = f"{IMAGES} --name=classes --out_dir=classes --resume"
CLASSES = f"--measure=classes classes --source=images --device=cpu {OUT}"
CLASS_TABLE = [
    "--name=e",
    "--rows=['softmax']",
    "--config=mnist",
    "--overlay=mnist_brief",
    "--measure=classes",
]
CLASS_TABLE += ["--seeds=[2]", f"--flags={IMAGES}", "--evaluate=--source=images"]
EMBEDDINGS = "results/e --scorer=run --rows=run --device=cpu"
RECORD = {"timestamp": 0, "icao24": "a", "callsign": "b", "vertical_rate": 2000}
STORE = "results/e.jsonl"
READERS = [("table", CLASSES), ("table", CLASS_TABLE), ("embeddings", EMBEDDINGS)]


@pytest.fixture(scope="module")
def whole(token_folder, tmp_path_factory):
    """All that the programs read, with images, a classifier and its row."""
    folder = tmp_path_factory.mktemp("whole")
    fill(folder, token_folder)
    shape = KINDS["mnist"].shape
    write_mnist(folder / "images", made(60, shape, 10, 0), made(20, shape, 10, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train.main(RECLASSIFY.removesuffix(" --resume").split()) == 0
        assert table.main(CLASSES.split()) == 0
    return folder


# fmt: off
CASES = [
    *flags("train", CLASSIFY, "head_args.x=1 seed=-1 device=tpu dtype=int8 name=a/b", {
        "learning_rat=1": "did you mean", "head=hexmax": "hexmax", "trunk_args.layers=Conv[9": "is no layer",
        "trunk_args.layers=FC[0]": "FC[0] is not as FC[256]", "trunk_args.layers=7": "give a line of layers",
        "trunk_args.layers=Pad[99999999999999]": "lower the sizes in layers",
        "trunk_args.x=7": "does not take trunk_args", "n_embd=7": "n_embd = 7 with dataset = 'mnist'",
        "batch_size=1000000000000000000000000": "batch_size must lie between",
        "batch_size=1000000000000000000": "lower the sizes in layers, batch_size",
        "weight_decay=1e308": "weight_decay must lie between", "source=/nosuch": "/nosuch",
        "source=novels": "novels",
        "learning_rate=1e308 --optimizer=sgd": "learning_rate must lie between",
        "dataset=nosuch": "trunk_args",
        "out_dir=/dev/null/x": "", "out_dir=prompts.txt": "", "out_dir=classes": "holds a run",
        "resume": "no checkpoint",
    }),
    *[("train", ["c.py", *CLASSIFY.split()], {"c.py": f"source = {odd!a}"}, "c.py: source holds")
      for odd in ("\0", "\ud800")],
    *[("train", RECLASSIFY, {"classes/last/progress.json": changed(**{k: v})}, "cannot be read")
      for k, v in (("step", "x"), ("best_val_nll", None), ("best_val_error", "7"), ("tokens", None))],
    ("train", RECLASSIFY, {"classes/last/config.json": changed(trunk_args={"layers": "FC[5]"})},
    "trunk_args"),
    ("train", RECLASSIFY, {"classes/last/optimizer.pt": b"\x80\x04cos\nsystem\n."}, "optimizer.pt"),
    *[
        ("table", [*CLASS_TABLE, flag], {}, says)
        for flag, says in (
            ("--rows=['softmax --learning_rate=1e308']", "learning_rate must lie between"),
            ("--rows=['../x']", "name"),
            ("--rows=['a \\'b']", "cannot be split"), ("--config=nosuch", "no config file"),
            ("--results=prompts.txt", "prompts.txt"), ("--evaluate=--split=train", "split"),
        )
    ],
    ("table", "--measure=classes run", {}, "language model"),
    ("table", "--measure=text classes", {}, "classes"),
    *[
        (p, f"{a} {flag}", {}, says)
        for p, a, flag, says in (
            *(("table", "--measure=images run --device=cpu", flag, says) for flag, says in (
                ("", "train.py config/mnist_brief.py"), ("--classifier=run", "not on image tokens"),
                ("--classifier=run --images=1", "images = 1"), ("--classifier=run --cfg=x", "cfg"),
                ("--classifier=run --top_k=-1", "top_k"),
                ("--classifier=classes --temperatures=1e308", "temperatures must lie between"),
            )),
            *(("sample_images", "run --device=cpu", flag, says) for flag, says in (
                ("", "not on image tokens"), ("--cfg=0", "cfg = 0"), ("--grid=x", "grid"),
                ("--class=x", "class"),
                ("--out=x", "out = 'x'"), ("--out=/dev/null/x.png", ""), ("--seed=-1", "seed"),
                ("--device=cuda:99", "device"),
            )),
            ("sample_images", "", "nosuch", "nosuch"),
            *((p, "--out=new", "--tokenizer=gpt2", "words of its own: use 'words'")
              for p in ("climbs", "image_tokens", "mazes", "synthetic")),
        )
    ],
    *[
        (p, ["--out=new", f"--source={s}"], damage, says)
        for p, s, damage, says in (
            *(("synthetic", s, {}, says) for s, says in (
                ("stairs", "'stairs' is not a task"), ("seed=2", "'seed=2' is not a task"),
                ("walk sede=2", "'sede=2' is not a setting of the synthetic tasks"),
                ("step length=x", "'length=x' is not a setting"),
                ("product train=0", "train = 0 must be at least 1"),
                ("product length=1", "length = 1 must be at least 2"),
                ("product length=10001", "must be at most 10000"),
                ("step length=9", "a step of 10 ones does not fit"), (f"step length={BIG}", "source"),
                ("walk length=401", "at most 400"),
            )),
            ("climbs", "simulated x=1", {}, "'x=1' is not a setting of the simulated climbs"),
            ("climbs", "simulated length=101", {}, "length = 101 must be at most 100"),
            ("climbs", "nosuch", {}, "nosuch"), ("climbs", "data", {}, ""),
            ("climbs", "prompts.txt", {}, "JSON"),
            ("climbs", "a.json.gz", {"a.json.gz": b"\x1f\x8b\x08"}, "gzip"),
            *(("climbs", "a.json", {"a.json": content}, says) for content, says in (
                ("[1]", "list of ADS-B records"), ('[{"timestamp": 1}]', "no column icao24"),
                (b"\xff", "UTF-8"),
                ("[" * 99999, "JSON"), ('[{"timestamp": ' + "9" * 5000 + "}]", "JSON"),
            )),
            *(("climbs", "a.json", {"a.json": json.dumps([RECORD, RECORD | {key: value}])},
            f"a.json: {key} = ")
              for key, value in (("timestamp", [1]), ("timestamp", 10**400), ("vertical_rate", [1]),
                                 ("vertical_rate", 1e308), ("icao24", "\ud800"), ("callsign", "a\x1b[2J"))),
            *(("mazes", s, {}, says) for s, says in (
                ("walk", "'walk' is not a setting of the mazes"), ("walls=x", "walls=x"),
                ("height=8", "height = 8: must be odd"), ("width=1", "width = 1 must be at least 3"),
                ("width=53", "must be at most 51"), (f"width={BIG}", "must be at most 51"),
                ("width=" + "9" * 5000, "is not a setting of the mazes"),
                ("height=3 width=3 distance=9", "distance = 9: none of"),
            )),
            ("image_tokens", "nist", {}, "'nist' is not one of"),
            ("image_tokens", "digits jpeg", {}, "'jpeg'"),
            ("image_tokens", "digits vq codes=x", {}, "codes=x"),
            ("image_tokens", "digits vq codes=1", {}, "codes = 1 must be at least 2"),
            ("image_tokens", "digits vq drop=100", {}, "drop = 100 must be at most 99"),
            ("image_tokens", "digits vq classes=3", {}, "of images the classes are known"),
            ("image_tokens", "digits vq patch=3", {}, "patch = 3"),
            ("image_tokens", "digits patches steps=7", {}, "steps=7 has no meaning with patches"),
            ("image_tokens", "files codes=8 classes=3 seed=9 in=a", {}, "seed=9 has no meaning with files"),
            ("image_tokens", f"digits patches codes={BIG}", {}, "codes"),
            ("image_tokens", "mnist vq in=nosuch", {}, "nosuch"),
            ("image_tokens", "mnist vq in=text", {}, "text"),
            ("image_tokens", "mnist vq in=m", {"m/train-images-idx3-ubyte": b"\0\0\x08\x03"}, "no IDX file"),
            ("image_tokens", "files codes=4 in=text", {}, "need classes=NUMBER"),
            ("image_tokens", "files codes=4 classes=3", {}, "and in=DIR"),
            ("image_tokens", "files codes=3 classes=2 in=text", {}, "train_codes.npy"),
            *(("image_tokens", "files codes=3 classes=2 in=f", {"f/train_codes.npy": bad}, "cut short")
              for bad in (b"\x93NUMPY", b"\x80\x04.")),
        )
    ],
    *[
        ("embeddings", arguments, damage, says)
        for arguments, damage, says in (
            ("results/e", {}, "--scorer is missing"), ("results/e --scorer=run --texts=0", {}, "texts = 0"),
            (EMBEDDINGS, {}, "needs at least 10"),
            (f"{EMBEDDINGS} --rows=other", {}, "no texts of 'other'; it has "),
            ("results/none --scorer=run", {}, "results/none.samples has no texts"),
            (EMBEDDINGS, {"results/e.samples/human.jsonl": "[1"}, "human.jsonl"),
            ("/ --scorer=run", {}, "is a folder: give a file's name"),
        )
    ],
    *[(program, arguments, {STORE: bad}, STORE) for bad in NOT_A_STORE[::11]
      for program, arguments in READERS],
    *[("table", arguments, {STORE: resettled("classes")}, "other settings")
      for arguments in (CLASSES, CLASS_TABLE)],
    *[("table", CLASSES, {STORE: rows("classes", **{key: value})}, STORE)
      for key, value in (("row", None), ("seed", []), ("nll", "low"), ("step", "x"), ("overlay", None))],
]
# fmt: on


@pytest.mark.parametrize("program, arguments, damage, says", CASES, ids=named(CASES))
def test_bad_input_is_refused_in_one_line(call, here, program, arguments, damage, says):
    refused(call(program, arguments, damage), program, says)
    assert not (here / "new").exists() or program == "image_tokens"  # which reads its files later


def test_the_commands_that_are_damaged_here_work_when_whole(call):
    check_all(call, [("train", CLASSIFY), ("train", RECLASSIFY), ("table", CLASSES)])
    with pytest.raises(Trains):
        call("table", CLASS_TABLE)


@pytest.mark.parametrize(
    "program, arguments, pattern, times",
    [
        ("train", RECLASSIFY, "classes/*/*", 4),
        ("train", CLASSIFY, "images/*", 4),
        *((program, arguments, STORE, 6) for program, arguments in READERS),
    ],
)
def test_random_damage_is_refused_or_harmless(call, whole, program, arguments, pattern, times):
    check_random_damage(call, whole, program, arguments, pattern, times)


@pytest.mark.parametrize("name", ["classes", "images"])
def test_runs_that_diverged_stand_in_the_tables(name, whole):
    """Alone, and in front of others."""
    measure, place = find_measure(name), {"row": "lost", "overlay": "", "seed": 1, "training": {}}
    lost = {"name": "lost-1", **place, "settings": {"images": "mnist"}, "problem": "its training diverged"}
    others = Store(whole / STORE).rows(name)
    for rows_of in ([lost], [lost, *others]):
        shown = measure.view(rows_of).markdown
        assert "lost-1 could not be evaluated: its training diverged" in shown
    assert measure.which == {"classes": "best", "images": "last"}[name]
    assert not others or "| classes" in shown
