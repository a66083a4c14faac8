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


class NotHere(MarbleError):
    """A hub id that has not been downloaded yet."""


def find_local(path: str, revision: str | None = None) -> Path:
    """Folder of `studio`, of a folder, or of a hub id; `NotHere` if that is not downloaded yet."""
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


def pipeline_index(folder: Path) -> dict[str, Any]:
    """The folder's `model_index.json`."""
    path = folder / "model_index.json"
    if not path.is_file():
        raise MarbleError(f"{folder}: not a diffusers pipeline folder (no model_index.json)")
    index = json_object(path)
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
            json_object(part / "config.json")
            _check_part(part)


def _check_part(part: Path) -> None:
    indices = sorted(part.glob("*.safetensors.index.json"))
    if indices:
        shards = {shard for i in indices for shard in json_object(i).get("weight_map", {}).values()}
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


def json_object(path: Path) -> dict[str, Any]:
    """A file's JSON object, or an error that names the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise MarbleError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise MarbleError(f"{path}: expected a JSON object")
    return value


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors in a folder's safetensors files, from their headers."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        shapes |= {n: tuple(t["shape"]) for n, t in header.items() if n != "__metadata__"}
    return shapes
