"""Where weights are: a folder of this machine, the package's own, or a pinned hub revision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marble.errors import MarbleError

STUDIO = Path(__file__).parent.parent / "studio" / "assets" / "rewards"


def local_folder(path: str | Path, revision: str | None, *, weights: bool = True) -> Path:
    """The folder of a checkpoint, downloaded at ``revision`` if ``path`` is a hub id.

    A hub id may carry its revision: ``owner/name@revision``.
    """
    folder = Path(path).expanduser()
    if folder.is_dir():
        return folder
    text, _, pinned = str(path).partition("@")
    revision = revision or pinned or None
    if folder.is_absolute() or text.startswith((".", "~")) or text.count("/") != 1:
        raise MarbleError(f"no such folder: {text}; give a checkpoint's folder or a hub id")
    from huggingface_hub import snapshot_download

    skip = ["*.bin", "*.msgpack", "*.h5", "*.ckpt", "*.onnx", "*.pt", "*.pth"]
    keep = None if weights else ["*.json", "*.txt", "*.model"]
    try:
        return Path(
            snapshot_download(text, revision=revision, allow_patterns=keep, ignore_patterns=skip)
        )
    except Exception as error:
        raise MarbleError(
            f"cannot get {text}@{revision or 'main'} from the hub ({type(error).__name__}); "
            "check the network and, for gated models, that you accepted the licence and ran "
            "`hf auth login`, or give the path of a local copy"
        ) from error


def local_weights(path: str | Path, revision: str | None) -> Path:
    """A checkpoint's folder, or its file where ``path`` ends in ``.pt``.

    On the hub a file is ``owner/name/file.pt``.
    """
    if not str(path).endswith(".pt"):
        return local_folder(path, revision)
    file = Path(path).expanduser()
    if file.is_file():
        return file
    parts = str(path).split("/")
    if len(parts) != 3:
        raise MarbleError(f"no such file: {path}; give a checkpoint's file or owner/name/file.pt")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download("/".join(parts[:2]), parts[2], revision=revision))
    except Exception as error:
        raise MarbleError(
            f"cannot get {path}@{revision or 'main'} from the hub ({type(error).__name__}); "
            "check the network or give the path of a local copy"
        ) from error


@contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bar of transformers' for a load that takes a moment."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def studio_folder(name: str) -> Path:
    """The folder of a reward model that ships with the package."""
    folder = STUDIO / name
    if not folder.is_dir():
        raise MarbleError(
            f"the studio's reward model {name} is missing from this installation; "
            "reinstall marble-rl, or rebuild it with `make studio`"
        )
    return folder
