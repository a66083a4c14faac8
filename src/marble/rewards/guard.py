"""What a reward's code may not do to the process it runs in: end it, move it, silence it.

A reward in a process of its own (`rewards.NAME.isolate`) cannot do any of it; this is for the
others. What ends the process below Python (a crash, `exit` of the C library) only isolation
survives.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

import torch

from marble.rewards.place import place

leave = os._exit
"""Ends this process at once: the real one, which a reward's code does not get (`_os_exit`)."""
_running = threading.local()


class Ended(BaseException):
    """A reward's code called `os._exit`; no `except Exception` of its own is to hide that."""


class Relayed(Exception):
    """An error told in words: of another process, or of a kind that must not be raised."""


@contextmanager
def contained(tell: Callable[[str], None] = lambda text: None) -> Iterator[None]:
    """Runs a reward's code. `sys.exit` in it becomes an error; what it changed is put right.

    `tell` gets a line for every change of the process that was undone.
    """
    before = _Surroundings()
    try:
        with no_exit():
            yield
    except BaseException as error:
        failure = as_failure(error)
        if failure is error:
            raise
        raise failure from error
    finally:
        before.restore(tell)


@contextmanager
def no_exit() -> Iterator[None]:
    """In this thread `os._exit` raises, as `sys.exit` does: with status 0, a run that ends in the
    middle would look like one that went well."""
    os._exit = _os_exit  # for good: a reward may go on after its deadline, or keep the function
    outer = getattr(_running, "process", None)
    _running.process = os.getpid()
    try:
        yield
    finally:
        _running.process = outer


def _os_exit(status: int) -> NoReturn:
    """`os._exit` once a reward's code has run here. A process that it forked ends as it wants."""
    if getattr(_running, "process", None) == os.getpid():
        raise Ended(f"os._exit({status})")
    if threading.current_thread() is not threading.main_thread():  # nobody would get the exception
        caller = sys._getframe(1)
        where = f"{caller.f_code.co_filename}, line {caller.f_lineno}"
        os.write(2, f"marble: a thread ended the process: {where}: os._exit({status})\n".encode())
        leave(status or 1)
    leave(status)


def as_failure(error: BaseException) -> BaseException:
    """The error itself, or an ordinary one in place of one that would end the process.

    Ctrl-C arrives in the main thread only: a KeyboardInterrupt anywhere else is the reward's own.
    """
    asked = isinstance(error, KeyboardInterrupt)
    if isinstance(error, Exception) or (
        asked and threading.current_thread() is threading.main_thread()
    ):
        return error
    return Relayed(f"{said(error)}, which would have ended the run")


def said(error: BaseException) -> str:
    """An error in one line, with the place in the user's code where it arose."""
    text = " ".join(str(error).split())
    if isinstance(error, Relayed):
        return text
    told = f"{type(error).__name__}: {text}" if text else type(error).__name__
    told = text if isinstance(error, Ended) else told
    where = place(error)
    return f"{where}: {told}" if where else told


class _Surroundings:
    """Working folder, standard streams and default number format, as they were."""

    def __init__(self) -> None:
        self.folder = _folder()
        self.dtype = torch.get_default_dtype()
        self.kept: dict[int, int] = {}
        for number in (1, 2):
            with suppress(OSError):
                self.kept[number] = os.dup(number)

    def restore(self, tell: Callable[[str], None]) -> None:
        if self.folder is not None and _folder() != self.folder:
            with suppress(OSError):
                os.chdir(self.folder)
            tell("changed the working folder, which was changed back")
        if torch.get_default_dtype() != self.dtype:
            torch.set_default_dtype(self.dtype)
            tell("changed torch's default dtype, which was changed back")
        closed = [name for name in ("stdout", "stderr") if self._reopen(name)]
        for kept in self.kept.values():
            os.close(kept)
        if closed:
            tell(f"closed {' and '.join(closed)}, which was opened again")

    def _reopen(self, name: str) -> bool:
        number = {"stdout": 1, "stderr": 2}[name]
        kept = self.kept.get(number)
        if kept is None:
            return False
        moved = not _same_file(number, kept)
        if moved:
            os.dup2(kept, number)
        closed = bool(getattr(getattr(sys, name), "closed", False))
        if closed:
            setattr(sys, name, os.fdopen(number, "w", buffering=1, closefd=False))
        return moved or closed


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _same_file(one: int, other: int) -> bool:
    try:
        return os.path.samestat(os.fstat(one), os.fstat(other))
    except OSError:
        return False
