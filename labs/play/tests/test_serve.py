"""The page to play with: its answers are the model's, and it answers nobody else."""

import http.client
import json
import socket
import struct
import threading

import pytest
import torch

from data.open import tokenizer_of
from evaluate.decoding import Decoding
from labs.play.serve import LENGTH, TAIL, PlayConfig, Player, Playground, make_server, open_playground
from training.run import load_model


@pytest.fixture(scope="module")
def playground(trained) -> Playground:
    model, ckpt = load_model(trained)
    players = [Player(name, "softmax", model, model.head.draws(1, 0)) for name in ("one", "<b>two")]
    return Playground(players, tokenizer_of(ckpt), None, "float32", "<i>a start")


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


def test_next_words_are_those_of_the_model(playground):
    text, ids = "the ", playground.ids("the ")
    player = playground.players[0]
    hidden = lambda: player.model.trunk(torch.tensor([ids]))[:, -1]
    found = playground.next(text, Decoding(temperature=0.5))
    with torch.no_grad():
        p = (player.model.head.log_probs(hidden(), player.draws) / 0.5).softmax(1)[0]
    most = found["words"][0]
    assert most["p"][0] == most["p"][1] == pytest.approx(p.max().item(), rel=1e-3)
    assert most["then"] == playground.tokenizer.decode([*ids, int(p.argmax())])


def test_a_text_goes_on_and_a_seed_gives_it_again(playground):
    one, again = (playground.write("the ", Decoding(), seed=3)["texts"] for _ in range(2))
    assert one == again and [len(text) for text in one] == [LENGTH, LENGTH]
    assert all(token["nll"] >= 0 for text in one for token in text)


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


@pytest.mark.parametrize(
    "change", [{"text": 5}, {"text": "\ud800"}, {"temperature": "warm"}, {"top_p": 0}, {"seed": float("inf")}]
)
def test_what_cannot_be_asked_is_a_line(ask, change):
    status, text = ask("POST", "/write", {**GOOD, "seed": 1, **change})
    assert status == 400 and json.loads(text)["error"]


def test_a_body_of_brackets_is_a_line(ask):
    assert ask("POST", "/next", "[" * 90_000)[0] == 400


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


def test_next_words_of_a_long_text_decode_it_once(playground, monkeypatch):
    decode, lengths = playground.tokenizer.decode, []
    monkeypatch.setattr(playground.tokenizer, "decode", lambda ids: lengths.append(len(ids)) or decode(ids))
    found = playground.next("the cat " * 500, Decoding())
    assert sum(length > TAIL + 1 for length in lengths) == 1
    assert all(word["then"] == "the cat " * 500 + word["text"] for word in found["words"])


def test_runs_are_opened(trained, token_folder):
    opened = open_playground(PlayConfig([f"mine={trained}"], data=str(token_folder), device="cpu"))
    assert [player.name for player in opened.players] == ["mine"] and opened.start
