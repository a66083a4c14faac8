"""A reward server under abuse: 64 clients, 50 slow ones and 1,000 half-open ones at once.

    python scripts/soak_serve.py --seconds 300 --json benchmarks/results/soak_serve.json

Starts `marble serve` on this machine with a reward whose right answer is known, then for the time
given

- `--clients` ask for scores and compare every answer with what it must be,
- `--slow` send a request's body a few bytes at a time,
- `--half-open` connect, send half a head or nothing, and connect again when they are closed,

and at the end looks at how soon a lone client is answered again, how much memory the server took,
and how long its log is. Everything stays on 127.0.0.1. Status 1 if a score was wrong, a client got
no answer in the end, or a bound was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

REWARD = """
def level(images, prompts, metadata):
    return [float(image.float().mean()) + len(prompt) for image, prompt in zip(images, prompts)]
"""
MEMORY_MB = 1500
"""Bound on the server and its worker together; most of it is torch, twice."""
LOG_BYTES = 200_000
RECOVERY_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--slow", type=int, default=50)
    parser.add_argument("--half-open", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    with tempfile.TemporaryDirectory() as folder:
        found = soak(Path(folder), args, soft)
    print(json.dumps(found, indent=1))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    sys.exit(0 if found["passed"] else 1)


def soak(folder: Path, args: argparse.Namespace, files: int) -> dict[str, Any]:
    (folder / "soak.py").write_text(REWARD)
    log = folder / "log"
    with log.open("w") as file:
        server = subprocess.Popen(
            [sys.executable, "-m", "marble", "serve", f"{folder}/soak.py:level", "--port", "0"],
            stdout=file,
            stderr=file,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            # The server's limit is the usual one, not what this client needs.
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 1024), 1024)),
        )
    try:
        port = _port(log, server)
        return asyncio.run(_soak(port, server, log, args))
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()


def _port(log: Path, server: subprocess.Popen[bytes]) -> int:
    until = time.monotonic() + 120
    while time.monotonic() < until and server.poll() is None:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())
        if found:
            return int(found.group(1))
        time.sleep(0.1)
    raise SystemExit(f"the server did not start: {log.read_text()}")


async def _soak(
    port: int, server: subprocess.Popen[bytes], log: Path, args: argparse.Namespace
) -> dict[str, Any]:
    world = _World(port, time.monotonic() + args.seconds)
    await world.ask(0)  # warm
    start = _memory(server)
    crowd = [asyncio.create_task(world.half_open(i)) for i in range(args.half_open)]
    crowd += [asyncio.create_task(world.slow(i)) for i in range(args.slow)]
    watch = asyncio.create_task(_watch(server, world))
    clients = [asyncio.create_task(world.client(i)) for i in range(args.clients)]
    await asyncio.gather(*clients)
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    began = time.monotonic()
    await world.ask(1)
    recovery = time.monotonic() - began
    watch.cancel()
    count, waits = world.count, sorted(world.waits)
    found: dict[str, Any] = {
        "seconds": args.seconds,
        "clients": args.clients,
        "slow": args.slow,
        "half_open": args.half_open,
        "answered": count["right"] + count["wrong"],
        "wrong": count["wrong"],
        "retries": {k: count[k] for k in sorted(count) if k not in ("right", "wrong")},
        "answer_s": {
            "median": round(waits[len(waits) // 2], 3),
            "p99": round(waits[int(0.99 * len(waits))], 3),
            "longest": round(waits[-1], 3),
        },
        "slow_answers": dict(sorted(world.slow_answers.items())),
        "half_open_connections": world.opened,
        "recovery_s": round(recovery, 3),
        "memory_mb": {"start": round(start / 1e6), "most": round(world.memory / 1e6)},
        "log_bytes": log.stat().st_size,
        "tracebacks": log.read_text(errors="replace").count("Traceback"),
        "server_alive": server.poll() is None,
    }
    found["passed"] = bool(
        not found["wrong"]
        and found["answered"] >= args.clients
        and found["server_alive"]
        and not found["tracebacks"]
        and recovery < RECOVERY_S
        and world.memory < MEMORY_MB * 1e6
        and found["log_bytes"] < LOG_BYTES
    )
    return found


async def _watch(server: subprocess.Popen[bytes], world: _World) -> None:
    while True:
        world.memory = max(world.memory, _memory(server))
        await asyncio.sleep(0.5)


def _memory(server: subprocess.Popen[bytes]) -> int:
    """Of the server and its worker."""
    process = psutil.Process(server.pid)
    return sum(p.memory_info().rss for p in (process, *process.children(recursive=True)))


class _World:
    def __init__(self, port: int, until: float) -> None:
        self.port, self.until = port, until
        self.count: Counter[str] = Counter()
        self.slow_answers: Counter[str] = Counter()
        self.waits: list[float] = []
        self.opened = 0
        self.memory = 0
        self.random = random.Random(0)

    async def client(self, number: int) -> None:
        """Asks on and on; a request that gets no answer is sent again until it does."""
        turn = 0
        while time.monotonic() < self.until:
            await self.ask(number * 100_003 + turn)
            turn += 1
            await asyncio.sleep(0.2 * self.random.random())

    async def ask(self, seed: int) -> None:
        body, right = _request(seed)
        began = time.monotonic()
        pause = 0.05
        while time.monotonic() < self.until + 60:
            status, answer = await self._post(body)
            if status == 200:
                wrong = json.loads(answer)["scores"] != right
                self.count["wrong" if wrong else "right"] += 1
                self.waits.append(time.monotonic() - began)
                return
            self.count[f"status {status}" if status else "closed"] += 1
            await asyncio.sleep(pause * (0.5 + self.random.random()))
            pause = min(2 * pause, 2.0)
        self.count["never answered"] += 1
        self.count["wrong"] += 1

    async def _post(self, body: bytes) -> tuple[int, bytes]:
        writer = None
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(_head(len(body)) + body)
            raw = await asyncio.wait_for(reader.read(), 60)
            head, _, content = raw.partition(b"\r\n\r\n")
            return (int(head.split()[1]), content) if head else (0, b"")
        except (OSError, TimeoutError, IndexError, ValueError):
            return 0, b""
        finally:
            if writer is not None:
                writer.close()

    async def slow(self, number: int) -> None:
        """A body that never comes to its end."""
        while time.monotonic() < self.until:
            status = 0
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(_head(100_000))
                answer = asyncio.create_task(reader.read(200))
                while not answer.done() and time.monotonic() < self.until:
                    writer.write(b" " * 10)
                    await asyncio.sleep(0.5)
                raw = answer.result() if answer.done() else b""
                answer.cancel()
                status = int(raw.split()[1]) if raw.startswith(b"HTTP") else 0
                writer.close()
            except (OSError, IndexError, ValueError):
                await asyncio.sleep(0.1)
            self.slow_answers[f"status {status}" if status else "closed"] += 1

    async def half_open(self, number: int) -> None:
        """Half a head, or nothing, for as long as it lasts; then again."""
        await asyncio.sleep(self.random.random())
        while time.monotonic() < self.until:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                self.opened += 1
                if number % 2:
                    writer.write(b"POST /v1/rewards/level/score HTTP/1.1\r\nhost: x\r\n")
                await asyncio.wait_for(reader.read(100), max(0.1, self.until - time.monotonic()))
                writer.close()
            except (OSError, TimeoutError):
                pass
            await asyncio.sleep(0.5 + self.random.random())


def _head(length: int) -> bytes:
    return (
        b"POST /v1/rewards/level/score HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % length
    )


def _request(seed: int) -> tuple[bytes, list[float]]:
    """Three flat pictures with prompts of some length, and what they must score."""
    items, right = [], []
    for i in range(3):
        level, length = (seed * 7 + i * 50) % 256, (seed + i) % 40 + 1
        buffer = io.BytesIO()
        Image.fromarray(np.full((32, 32, 3), level, np.uint8)).save(buffer, "PNG")
        image = base64.b64encode(buffer.getvalue()).decode()
        items.append({"image": image, "prompt": "x" * length, "metadata": {}})
        right.append(float(level + length))
    return json.dumps({"items": items}).encode(), right


if __name__ == "__main__":
    main()
