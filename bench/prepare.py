"""Tokenising a text file, from the file to the token file: data.corpus.tokenise_split, and nanoGPT's way.

    python bench/prepare.py --text FILE [--repeat 4] [--memory 4] [--rounds 5] [--out bench/prepare.json]

nanoGPT's way is that of its data/openwebtext/prepare.py: datasets.load_dataset, `map` over tiktoken's encode_ordinary on all cores, then shard by shard into a
memmap of uint16. A document is a line here, without an end-of-text token, so that both write the same ids, which is checked. Both use tiktoken's gpt2 (its
files are downloaded once, or found in TIKTOKEN_CACHE_DIR). Each program has a process of its own, and they take turns; a round does the work from the
start, with an empty Hugging Face cache. What a process imports and loads once is not timed. FILE is repeated --repeat times; ours runs on --memory times as
much text, too, for its peak memory: resident, above what was there before the first run. nanoGPT's does not include its worker processes; theirs is apart.
"""

import argparse
import hashlib
import os
import resource
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.common import Served, median, resident_mb, serve, serve_turns, skipped, write
from data.corpus import Split, file_lines, tokenise_split
from data.tokenizers import GPT2Tokenizer

SHARDS = 1024  # as nanoGPT


class Program:
    """One way from `text` to ids in a file, again and again."""

    def __init__(self, text: Path, folder: Path):
        self.text, self.folder = text, folder
        self.load()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        self.before, self.ids = resident_mb("VmRSS"), np.zeros(0)

    def load(self) -> None: ...
    def run(self, folder: Path) -> np.ndarray: ...

    def step(self) -> None:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            self.ids = self.run(Path(folder))

    def report(self) -> dict:
        peak = resident_mb("VmHWM") - self.before
        workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        return {
            "bytes": self.text.stat().st_size,
            "tokens": len(self.ids),
            "sha256_of_ids": hashlib.sha256(self.ids.astype("<u2").tobytes()).hexdigest(),
            "peak_mb": peak,
            "largest_worker_mb": workers,
        }


class Ours(Program):
    def load(self) -> None:
        self.tokenizer = GPT2Tokenizer()
        self.tokenizer.encode("")

    def run(self, folder: Path) -> np.ndarray:
        return tokenise_split(
            folder / "train.bin",
            Split(partial(file_lines, self.text), self.text.stat().st_size),
            self.tokenizer,
            "bench",
        ).ids


class NanoGPT(Program):
    def load(self) -> None:
        import datasets
        import tiktoken

        datasets.disable_progress_bars()
        self.load_dataset, self.encoding = datasets.load_dataset, tiktoken.get_encoding("gpt2")

    def run(self, folder: Path) -> np.ndarray:
        encoding, cores = self.encoding, os.cpu_count()

        def process(example: dict) -> dict:
            ids = encoding.encode_ordinary(example["text"])
            return {"ids": ids, "len": len(ids)}

        data = self.load_dataset(
            "text",
            data_files={"train": str(self.text)},
            keep_linebreaks=True,
            cache_dir=str(folder / "cache"),
        )["train"]
        data = data.map(process, remove_columns=["text"], num_proc=cores)
        ids = np.memmap(folder / "train.bin", np.uint16, "w+", shape=(int(np.sum(data["len"])),))
        at = 0
        shards = min(SHARDS, len(data))
        for index in range(shards):
            shard = data.shard(shards, index, contiguous=True).with_format("numpy")
            part = np.concatenate(
                shard[:]["ids"]
            )  # as its batch["ids"] when it was written: since datasets 4 that goes row by row, and twice as long
            ids[at : at + len(part)] = part
            at += len(part)
        ids.flush()
        return ids


PROGRAMS = {"ours": Ours, "nanoGPT": NanoGPT, "ours, more text": Ours}


def parse() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--text", type=Path, required=True, help="a UTF-8 file")
    p.add_argument("--repeat", type=int, default=4)
    p.add_argument("--memory", type=int, default=4)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--out", type=Path)
    p.add_argument("--serve", help=argparse.SUPPRESS)
    p.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return p.parse_args()


def main() -> None:
    args = parse()
    if args.serve:
        times = args.repeat * (args.memory if args.serve == "ours, more text" else 1)
        return serve(lambda: PROGRAMS[args.serve](args.folder / f"{times}.txt", args.folder))
    names = list(PROGRAMS)
    if find_spec("datasets") is None:
        skipped("nanoGPT's way", "pip install datasets")
        names.remove("nanoGPT")
    with tempfile.TemporaryDirectory() as folder:
        for times in (args.repeat, args.repeat * args.memory):
            with open(Path(folder) / f"{times}.txt", "wb") as file:
                for _ in range(times):
                    file.write(args.text.read_bytes())
        programs = {
            name: Served(
                name,
                [__file__, "--folder", folder, *sys.argv[1:]],
                HF_HUB_OFFLINE="1",
                HF_HOME=f"{folder}/hf",
            )
            for name in names
        }
        seconds = serve_turns(programs, args.rounds, 1)
        results = [
            {"program": name, "seconds": median(seconds[name]), **programs[name].close()} for name in names
        ]
    for r in results:
        r["mb_per_s"] = r["bytes"] / 1e6 / r["seconds"]
        r["speed_of_ours"] = r["mb_per_s"] / results[0]["mb_per_s"]
        print(
            f"{r['program']:16} {r['bytes'] / 1e6:7.1f} MB  {r['tokens']:11,} tokens  {r['seconds']:7.3f} s  {r['mb_per_s']:6.2f} MB/s  {r['speed_of_ours']:.2f}x of our speed"
            f"  peak {r['peak_mb']:,.0f} MB"
            + (f" and workers of up to {r['largest_worker_mb']:,.0f} MB" if r["largest_worker_mb"] else ""),
            flush=True,
        )
    if "nanoGPT" in names and results[1]["sha256_of_ids"] != results[0]["sha256_of_ids"]:
        raise SystemExit("the two wrote different ids")
    write(
        args.out,
        {"text": args.text, "repeat": args.repeat, "memory": args.memory, "rounds": args.rounds},
        results,
    )


if __name__ == "__main__":
    main()
