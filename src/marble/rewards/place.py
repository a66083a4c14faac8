"""Where in a user's code an error arose: what a traceback says, in a few words."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

_OWN = str(Path(__file__).parents[1])
_LIBRARIES = tuple({sysconfig.get_paths()[key] for key in ("stdlib", "purelib", "platlib")})


def place(error: BaseException) -> str:
    """`warm.py, line 7`: the innermost line that is neither marble's nor a library's; "" where
    there is none, as for an error of marble itself."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((_OWN, *_LIBRARIES, "<")):
            return f"{Path(frame.filename).name}, line {frame.lineno}"
    return ""
