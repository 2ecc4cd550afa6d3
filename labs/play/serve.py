"""A page to play with, on this machine alone: next words of several runs side by side, and what each writes.

    python labs/play/serve.py out/baseline-tiny out/entmax15-tiny       until Ctrl-C, at 127.0.0.1

Type a prompt, and see what each run believes, beside the truth where it is known. Let them go on: each token
is shaded by -log p, those of Bayesian rows also by epistemic uncertainty. The server answers three requests:
the page, the next words of a text (/next) and a text that goes on (/write). It opens no file and no other
address.
"""

import contextlib
import json
import sys
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, NamedTuple

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
from jinja2 import FileSystemLoader

from common.config import Draws, Dtype, Field, Seed, cli, read
from common.device import autocast, choose_dtype, float64_device, get_device, get_dtype
from common.errors import UserError
from common.places import corpora
from data.open import corpus_of, tokenizer_of
from data.tokenizers import Tokenizer, ids_of, text_of_each
from evaluate.decoding import Decoding, truncate
from evaluate.sampling import entropies, generate, weight_draws
from heads import Weights
from model import LanguageModel
from tables.checks import check_text, open_split
from tables.measure import open_runs
from tables.report import page as report
from training.run import load_model

HOST = "127.0.0.1"
WORDS = 12  # of each model that are shown
LENGTH = 40  # tokens that "write" adds
LARGEST = 400_000  # bytes of a request; serve.js sends fewer
TAIL = 8  # tokens before a new one, among which a character of several tokens begins


@dataclass
class PlayConfig:
    # fmt: off
    runs: list[str]                 # [NAME=]RUN ...: out folders of training runs
    port: Annotated[int, Field(ge=0, lt=2**16)] = 8000  # 0: any that is free
    data: str = ""                  # the prepared data folder; empty: the one of the first run
    samples: Draws = 8              # weight draws of Bayesian rows
    seed: Seed = 1337               # of these
    device: str = "auto"            # auto, cpu, cuda, cuda:N or mps
    dtype: Dtype = "float32"        # of matrix products: float32, bfloat16, float16, or auto
    # fmt: on


class Player(NamedTuple):
    """A run that plays."""

    name: str
    head: str
    model: LanguageModel
    draws: list[Weights]  # several of a Bayesian projection


