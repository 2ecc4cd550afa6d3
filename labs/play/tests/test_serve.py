"""The page to play with: its answers are the models' and the truth's, and it answers nobody else."""

import http.client
import json
import shutil
import socket
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from common.errors import UserError
from common.places import corpora
from data.open import corpus_of, prepared, tokenizer_of
from evaluate.decoding import Decoding
from labs.play.serve import LENGTH, TAIL, PlayConfig, Player, Playground, make_server, open_playground
from tests.fixtures import seal, train_on
from training.run import load_model

SOURCE = "seed=3 train=6000 validation=1500 test=1500 themes=5 nouns=12 verbs=8 adjectives=6 adverbs=4"


@pytest.fixture(scope="module")
def playground(trained) -> Playground:
    model, ckpt = load_model(trained)
    players = [Player(name, "softmax", model, model.head.draws(1, 0)) for name in ("one", "<b>two")]
    return Playground(players, tokenizer_of(ckpt), None, "float32", "<i>a start")


@pytest.fixture(scope="module")
def bayes(tmp_path_factory) -> tuple[Path, Path]:
    """A Bayesian run of the known language, and its corpus."""
    if "grammar" not in corpora():
        pytest.skip("labs/known_language is not there")
    folder = prepared("grammar", "words", SOURCE, tmp_path_factory.mktemp("data"))
    out = tmp_path_factory.mktemp("run") / "bayes"
    return train_on(folder, out, dataset="grammar", bayesian=True, block_size=64), folder


@pytest.fixture(scope="module")
def known(bayes) -> Playground:
    run, data = map(str, bayes)
    return open_playground(PlayConfig([run], data=data, device="cpu", samples=3))


