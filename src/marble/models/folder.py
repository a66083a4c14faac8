"""A diffusers folder, looked at before it is loaded: which family, and is every file whole."""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from marble.errors import MarbleError

#: Whose classes a `model_index.json` may name: to import another library is to run its code.
LIBRARIES = ("diffusers", "transformers")
#: Owners of hub models whose licence has to be accepted on their page first.
GATED = ("stabilityai/", "black-forest-labs/")


def find_model(path: str, revision: str | None = None) -> Path:
    """Local folder of `studio`, of a folder, or of a hub id (downloaded if need be)."""
    try:
        return find_local(path, revision)
    except NotHere:
        return _download(path, revision)


class NotHere(MarbleError):
    """A hub id that has not been downloaded yet."""


def find_local(path: str, revision: str | None = None) -> Path:
    """The same without downloading: `NotHere` for a hub id whose files are not on this machine."""
    if path == "studio":
        folder = Path(str(resources.files("marble"))) / "studio" / "assets" / "pipeline"
        if not (folder / "model_index.json").is_file():
            raise MarbleError("the studio model is not in this install; run `make studio`")
        return folder
    with suppress(OSError, RuntimeError, ValueError):  # a name that no folder can have
        folder = Path(path).expanduser()
        if folder.is_dir():
            return folder
    is_hub_id = path.count("/") == 1 and not path.startswith((".", "/", "~"))
    if not is_hub_id:
        raise MarbleError(f"model.path: no such folder: {path}")
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(path, revision=revision, local_files_only=True))
        check_weights(folder, pipeline_index(folder))  # an interrupted download leaves holes
    except Exception:
        raise NotHere(f"{path} is not on this machine yet") from None
    return folder


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
    """Fetches the pipeline's files; SD3's hub folders hold the same weights as single files too."""
    at = f" --revision {revision}" if revision else ""
    is_sd3 = hub_id.startswith("stabilityai/stable-diffusion-3")
    spare = " --exclude 'text_encoders/*' --exclude 'sd3*.safetensors'" if is_sd3 else ""
    return f"hf download {hub_id}{at}{spare}"


def how_to_fetch(hub_id: str, revision: str | None = None) -> str:
    """The steps from nothing to weights on this machine."""
    fetch = fetch_command(hub_id, revision)
    if not hub_id.startswith(GATED):
        return f"run `{fetch}`, or give the folder of a copy as model.path"
    return (
        f"accept the licence on https://huggingface.co/{hub_id}, then run `hf auth login` and "
        f"`{fetch}`, or give the folder of a copy as model.path"
    )


def pipeline_index(folder: Path) -> dict[str, Any]:
    """The folder's `model_index.json`."""
    path = folder / "model_index.json"
    if not path.is_file():
        raise MarbleError(f"{folder}: not a diffusers pipeline folder (no model_index.json)")
    index = _json(path)
    if not isinstance(index.get("_class_name"), str):
        raise MarbleError(f"{path}: names no pipeline class")
    for name, entry in index.items():
        if isinstance(entry, list) and not name.startswith("_") and not _known_class(entry):
            raise MarbleError(
                f"{path}: {name} is to be {entry}; only classes of {' and '.join(LIBRARIES)} are "
                "loaded, since any other could run code"
            )
    return index


def _known_class(entry: list[Any]) -> bool:
    """[library, class] of a part, or [null, null] for one that is left out."""
    if len(entry) != 2 or entry == [None, None]:
        return entry == [None, None]
    library, kind = entry
    return library in LIBRARIES and isinstance(kind, str) and kind.isidentifier()


def check_weights(folder: Path, index: dict[str, Any]) -> None:
    """Every component is there and every weight file whole, or an error that names the file."""
    for name, entry in index.items():
        if name.startswith("_") or not isinstance(entry, list) or entry[0] is None:
            continue
        part = folder / name
        if not part.is_dir():
            raise MarbleError(f"{folder}: the folder {name}/ is missing")
        if (part / "config.json").is_file():
            _json(part / "config.json")
            _check_part(part)


def _check_part(part: Path) -> None:
    indices = sorted(part.glob("*.safetensors.index.json"))
    if indices:
        shards = {shard for i in indices for shard in _json(i).get("weight_map", {}).values()}
        files = [part / shard for shard in sorted(shards)]
    else:
        files = sorted(part.glob("*.safetensors"))
        if not files:
            raise MarbleError(f"{part}: no .safetensors weight file (pickles are never loaded)")
    for file in files:
        check_safetensors(file)


def check_safetensors(file: Path) -> None:
    """Raises unless the file is as long as its own header says. Reads the header only."""
    if not file.is_file():
        raise MarbleError(f"weight file missing: {file}")
    size = os.path.getsize(file)
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header: dict[str, Any] = json.loads(stream.read(length) if length < size else b"")
        ends = [v["data_offsets"][1] for k, v in header.items() if k != "__metadata__"]
        whole = size == 8 + length + max(ends, default=0)
    except (struct.error, ValueError, AttributeError, KeyError, TypeError):
        whole = False
    if not whole:
        raise MarbleError(f"weight file damaged or cut short: {file}; fetch it again")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MarbleError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise MarbleError(f"{path}: expected a JSON object")
    return value
