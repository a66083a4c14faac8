"""Runs that use one GPU at the same time, by CUDA's multi-process service.

Without it the GPU turns from process to process, each alone with it for a while; the kernels of a
small model fill a small part of it. Twelve studio runs on an H200: 0.077 s per step in all, with
the service 0.051 s.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
USUAL = Path("/tmp/nvidia-mps")
"""CUDA's default: where a service that somebody has started is found, or what an ended one left."""
DRIVER, BLOCKING = "libcuda.so.1", 4
"""CUDA's driver, and its flag for threads that sleep until the GPU is done."""
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"


@contextmanager
def shared_gpu(
    jobs: int, device: str | None, say: Callable[[str], None]
) -> Iterator[dict[str, str]]:
    """What to add to the runs' environment; the service ends with the context.

    Nothing where there is one run at a time, no such service, or one that runs already.
    """
    control = shutil.which(CONTROL)
    if jobs < 2 or device == "cpu" or control is None or PIPE in os.environ:
        yield {}
        return
    if USUAL.exists() and _told(control, [], "get_server_list\n", dict(os.environ)):
        say("runs share the GPU by the multi-process service that runs here already")
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="marble-mps-") as folder:
        places = {PIPE: f"{folder}/pipe", LOG: f"{folder}/log"}
        for place in places.values():
            Path(place).mkdir()
        environment = {**os.environ, **places}
        if not _told(control, ["-d"], None, environment):
            say("runs take turns on the GPU: CUDA's multi-process service does not start here")
            yield {}
            return
        say("runs share the GPU by CUDA's multi-process service")
        try:
            yield places
        finally:
            _told(control, [], "quit\n", environment)


def _told(control: str, words: list[str], text: str | None, environment: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            [control, *words],
            input=text,
            text=True,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=30,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def wait_asleep() -> bool:
    """Lets this process's threads sleep while they wait for the GPU; whether that worked.

    By default they ask again and again, each on a core of its own: 24 runs on 16 cores had 56 to
    75 threads that wanted one. What this gains has not been measured. To be called before CUDA is
    used for the first time.
    """
    try:
        driver = ctypes.CDLL(DRIVER)
        count = ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
            return False
        done = [driver.cuDevicePrimaryCtxSetFlags(n, BLOCKING) for n in range(count.value)]
    except (OSError, AttributeError):  # no GPU's driver, or one that has no such call
        return False
    return not any(done)
