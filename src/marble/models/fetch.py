"""From a hub id to a folder on this machine."""

from __future__ import annotations

from pathlib import Path

from marble.errors import MarbleError
from marble.models.folder import NotHere, find_local
from marble.models.registry import published

#: Owners whose other checkpoints, too, have a licence that has to be accepted first.
GATED = ("stabilityai/", "black-forest-labs/")


def find_model(path: str, revision: str | None = None) -> Path:
    """Local folder of `studio`, of a folder, or of a hub id (downloaded if need be)."""
    try:
        return find_local(path, revision)
    except NotHere:
        return _download(path, revision)


def _download(hub_id: str, revision: str | None) -> Path:
    from diffusers import DiffusionPipeline
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    from marble.models.quiet import quiet

    try:
        with quiet():
            return Path(DiffusionPipeline.download(hub_id, revision=revision, use_safetensors=True))
    except GatedRepoError:
        cause = "its licence is not accepted, or you are not logged in"
    except RepositoryNotFoundError:
        cause = "the hub knows no such model"
    except Exception as error:
        cause = f"the hub cannot be reached: {type(error).__name__}"
    raise MarbleError(
        f"model.path: {hub_id} is not on this machine and cannot be downloaded ({cause}); "
        f"{how_to_fetch(hub_id, revision)}"
    )


def fetch_command(hub_id: str, revision: str | None = None) -> str:
    """Fetches the pipeline's files; hub folders often hold the same weights as single files too."""
    at = f" --revision {revision}" if revision else ""
    known = published(hub_id)
    spare = "".join(f" --exclude '{files}'" for files in (known.spare if known else ()))
    return f"hf download {hub_id}{at}{spare}"


def how_to_fetch(hub_id: str, revision: str | None = None) -> str:
    """The steps from nothing to weights on this machine."""
    fetch, known = fetch_command(hub_id, revision), published(hub_id)
    if not (known.gated if known else hub_id.startswith(GATED)):
        return f"run `{fetch}`, or give the folder of a copy as model.path"
    return (
        f"accept the licence on https://huggingface.co/{hub_id}, then run `hf auth login` and "
        f"`{fetch}`, or give the folder of a copy as model.path"
    )
