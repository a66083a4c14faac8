"""Processes for the cells, forked from one that has imported what every run needs.

A run of a small model takes a minute, and importing torch and diffusers a good part of one.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from marble.study.sharing import wait_asleep

PRELOAD = "marble.study.preload"


class Children:
    """The processes that are running; the first signal to the study is handed on to them."""

    def __init__(self, threads: int, *, shared: bool = False) -> None:
        """threads: of a child; numpy's are settled when it is imported, before the fork. shared:
        several of them share a GPU and its host's cores."""
        self.stopping = threading.Event()
        self._shared = shared
        self._threads = str(threads)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([PRELOAD])
        self._running: set[ForkServerProcess] = set()
        self._starting = threading.Lock()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Children:
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = self._threads
        try:
            forkserver.ensure_running()
        finally:
            if before is None:
                del os.environ["OMP_NUM_THREADS"]
            else:
                os.environ["OMP_NUM_THREADS"] = before
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):  # not the main thread: whoever owns it decides
                self._before[number] = signal.signal(number, lambda *_: self.stop())
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def stop(self) -> None:
        self.stopping.set()
        for child in list(self._running):
            child.terminate()

    def run(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        """As `python COMMAND` would, with `environment` and all output in `log`, to its end."""
        child = self._context.Process(
            target=_be,
            args=(list(command), str(log), dict(environment), self._shared),
            daemon=False,
        )
        with self._starting:  # one at a time: starting is not safe from many threads
            child.start()
        self._running.add(child)
        if self.stopping.is_set():
            child.terminate()
        child.join()
        self._running.discard(child)


def _be(command: list[str], log: str, environment: dict[str, str], shared: bool) -> None:
    """In the child: becomes `python COMMAND`."""
    os.setsid()  # Ctrl-C reaches the study alone, which hands it on once
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if isinstance(sys.stdout, io.TextIOWrapper):  # else its lines come after those of stderr
        sys.stdout.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    if "torch" in sys.modules and "OMP_NUM_THREADS" in environment:
        # Read from the environment when torch was imported, which was before the fork.
        sys.modules["torch"].set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if shared:
        wait_asleep()
    code = None
    try:
        _run(command)
    except SystemExit as end:  # and with it the frames that hold open files
        code = end.code
    atexit._run_exitfuncs()  # which a forked process leaves out
    sys.exit(code)


def _run(command: list[str]) -> None:
    if command[0] == "-m":
        sys.argv = [command[1], *command[2:]]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command)
        runpy.run_path(command[0], run_name="__main__")
