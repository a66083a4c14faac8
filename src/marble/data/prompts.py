"""Prompt sources: the file layouts people already have, read verbatim.

A *spec* is one of
- `studio:NAME`: a source that ships with marble;
- a folder in the layout of flow_grpo and DiffusionNFT: `{split}.txt` (one prompt per line) or
  `{split}_metadata.jsonl` / `{split}.jsonl` (one JSON object per line with `prompt` and metadata);
- a single `.txt` or `.jsonl` file, which then serves every split.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

from marble.errors import MarbleError

STUDIO_PREFIX = "studio:"
MAX_PROMPT = 8192
"""Characters of a prompt. No text encoder reads nearly as many, and some tokenizers take a time
that grows with the square of a word's length."""
LAYOUTS = ("{split}_metadata.jsonl", "{split}.jsonl", "{split}.txt")


@dataclass(frozen=True)
class Prompt:
    """A prompt, the source it came from, and whatever its file says about it.

    `metadata` is the file's own object, unchanged, plus `source`: what rewards read.
    """

    text: str
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", {**self.metadata, "source": self.source})


def text_problem(text: str, longest: int = MAX_PROMPT) -> str | None:
    """Why a text cannot be a prompt, if it cannot."""
    if len(text) > longest:
        return f"{len(text)} characters; at most {longest} are taken"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half a character (a lone surrogate), which no tokenizer takes"
    return None


def load_prompts(spec: str, split: str = "train", source: str | None = None) -> list[Prompt]:
    """The prompts of `spec` for `split`, in file order.

    `source` names prompts whose line carries no `source` of its own; by default the name of the
    folder or file. Raises `MarbleError` naming file and line for anything unreadable.
    """
    path = _resolve(spec, split)
    name = source or _default_source(spec, path)
    read = _read_jsonl if path.suffix == ".jsonl" else _read_txt
    prompts = list(read(path, name))
    for number, prompt in enumerate(prompts, start=1):
        problem = text_problem(prompt.text)
        if problem:
            raise MarbleError(f"{path}: prompt {number}: {problem}")
    if not prompts:
        raise MarbleError(f"{path}: no prompts in this file; add at least one line")
    return prompts


def studio_sources() -> list[str]:
    """Names usable as `studio:NAME`."""
    root = _studio_root()
    return sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []


def _studio_root() -> Path:
    return Path(str(resources.files("marble"))) / "studio" / "prompts"


def _default_source(spec: str, path: Path) -> str:
    if spec.startswith(STUDIO_PREFIX):
        return spec.removeprefix(STUDIO_PREFIX)
    return path.stem if Path(spec).is_file() else Path(spec).resolve().name


def _resolve(spec: str, split: str) -> Path:
    """The one file that holds `split` of `spec`."""
    if spec.startswith(STUDIO_PREFIX):
        name = spec.removeprefix(STUDIO_PREFIX)
        known = studio_sources()
        if name not in known:
            raise MarbleError(
                f"no studio prompts called '{name}'; known: {', '.join(known) or 'none'}"
            )
        path = _studio_root() / name
    else:
        path = _expanded(spec)
    if path.is_file():
        if path.suffix not in {".txt", ".jsonl"}:
            raise MarbleError(f"{path}: prompts come as .txt or .jsonl, not '{path.suffix}'")
        return path
    if not path.is_dir():
        raise MarbleError(f"{spec}: no such prompt file or folder")
    for layout in LAYOUTS:
        candidate = path / layout.format(split=split)
        if candidate.is_file():
            return candidate
    wanted = ", ".join(layout.format(split=split) for layout in LAYOUTS)
    raise MarbleError(f"{path}: no prompts for split '{split}'; expected one of {wanted}")


def _expanded(spec: str) -> Path:
    """The path, with ~ written out; a name that no file can have (too long, ~nobody) is refused."""
    try:
        path = Path(spec).expanduser()
        path.stat()
        return path
    except FileNotFoundError:
        return path
    except (OSError, RuntimeError, ValueError) as error:
        raise MarbleError(f"{spec[:200]}: no such prompt file or folder ({error})") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered non-blank lines. Only newlines split, never the other Unicode separators."""
    try:
        with path.open(encoding="utf-8-sig", newline=None) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.strip()
    except UnicodeDecodeError as error:
        raise MarbleError(f"{path}: not UTF-8 text ({error.reason})") from None
    except OSError as error:
        raise MarbleError(f"{path}: cannot be read ({error.strerror})") from None


def _read_txt(path: Path, source: str) -> Iterator[Prompt]:
    for _, line in _lines(path):
        yield Prompt(line, source)


def _read_jsonl(path: Path, source: str) -> Iterator[Prompt]:
    for number, line in _lines(path):
        try:
            entry = json.loads(line)
            line.encode()  # a lone surrogate is no text: tokenizers and files refuse it
            if "\\u" in line:
                json.dumps(entry, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise MarbleError(
                f"{path}:{number}: holds half of a character (a lone surrogate); rewrite the line"
            ) from None
        except json.JSONDecodeError as error:
            raise MarbleError(f"{path}:{number}: not valid JSON ({error.msg})") from None
        except (ValueError, RecursionError):  # thousands of digits, or of brackets
            raise MarbleError(
                f"{path}:{number}: a number too long or nesting too deep to be read"
            ) from None
        if not isinstance(entry, dict):
            raise MarbleError(f"{path}:{number}: expected a JSON object, got {line[:40]}")
        text = entry.get("prompt")
        if not isinstance(text, str) or not text.strip():
            raise MarbleError(f"{path}:{number}: needs a 'prompt' that is a non-empty string")
        own = entry.get("source", source)
        if not isinstance(own, str):
            raise MarbleError(f"{path}:{number}: 'source' must be a string, got {own!r}")
        yield Prompt(text, own, entry)
