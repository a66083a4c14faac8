"""Two machines on one: two network namespaces, each with an address of its own, joined by a cable.

A machine that is lost is one whose every process is killed at once and whose cable is cut.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PORT = 29_555


def possible() -> bool:
    """Whether this machine lets us make namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"mbl-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


class Machine:
    """A namespace with one network card, and the launcher that runs in it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.name = f"mbl-{os.getpid()}-{index}"
        self.card = f"mbl{os.getpid() % 100_000}-{index}"
        self.address = f"10.77.0.{index + 1}"
        self.launcher: subprocess.Popen[bytes] | None = None

    def torchrun(self, said: Path, *words: object, restarts: int = 0) -> None:
        """`torchrun --nnodes 2 … -m marble …`, as one types it on each machine."""
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", "torch.distributed.run"]
        command += ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", str(restarts)]
        command += ["--rdzv-backend", "c10d", "--rdzv-id", "marble", "--local-addr", self.address]
        command += ["--rdzv-endpoint", f"10.77.0.1:{PORT}"]
        command += ["--rdzv-conf", f"is_host={int(self.index == 0)},timeout=300"]
        command += ["-m", "marble", *map(str, words), "--device", "cpu"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": self.card}
        # Else a launcher that is left never tells a new one where to meet (torch 2.13).
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with said.open("ab") as file:
            self.launcher = subprocess.Popen(
                command, stdout=file, stderr=file, env=environment, start_new_session=True
            )

    def wait(self, seconds: float = 400) -> int:
        assert self.launcher is not None
        return self.launcher.wait(seconds)

    def lose(self) -> None:
        """Power off: the cable first, so that no process can say goodbye."""
        _ip("-n", self.name, "link", "set", self.card, "down")
        self.kill()

    def back(self) -> None:
        """The machine is there again, with nothing running."""
        _ip("-n", self.name, "link", "set", self.card, "up")

    def kill(self) -> None:
        """Every process in the namespace, and those only."""
        pids = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        for pid in pids.stdout.split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        if self.launcher is not None:
            self.launcher.wait(30)


@contextmanager
def two_machines() -> Any:
    machines = [Machine(0), Machine(1)]
    first, second = machines
    made = []
    try:
        for machine in machines:
            _ip("netns", "add", machine.name)
            made.append(machine)
        _ip("link", "add", first.card, "type", "veth", "peer", "name", second.card)
        for machine in machines:
            _ip("link", "set", machine.card, "netns", machine.name)
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", machine.card)
            _ip("-n", machine.name, "link", "set", "lo", "up")
            _ip("-n", machine.name, "link", "set", machine.card, "up")
        yield machines
    finally:
        for machine in made:
            machine.kill()
            _ip("netns", "del", machine.name)


@contextmanager
def disk(folder: Path, megabytes: int = 64) -> Any:
    """A file system of its own at `folder`, which can be frozen: a shared disk out of reach."""
    image = folder.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(megabytes * 2**20)
    folder.mkdir()
    _run("mkfs.ext4", "-q", image)
    _run("mount", "-o", "loop", image, folder)
    try:
        yield folder
    finally:
        subprocess.run(["fsfreeze", "-u", str(folder)], capture_output=True)
        _run("umount", "-l", folder)


def freeze(folder: Path) -> None:
    """From now on whoever writes there waits, as with a network disk whose server is gone."""
    _run("fsfreeze", "-f", folder)


def thaw(folder: Path) -> None:
    _run("fsfreeze", "-u", folder)


def _ip(*words: object) -> None:
    _run("ip", *words)


def _run(*words: object) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True, timeout=30)
