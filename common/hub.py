"""The Hugging Face hub: where it cannot be reached, that is known within seconds.

Its libraries try again for half a minute before they look into their own caches. Told that they are offline,
before they are imported, they look there at once.
"""

import os
import ssl
import threading
import urllib.error
import urllib.request
from typing import Any

SECONDS = 5  # to wait for an answer
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")  # with any of them a user decides


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def silent() -> bool:
    """Whether nothing answers at the hub's address. An error of HTTP or of a certificate is an answer."""
    answers = []

    def ask() -> None:
        try:
            urllib.request.urlopen(urllib.request.Request(endpoint(), method="HEAD"), timeout=SECONDS).close()
        except urllib.error.URLError as error:
            if isinstance(error.reason, OSError) and not isinstance(error.reason, ssl.SSLError):
                return
        except OSError:
            return
        answers.append(True)

    # a look-up of a name takes no time limit, so it has a thread of its own
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return not answers


def offline() -> bool:
    """Whether the hub was asked and is silent. Its libraries, if they are not imported yet, then read their
    caches alone."""
    if any(os.environ.get(key) for key in OFFLINE) or not silent():
        return False
    os.environ["HF_HUB_OFFLINE"] = "1"
    return True


def load(name: str, configuration: str = "") -> Any:
    """A data set of the hub by its splits, downloaded once into the cache of `datasets`.

    Where the hub is silent, an earlier download is taken; else what `datasets` raises.
    """
    offline()
    from datasets import load_dataset  # seconds to import, and only needed here
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # one error is enough if there is no network
    return load_dataset(name, configuration) if configuration else load_dataset(name)
