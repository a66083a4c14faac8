"""Rewards by name: the built-in ones, or any callable of yours."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from marble.errors import MarbleError
from marble.rewards.base import Reward, RewardLike, as_reward
from marble.rewards.guard import contained, said
from marble.rewards.locate import absent
from marble.rewards.options import construct
from marble.rewards.weights import studio_folder


@dataclass(frozen=True)
class Entry:
    """Where a built-in reward lives. Nothing is imported before it is asked for."""

    target: str
    about: str
    options: Callable[[], Mapping[str, Any]] = dict
    #: Never trained on by the built-in recipes: for evaluation.
    held_out: bool = False


def _studio(folder: str, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"path": studio_folder(folder), **more}


def _studio_aesthetic() -> dict[str, Any]:
    head = studio_folder("aesthetic") / "head.safetensors"
    return {"path": studio_folder("pick"), "head": head}


_HERE = "marble.rewards"
REGISTRY: dict[str, Entry] = {
    "clipscore": Entry(f"{_HERE}.clipscore:CLIPScore", "agreement with the prompt (CLIP-L)"),
    "pickscore": Entry(f"{_HERE}.pickscore:PickScore", "what people prefer (CLIP-H)"),
    "aesthetic": Entry(f"{_HERE}.aesthetic:Aesthetic", "LAION's aesthetic predictor"),
    "hpsv2": Entry(f"{_HERE}.hpsv2:HPSv2", "what people prefer, HPSv2.1 (CLIP-H)"),
    "imagereward": Entry(f"{_HERE}.imagereward:ImageReward", "what people prefer (BLIP)"),
    "geneval": Entry(f"{_HERE}.geneval:GenEval", "objects, counts, colours, places (Mask2Former)"),
    "ocr": Entry(f"{_HERE}.ocr:OCR", "the quoted text can be read in the picture"),
    "unifiedreward": Entry(
        f"{_HERE}.unifiedreward:UnifiedReward", "a vision-language judge behind a server"
    ),
    "remote": Entry(f"{_HERE}.remote:Remote", "a reward of a `marble serve` elsewhere"),
    "diversity": Entry(
        f"{_HERE}.diversity:Diversity", "how much a prompt's pictures differ (CLIP-L, or pixels)"
    ),
    "studio-diversity": Entry(
        f"{_HERE}.diversity:Diversity",
        "how much a prompt's pictures differ, studio model",
        _studio("clip"),
    ),
    "studio-clip": Entry(
        f"{_HERE}.clipscore:CLIPScore", "agreement with the prompt, studio model", _studio("clip")
    ),
    "studio-pick": Entry(
        f"{_HERE}.pickscore:PickScore", "preference, studio model", _studio("pick")
    ),
    "studio-aesthetic": Entry(
        f"{_HERE}.aesthetic:Aesthetic", "vivid, warm, centred; studio model", _studio_aesthetic
    ),
    "studio-geneval": Entry(
        f"{_HERE}.geneval:GenEval",
        "objects, counts, colours, places; studio detector",
        _studio("detector", detector="centernet"),
    ),
    "studio-clip2": Entry(
        f"{_HERE}.clipscore:CLIPScore", "another studio CLIP", _studio("clip2"), held_out=True
    ),
    "studio-realism": Entry(
        f"{_HERE}.realism:Realism", "clean and coherent", _studio("realism"), held_out=True
    ),
}


def names() -> list[str]:
    """The built-in rewards."""
    return sorted(REGISTRY)


def load(
    reward: str,
    /,
    *,
    sources: Iterable[str] | None = None,
    isolate: bool | float = False,
    **options: Any,
) -> RewardLike:
    """A reward by registry name, ``package.module:callable`` or ``file.py:callable``.

    ``options`` go to its constructor (``device`` and ``name`` always work). ``sources`` restricts
    it to prompts of those sources. ``isolate`` puts it into a process of its own, with at most that
    many GB of main memory (True: half of the machine's).

    >>> load("ocr", engine="ppocr-rec", sources=["ocr"])  # doctest: +SKIP
    """
    built: Any
    if isolate:
        from marble.rewards.isolated import Isolated

        if ":" not in reward:
            _entry(reward)  # an unknown name costs no process
        built = Isolated(reward, options, memory_gb=None if isolate is True else float(isolate))
    elif ":" in reward:
        built = _load_own(reward, options)
    else:
        entry = _entry(reward)
        options = {"name": reward, **entry.options(), **options}
        built = construct(_resolve(entry.target), options, f"reward {reward}")
    if sources is not None:
        built.sources = frozenset([sources] if isinstance(sources, str) else sources)
    return built


def check(reward: str, /, **options: Any) -> str:
    """What a reward would run on, without loading it; a ``MarbleError`` says what is missing."""
    if ":" in reward:
        target = _own(reward)
        _check_call(reward, target, options)
    else:
        entry = _entry(reward)
        target, options = _resolve(entry.target), {**entry.options(), **options}
    if inspect.isclass(target) and issubclass(target, Reward):
        with _one_line(reward):
            return target.check(**options)
    return f"your {reward}"


@contextmanager
def _one_line(reward: str) -> Iterator[None]:
    """Whatever a user's code raises outside scoring, as one line that names the reward."""
    try:
        with contained():
            yield
    except MarbleError:
        raise
    except Exception as error:
        raise MarbleError(f"reward {reward}: {said(error)}") from error


def _entry(reward: str) -> Entry:
    if reward in REGISTRY:
        return REGISTRY[reward]
    if reward.endswith(".py"):
        raise MarbleError(f"reward {reward}: a file; name the function in it, {reward}:FUNCTION")
    near = difflib.get_close_matches(reward, REGISTRY, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]}?" if near else "."
    raise MarbleError(
        f"unknown reward {reward!r}{hint} Built in: {', '.join(names())}. Your own: "
        "package.module:callable or file.py:callable"
    )


