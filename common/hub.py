"""The Hugging Face hub: where it cannot be reached, that is known within seconds.

Its libraries try again for half a minute before they look into their own caches. Told that they are offline,
before they are imported, they look there at once.
"""

import os
import urllib.error
import urllib.request
from typing import Any

from common.errors import checking

SECONDS = 5  # to wait for an answer
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")  # with any of them a user decides


def endpoint() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def silent(address: str) -> bool:
    """Whether nothing answers there."""
    try:
        urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=SECONDS).close()
    except urllib.error.HTTPError:  # an answer
        return False
    except OSError:
        return True
    return False


def offline() -> bool:
    """Whether nothing answers at the hub's address. Its libraries, if they are not imported yet, then read
    their caches alone."""
    if any(os.environ.get(key) for key in OFFLINE) or not silent(endpoint()):
        return False
    os.environ["HF_HUB_OFFLINE"] = "1"
    return True


def load(name: str, configuration: str = "") -> Any:
    """A data set of the hub by its splits, downloaded once into the cache of `datasets`.

    Where the hub is silent, an earlier download is taken; without one `datasets` has an OSError. UserError
    for a configuration that there is not.
    """
    offline()
    from datasets import load_dataset  # seconds to import, and only needed here
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # one error is enough if there is no network
    with checking():
        return load_dataset(name, configuration) if configuration else load_dataset(name)