@pytest.fixture(scope="module")
def ask(playground):
    """ask(method, path, body, headers) -> (status, text)."""
    server = make_server(playground, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def one(method: str, path: str, body: object = None, headers: dict | None = None):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
        sent = body if body is None or isinstance(body, str) else json.dumps(body)
        connection.request(method, path, sent, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read().decode()

    yield one
    server.shutdown()


# ---- answers


def test_next_words_are_those_of_the_model(playground):
    text, ids = "the ", playground.ids("the ")
    player = playground.players[0]
    found = playground.next(text, Decoding(temperature=0.5))
    with torch.no_grad():
        hidden = player.model.trunk(torch.tensor([ids]))[:, -1]
        p = (player.model.head.log_probs(hidden, player.draws) / 0.5).softmax(1)[0]
    most = found["words"][0]
    assert most["p"][0] == most["p"][1] == pytest.approx(p.max().item(), rel=1e-3)
    assert most["then"] == playground.tokenizer.decode([*ids, int(p.argmax())])


def test_the_truth_stands_in_the_last_column(known):
    """At the start of a document it is the distribution in the machine's first state."""
    found = known.next("", Decoding())
    true = corpus_of("grammar").language(SOURCE)[2].probs(np.array([0]))[0]
    first = {word["then"]: word["p"] for word in found["words"]}
    assert found["truth"] and all(len(p) == 2 for p in first.values())
    for word, p in first.items():
        assert p[1] == pytest.approx(true[known.tokenizer.encode(word)[0]], rel=1e-3)
    assert known.next(" ".join([*first][:1] * 3), Decoding())["truth"] is False  # no text of the language


def test_each_token_has_the_probability_and_the_uncertainty_that_it_was_drawn_with(known):
    _, _, model, draws = known.players[0]
    (tokens,) = known.write(known.start, Decoding(temperature=0.8), seed=3)["texts"]
    new = known.tokenizer.encode("".join(token["text"] for token in tokens).strip(" "))
    assert len(new) == len(tokens) == LENGTH
    text = torch.tensor([known.ids(known.start) + new])
    with torch.no_grad():
        p = torch.stack([model.log_probs(text[:, :-1], [draw])[0, -LENGTH:].exp() for draw in draws])
    nll = -p.mean(0).gather(1, torch.tensor(new)[:, None])[:, 0].log()
    assert [token["nll"] for token in tokens] == pytest.approx(nll.tolist(), abs=1e-4)
    epistemic = torch.special.entr(p.mean(0)).sum(1) - torch.special.entr(p).sum(2).mean(0)
    assert [token["epistemic"] for token in tokens] == pytest.approx(epistemic.tolist(), abs=1e-5)


def test_a_seed_gives_a_text_again(playground):
    one, again = (playground.write("the " * 40, Decoding(), seed=3)["texts"] for _ in range(2))
    assert one == again and [len(text) for text in one] == [LENGTH, LENGTH]
    assert not any("epistemic" in token for text in one for token in text)


def test_next_words_of_a_long_text_decode_it_once(playground, monkeypatch):
    decode, lengths = playground.tokenizer.decode, []
    monkeypatch.setattr(playground.tokenizer, "decode", lambda ids: lengths.append(len(ids)) or decode(ids))
    found = playground.next("the cat " * 500, Decoding())
    assert sum(length > TAIL + 1 for length in lengths) == 1
    assert all(word["then"] == "the cat " * 500 + word["text"] for word in found["words"])


# ---- runs


def test_runs_of_one_vocabulary_play(trained, token_folder, bayes, tmp_path):
    """A run that names no corpus, as an imported model does, needs none; the page then begins empty."""
    opened = open_playground(PlayConfig([f"mine={trained}"], data=str(token_folder), device="cpu"))
    assert [player.name for player in opened.players] == ["mine"] and opened.start
    imported = shutil.copytree(trained / "best", tmp_path / "imported")
    config = json.loads((imported / "config.json").read_text())
    (imported / "config.json").write_text(json.dumps(config | {"data": ""}))
    seal(imported)
    assert open_playground(PlayConfig([str(imported)], device="cpu")).start == ""
    with pytest.raises(UserError, match="bayes"):
        open_playground(PlayConfig([str(trained), str(bayes[0])], data=str(token_folder), device="cpu"))


# ---- the server


def test_the_page_shows_markup_as_text(ask):
    status, page = ask("GET", "/")
    assert status == 200 and "&lt;b&gt;two" in page and "&lt;i&gt;a start" in page
    assert "<b>two" not in page and "http://" not in page and "https://" not in page


GOOD = {"text": "the", "temperature": 1, "top_p": 1}


@pytest.mark.parametrize(
    "method, path, headers",
    [
        ("GET", "/train.py", {}),
        ("GET", "/../README.md", {}),
        ("GET", "/", {"Host": "example.org"}),
        ("POST", "/next", {"Origin": "http://example.org"}),
        ("POST", "/next", {"Origin": "http://127.0.0.1"}),  # another port's page
        ("POST", "/open", {}),
        ("POST", "/next", {"Content-Length": "many"}),
    ],
)
def test_it_serves_its_page_alone_and_to_itself(ask, method, path, headers):
    assert ask(method, path, GOOD if method == "POST" else None, headers)[0] == 404


BAD = {"text": 5}, {"text": "\ud800"}, {"temperature": "warm"}, {"top_p": 0}, {"seed": float("inf")}


@pytest.mark.parametrize("body", [*({**GOOD, "seed": 1, **change} for change in BAD), "[" * 90_000])
def test_what_cannot_be_asked_is_a_line(ask, body):
    status, text = ask("POST", "/write", body)
    assert status == 400 and json.loads(text)["error"]


def test_a_slow_request_holds_no_other(playground, ask, monkeypatch):
    answered = threading.Event()
    monkeypatch.setattr(playground, "write", lambda *_: {"in time": answered.wait(60)})
    replies: list[str] = []
    slow = threading.Thread(target=lambda: replies.append(ask("POST", "/write", GOOD | {"seed": 1})[1]))
    slow.start()
    assert ask("POST", "/next", GOOD)[0] == 200
    answered.set()
    slow.join()
    assert json.loads(replies[0]) == {"in time": True}


def test_a_client_that_leaves_prints_nothing(playground, capfd):
    server = make_server(playground, 0)
    client = socket.create_connection(server.server_address)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
    client.sendall(b"GET /")
    request, address = server.get_request()
    client.close()
    server.process_request(request, address)
    server.server_close()  # waits for no thread that is a daemon
    for thread in threading.enumerate():
        if thread.name.endswith("(process_request_thread)"):
            thread.join()
    assert capfd.readouterr() == ("", "")
