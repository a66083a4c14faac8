"""Constructors called with a user's options: a mistake is one clear line."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from marble.errors import MarbleError


def construct(target: Callable[..., Any], options: Mapping[str, Any], who: str) -> Any:
    """``target(**options)``, or an error that names the option at fault and those there are."""
    signature = inspect.signature(target)
    try:
        signature.bind(**options)
    except TypeError as error:
        known = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        unknown = next((name for name in options if name not in known), None)
        if unknown is None:
            raise MarbleError(f"{who}: {error}") from error
        near = difflib.get_close_matches(unknown, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        raise MarbleError(f"{who} has no option {unknown!r}; {hint}") from error
    return target(**options)
