"""Sending an exported folder to the Hugging Face hub, for export.py."""

from pathlib import Path

from runtime.errors import UserError
from runtime.hub import endpoint


def check_token() -> None:
    """UserError if this user has no token of the hub."""
    from huggingface_hub import get_token

    if not get_token():
        raise UserError("the hub takes a model with a token: run `hf auth login`, or set HF_TOKEN")


def push(folder: str | Path, name: str, private: bool = False) -> str:
    """Sends a folder to the hub, as the model USER/NAME; its address. A model of that name gets a new commit.
    UserError where the hub does not take it."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint())
    try:
        api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="Export of nanoHeads")
    except Exception as error:  # its client raises many kinds; the user needs one line of them
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"{endpoint()} did not take {name}: {why}. The folder {folder} is whole: "
            f"`hf upload {name} {folder}` sends it again"
        ) from None
    return f"{endpoint()}/{name}"
