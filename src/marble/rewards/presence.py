"""Which checkpoints lie on this machine already, and the commands that fetch the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from marble.errors import MarbleError

#: What is loaded of a whole checkpoint: hub folders hold the same weights in other formats too.
PATTERNS = ("*.safetensors", "*.json", "*.txt")


@dataclass(frozen=True)
class Wanted:
    """A folder or file of this machine, or of the hub: ``owner/name[@revision]`` or with a file.

    ``weights=False``: configuration and tokenizer alone.
    """

    path: str | Path
    revision: str | None = None
    weights: bool = True

    @property
    def repo(self) -> str:
        return "/".join(self._parts[:2])

    @property
    def file(self) -> str | None:
        return self._parts[2] if len(self._parts) == 3 else None

    @property
    def pinned(self) -> str | None:
        return self.revision or str(self.path).partition("@")[2] or None

    @property
    def _parts(self) -> list[str]:
        return str(self.path).partition("@")[0].split("/")

    @property
    def command(self) -> str:
        """Fetches exactly what is loaded."""
        words = ["hf download", self.repo]
        words += [self.file] if self.file else []
        words += ["--revision", self.pinned] if self.pinned else []
        if not self.file:
            words += [f"--include '{p}'" for p in (PATTERNS if self.weights else PATTERNS[1:])]
        return " ".join(words)

    def find(self) -> Path | None:
        """Where it lies, or None if it has to be fetched from the hub."""
        place = Path(self.path).expanduser()
        if place.exists():
            return place
        local = place.is_absolute() or str(self.path).startswith((".", "~"))
        if local or len(self._parts) not in (2, 3):
            raise MarbleError(f"{self.path} does not exist; give the path of a copy or a hub id")
        from huggingface_hub import snapshot_download

        try:
            folder = Path(snapshot_download(self.repo, revision=self.pinned, local_files_only=True))
        except Exception:  # whatever the cache lacks, the answer is to fetch it
            return None
        # A snapshot may hold another file of the repository only.
        needed = self.file or (PATTERNS[0] if self.weights else PATTERNS[1])
        if not any(folder.glob(needed)):
            return None
        return folder / self.file if self.file else folder


class Absent(MarbleError):
    """Checkpoints that are not on this machine; ``commands`` fetch them."""

    def __init__(self, wanted: list[Wanted]) -> None:
        self.commands = [w.command for w in wanted]
        names = " and ".join(f"{w.repo}/{w.file}" if w.file else w.repo for w in wanted)
        verb, them = ("is", "it") if len(wanted) == 1 else ("are", "them")
        fetch = " and ".join(f"`{command}`" for command in self.commands)
        super().__init__(f"{names} {verb} not on this machine; fetch {them} with {fetch}")


def present(*wanted: Wanted) -> list[Path]:
    """Where each of these lies; :class:`Absent` names all that do not, not only the first."""
    found = [(w, w.find()) for w in wanted]
    absent = [w for w, place in found if place is None]
    if absent:
        raise Absent(absent)
    return [place for _, place in found if place is not None]