def _own(reward: str) -> Any:
    """The user's function, class or reward."""
    target = _resolve(reward)
    if not (callable(target) or isinstance(target, RewardLike)):
        raise MarbleError(f"reward {reward}: {target!r:.60} is neither a function nor a reward")
    return target


def _check_call(reward: str, target: Any, options: Mapping[str, Any]) -> None:
    """Raises for a function that cannot be called as rewards are."""
    if inspect.isclass(target) or isinstance(target, RewardLike):
        return
    own = {key: value for key, value in options.items() if key not in ("device", "name")}
    try:
        inspect.signature(target).bind(None, None, None, **own)
    except TypeError as error:
        raise MarbleError(
            f"reward {reward}: {error}; it is called with (images, prompts, metadata) and its "
            "options"
        ) from None
    except ValueError:  # of code that is not Python's
        return


def _load_own(reward: str, options: dict[str, Any]) -> RewardLike:
    target = _own(reward)
    device, name = options.pop("device", None), options.pop("name", None)
    with _one_line(reward):
        if inspect.isclass(target):
            target = construct(target, options, f"reward {reward}")
        elif options:
            target = functools.partial(target, **options)
        built = as_reward(target, name or reward.rsplit(":", 1)[1])
        return built if device is None else built.to(device)


def _resolve(target: str) -> Any:
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise MarbleError(
            f"reward {target!r}: name your own as package.module:callable or file.py:callable"
        )
    module = _from_file(Path(place)) if place.endswith(".py") else _from_package(place, target)
    try:
        return getattr(module, attribute)
    except AttributeError:
        near = difflib.get_close_matches(attribute, dir(module), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise MarbleError(f"reward {target}: {place} has no {attribute!r}{hint}") from None


def _from_package(place: str, target: str) -> ModuleType:
    try:
        with _one_line(target):
            return importlib.import_module(place)
    except MarbleError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        missing = error.__cause__
        extra = f'; install it, e.g. with pip install "marble-rl[rewards]" ({missing.name})'
        raise MarbleError(f"reward {target}: cannot import {place}: {missing}{extra}") from missing


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise absent(path)
    spec = importlib.util.spec_from_file_location(f"marble_user_reward_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        with contained():
            spec.loader.exec_module(module)
    except Exception as error:
        raise MarbleError(f"reward file {path}: {said(error)}") from error
    return module