class Playground:
    """What the page asks: runs of one vocabulary, and the truth of their language where it is known."""

    def __init__(self, players: list[Player], tokenizer: Tokenizer, truth: Any, dtype: str, start: str = ""):
        self.players, self.tokenizer, self.truth = players, tokenizer, truth
        self.dtype, self.start = dtype, start
        self.device = next(players[0].model.parameters()).device
        # a GPU's step is captured as a graph, while no other request may use it; elsewhere none waits
        cuda = self.device.type == "cuda"
        self.lock: contextlib.AbstractContextManager = threading.Lock() if cuda else contextlib.nullcontext()

    def ids(self, text: str) -> list[int]:
        """The tokens of a text. An empty one is the start of a text. UserError if no token means that."""
        ids = ids_of(text, self.tokenizer)
        end = self.tokenizer.end_id if self.truth is None else self.truth.end
        if not ids and end is None:
            raise UserError("type a few words: this vocabulary has no token for the start of a text")
        return ids if ids or end is None else [end]

    @torch.no_grad()
    def next(self, text: str, decoding: Decoding) -> dict[str, Any]:
        """The likeliest next words of a text, by any of the models or the truth.

        {"words": [{"text", "then", "p": [one a column]}], "truth"}: `then` is the text with the word, and the
        truth's column is the last one.
        """
        ids, columns = self.ids(text), []
        with self.lock:
            for _, _, model, draws in self.players:
                read = torch.tensor([ids[-model.trunk.context :]], device=self.device)
                with autocast(self.device, self.dtype):
                    log_p = model.head.log_probs(model.trunk(read)[:, -1], draws)
                columns.append(truncate(log_p, decoding)[0].double().cpu().numpy())
        known = self.truth.after(np.array(ids)) if self.truth else None
        if known is not None:
            columns.append(known)
        p = np.stack(columns, 1)  # (V, columns)
        likely = np.unique(np.argsort(-p, 0, kind="stable")[:WORDS])
        likely = likely[np.argsort(-p[likely].max(1), kind="stable")][: 2 * WORDS]
        begun, words = self.tokenizer.decode(ids).rstrip("\ufffd"), []
        for i in likely.tolist():
            word = text_of_each([*ids[-TAIL:], i], self.tokenizer)[-1]
            then = begun + word if text else self.tokenizer.decode([i])
            words.append({"text": word, "then": then, "p": [float(f"{value:.4g}") for value in p[i]]})
        return {"words": words, "truth": known is not None}

    @torch.no_grad()
    def write(self, text: str, decoding: Decoding, seed: int) -> dict[str, Any]:
        """How each model goes on from `text`: {"texts": [[{"text", "nll", "epistemic"}]]}, in nats. The token
        was drawn by `decoding`, and "nll" is its -log p before that; "epistemic" is the uncertainty before it
        was drawn, and stands with Bayesian rows alone."""
        ids, texts = self.ids(text), []
        for _, _, model, draws in self.players:
            start = ids[-model.trunk.context :]
            new: list[int] = []
            values: list[dict[str, float]] = []
            generator = torch.Generator(float64_device(self.device)).manual_seed(seed)
            how: dict[str, Any] = {"generator": generator, "dtype": self.dtype}
            with self.lock:
                prompt = torch.tensor([start], device=self.device)
                for token, hidden in generate(model, prompt, LENGTH, draws, decoding, **how):
                    new += token.tolist()
                    with autocast(self.device, self.dtype):
                        values.append({"nll": -model.head.log_probs(hidden, draws)[0, new[-1]].item()})
                        if len(draws) > 1:
                            values[-1]["epistemic"] = entropies(model, hidden, draws)[2].item()
            words = text_of_each([*start[-TAIL:], *new], self.tokenizer)[-LENGTH:]
            texts.append([{"text": word, **value} for word, value in zip(words, values)])
        return {"texts": texts}

    def answer(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """UserError, ValueError or KeyError for what cannot be asked."""
        text, decoding = asked["text"], Decoding(temperature=asked["temperature"], top_p=asked["top_p"])
        if not isinstance(text, str) or not 0 <= decoding.temperature <= 10 or not 0 < decoding.top_p <= 1:
            raise ValueError("text, temperature or top_p cannot be")
        if path == "/write":
            return self.write(text, decoding, int(asked["seed"]) % 2**31)
        return self.next(text, decoding)

    def page(self) -> str:
        pages = report.PAGES.overlay(loader=FileSystemLoader([Path(__file__).parent, report.HERE]))
        return pages.get_template("serve.html").render(players=self.players, start=self.start)


def make_server(playground: Playground, port: int) -> ThreadingHTTPServer:
    """The server of the page, on this machine alone. OSError if the port is taken; 0 is any free one."""
    page = playground.page().encode()

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> None:
            self.send_response(status)
            headers = {"Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store"}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def ours(self) -> bool:
            """Whether the request comes from our page: another site's has another host or origin."""
            here = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}  # type: ignore[attr-defined]
            origin = self.headers.get("Origin", f"http://{self.headers.get('Host')}")
            return self.headers.get("Host") in here and origin.removeprefix("http://") in here

        def do_GET(self) -> None:
            if self.path == "/" and self.ours():
                self.reply(HTTPStatus.OK, page, "text/html; charset=utf-8")
            else:
                self.reply(HTTPStatus.NOT_FOUND)

        def do_POST(self) -> None:
            given = self.headers.get("Content-Length", "")
            length = int(given) if given.isdecimal() else 0
            if self.path not in ("/next", "/write") or not self.ours() or not 0 < length <= LARGEST:
                return self.reply(HTTPStatus.NOT_FOUND)
            status = HTTPStatus.OK
            try:
                found = playground.answer(self.path, json.loads(self.rfile.read(length)))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                status, found = HTTPStatus.BAD_REQUEST, {"error": str(error)}
            self.reply(status, json.dumps(found).encode(), "application/json")

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the terminal is the user's."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):  # a client that left
                super().handle_error(request, client_address)

    return Server((HOST, port), Handler)


def open_playground(c: PlayConfig) -> Playground:
    """The runs; the start of the held-out text and the truth of the first run's language, where a run names a
    corpus: an imported model does not. UserError for runs of two vocabularies, or that write no text."""
    runs, players = open_runs(c.runs), []
    first, device = runs[0].ckpt.config, get_device(c.device)
    dtype = choose_dtype(c.dtype, device).name
    for run in runs:
        check_text(run.path, run.ckpt.config.dataset)
        if run.ckpt.config.tokenizer_fingerprint != first.tokenizer_fingerprint:
            raise UserError(f"{run.path} and {runs[0].path} have two tokenizers: no word stands for both")
        model, ckpt = load_model(run.path, device=device, dtype=get_dtype(dtype))
        if not model.trunk.forwards:
            raise UserError(
                f"{run.path} does not read from left to right: labs/orders/sample.py writes with it"
            )
        draws = weight_draws(model, ckpt.record, c.samples, c.seed, dtype)
        players.append(Player(run.name, ckpt.config.head, model, draws))
    tokenizer, truth, start = tokenizer_of(runs[0].ckpt), None, ""
    if c.data or any(run.ckpt.config.data for run in runs):
        split = open_split(runs, c.data, "test")
        start = tokenizer.decode(split.ids[:8].tolist())
        if first.dataset in corpora():
            truth = corpus_of(first.dataset).truth(split.info["source"], 1)
    # few truths know the next word's distribution (labs/known_language/two_sided.py)
    return Playground(players, tokenizer, truth if hasattr(truth, "after") else None, dtype, start)


def main(argv: list[str]) -> int:
    c = read(PlayConfig, argv, __doc__)
    with make_server(open_playground(c), c.port) as server:
        print(f"http://{HOST}:{server.server_port}  (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0


if __name__ == "__main__":
    cli(main)
