"""The edge of the command: every way in which it ends is one line and a status.

A user's mistake is a `MarbleError`: its message, status 2. What is left is a fault of marble (or of
code that it was told to run): one line, status 1, and a file with the traceback to send us.
"""

from __future__ import annotations

import faulthandler
import os
import platform
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from marble import __version__
from marble.errors import LostProcess, MarbleError

LONGEST = 2000
"""Characters of a line; a value that a user mistyped may be a whole file."""


def run(command: Callable[[], None]) -> None:
    """Runs the command and ends the process where it fails."""
    with suppress(Exception):  # a crash below Python says where; without stderr there is no place
        faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):  # where σ or → cannot be printed, ? is
        with suppress(Exception):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        command()
    except MarbleError as error:
        # Processes fail together, and one of them says why; but who lost another may be alone.
        if _rank() == 0 or isinstance(error, LostProcess):
            say(str(error))
        sys.exit(2)
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(130)
    except Exception as error:
        say(unexpected(error))
        sys.exit(1)


def say(text: str) -> None:
    """One line on stderr, whatever the text holds."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text).strip()
    if len(line) > LONGEST:  # what to do stands at the end
        line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
    where = f"process {_rank()}: " if _rank() else ""
    print(f"marble: {where}{line}".encode(errors="backslashreplace").decode(), file=sys.stderr)


def unexpected(error: Exception) -> str:
    """Words for a fault that is not the user's, with the place of its traceback."""
    kind = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    kept = _keep(error)
    where = f"the traceback is in {kept}: please send it" if kept else "please report it"
    return f"unexpected {kind[:400]}; this should not happen; {where}"


def _keep(error: Exception) -> Path | None:
    """Writes the traceback into the current folder, or else the system's for temporary files."""
    name = f"marble-error-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    head = f"marble {__version__}, Python {platform.python_version()}, {platform.platform()}\n"
    head += f"{' '.join(sys.argv)}\n\n"
    text = head + "".join(traceback.format_exception(error))
    for folder in (Path.cwd, lambda: Path(tempfile.gettempdir())):
        try:
            path = folder() / name
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return path
        except OSError:
            continue
    return None


def _rank() -> int:
    rank = os.environ.get("RANK", "0")
    return int(rank) if rank.isdecimal() else 0
