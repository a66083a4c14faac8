"""Pictures a second of a `remote` reward over 1, 2 and 4 servers, and with one of them killed.

    python benchmarks/reward_servers.py --json benchmarks/results/reward_servers.json

The servers run on this machine, on 127.0.0.1. Two rewards are measured: `waits`, which takes 10 ms
a picture without using a core, as a model on another machine's GPU would; and `studio-clip`, which
computes here, so that more servers help only as far as there are cores. Rounds of the server
numbers alternate within one run; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from marble.rewards import RewardSet, load

REWARD = """
import time

def waits(images, prompts, metadata):
    time.sleep(0.01 * len(images))
    return images.float().mean((1, 2, 3)).tolist()
"""
NUMBERS = (1, 2, 4)
PICTURES = 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), args.rounds)
    print(json.dumps(found, indent=1))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    (folder / "mine.py").write_text(REWARD)
    servers = [_start(folder, i) for i in range(max(NUMBERS))]
    try:
        urls = [_address(folder / f"log{i}", server) for i, server in enumerate(servers)]
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (PICTURES, 3, 64, 64), generator=generator).to(torch.uint8)
        result: dict[str, Any] = {
            "machine": {"cores": os.cpu_count(), "platform": platform.platform()},
            "pictures": PICTURES,
            "rounds": rounds,
        }
        for name in ("waits", "studio-clip"):
            result[name] = _table(name, urls, images, rounds)
        result["waits"]["one of 4 killed"] = _killed("waits", urls, images, servers[-1])
        return result
    finally:
        for server in servers:
            server.kill()
            server.wait()


def _table(name: str, urls: list[str], images: torch.Tensor, rounds: int) -> dict[str, Any]:
    sets = {n: RewardSet([_remote(name, urls[:n])]) for n in NUMBERS}
    reference = _score(sets[1], images)
    seconds: dict[int, list[float]] = {n: [] for n in NUMBERS}
    for _ in range(rounds):
        for n, rewards in sets.items():
            began = time.perf_counter()
            scores = _score(rewards, images)
            seconds[n].append(time.perf_counter() - began)
            assert abs(scores - reference).max() < 1e-6  # batches of another size, the same scores
    rates = {n: PICTURES / statistics.median(times) for n, times in seconds.items()}
    return {
        f"{n} servers" if n > 1 else "1 server": {
            "pictures_per_s": round(rates[n], 1),
            "times_one": round(rates[n] / rates[1], 2),
        }
        for n in NUMBERS
    }


def _killed(
    name: str, urls: list[str], images: torch.Tensor, server: subprocess.Popen[bytes]
) -> dict[str, Any]:
    """Ten batches in a row; after the third, one server is killed."""
    rewards = RewardSet([_remote(name, urls)])
    reference = _score(rewards, images)
    seconds, said = [], []
    for batch in range(10):
        if batch == 3:
            server.kill()
        began = time.perf_counter()
        assert abs(_score(rewards, images) - reference).max() < 1e-6
        seconds.append(time.perf_counter() - began)
        said += rewards.warnings()
    return {
        "batches": len(seconds),
        "failed": 0,
        "pictures_per_s_before": round(PICTURES / statistics.median(seconds[:3]), 1),
        "pictures_per_s_after": round(PICTURES / statistics.median(seconds[4:]), 1),
        "batch_during_which_it_died_s": round(seconds[3], 3),
        "told": len(said),
    }


def _remote(name: str, urls: list[str]) -> Any:
    return load("remote", url=urls, reward=name, name=name, batch_size=12)


def _score(rewards: RewardSet, images: torch.Tensor) -> Any:
    count = len(images)
    return rewards.score(images, ["a red circle"] * count, [{"source": "general"}] * count)


def _start(folder: Path, number: int) -> subprocess.Popen[bytes]:
    with (folder / f"log{number}").open("w") as log:
        command = [sys.executable, "-m", "marble", "serve", f"{folder}/mine.py:waits"]
        command += ["studio-clip", "--port", "0", "--device", "cpu", "--no-isolate"]
        return subprocess.Popen(
            command,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def _address(log: Path, server: subprocess.Popen[bytes]) -> str:
    until = time.monotonic() + 180
    while time.monotonic() < until and server.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        if found:
            return found.group()
        time.sleep(0.1)
    raise SystemExit(f"a server did not start: {log.read_text()}")


if __name__ == "__main__":
    main()
