"""A run in miniature for the tests of survival, and processes that run it and can be killed.

Everything is importable by child processes: they come from a fork server that has the heavy imports
behind it, so that a process costs a second rather than ten.
"""

from __future__ import annotations

import io
import json
import multiprocessing as mp
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from safetensors.torch import load_file

from marble.cli import main
from marble.errors import MarbleError
from marble.models import compiling
from marble.models.sd3 import SD3
from marble.recipe import Recipe, load_recipe
from marble.training import setup
from marble.training.checkpoint import newest_complete
from marble.training.fsdp import held_here
from marble.training.processes import Processes
from marble.training.run import train

REWARDS = '''
import json, os, random, time
import numpy as np
import torch


def red(images, prompts, metadata):
    return images[:, 0].float().mean((1, 2)).div(255).tolist()


def blue(images, prompts, metadata):
    means = images[:, 2].float().mean((1, 2)).div(255).tolist()
    return [m if meta["source"] == "ocr" else None for m, meta in zip(means, metadata)]


def noisy(images, prompts, metadata):
    """Draws from every global generator: they must go on where they were."""
    dark = -images.float().mean((1, 2, 3)).div(255)
    drawn = torch.rand(len(images)) + torch.from_numpy(np.random.randn(len(images)))
    return [float(d) + 0.01 * (float(r) + random.gauss(0, 1)) for d, r in zip(dark, drawn)]


def dark(images, prompts, metadata):
    return (-images.float().mean((1, 2, 3)).div(255)).tolist()
'''
GENERAL = ["a cat", "a red dog", "two green birds", "the sea", "an old house", "a tree at night"]
OCR = ['a sign that says "TEA"', 'a door with "OPEN"', 'a mug with "JOE"']
# Depend on the clock or the machine's memory, and on nothing else. Every other key must agree.
CLOCK_KEYS = ("time/", "images_per_s", "memory_gb")


def make_world(folder: Path) -> Path:
    """Model, prompts, rewards and the recipe `survive.yaml`, which is returned."""
    folder.mkdir(parents=True, exist_ok=True)
    SD3.tiny(folder / "model", sample_size=4, layers=1)
    (folder / "toys.py").write_text(REWARDS)
    for name, lines in (("general", GENERAL), ("ocr", OCR)):
        (folder / name).mkdir()
        for split in ("train", "test"):
            (folder / name / f"{split}.txt").write_text("\n".join(lines) + "\n")
    recipe = {
        "description": "Small enough to be killed often.",
        "model": {
            "path": str(folder / "model"),
            "dtype": "fp32",
            "lora": {"rank": 2, "alpha": 4},
        },
        "data": {
            "sources": {"general": str(folder / "general"), "ocr": str(folder / "ocr")},
            "prompts_per_epoch": 3,
            "images_per_prompt": 4,
        },
        "rewards": {
            "train": [
                {"name": n, "reward": f"{folder}/toys.py:{n}"} for n in ("red", "blue", "noisy")
            ]
        },
        "balance": {"method": "marble", "every": 3},
        "rollout": {"steps": 3, "batch_size": 6},
        "optim": {"lr": 1e-3},
        "train": {
            "steps": 10,
            "batch_size": 3,
            "timesteps_fraction": 0.5,
            "checkpoint_every": 1,
            "probe": 4,
            "probe_every": 2,
        },
        "eval": {"every": 4, "prompts": 1, "at_start": True},
        "log": {"samples_every": 1, "samples": 2},
    }
    path = folder / "survive.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    return path


def rewards_override(path: Path | str, *names: str) -> str:
    """`rewards.train=…` naming functions of a Python file."""
    entries = ", ".join(f"{{name: {n}, reward: '{path}:{n}'}}" for n in names)
    return f"rewards.train=[{entries}]"


def run_here(
    recipe: Recipe | Path, out: Path, *overrides: str, resume: bool = False
) -> tuple[Any, str]:
    """A run in this process: its outcome (or the error it ended with), and what it printed."""
    if isinstance(recipe, Path):
        recipe = load_recipe(str(recipe), list(overrides))
    said, threads = io.StringIO(), torch.get_num_threads()
    torch.set_num_threads(1)  # a matrix of 16 numbers does not gain from a second one
    try:
        return train(
            recipe, out, device="cpu", resume=resume, console=Console(file=said, width=400)
        ), said.getvalue()
    except MarbleError as error:
        return error, said.getvalue()
    finally:
        torch.set_num_threads(threads)


# -- processes ------------------------------------------------------------------------------------

_context = mp.get_context("forkserver")
_context.set_forkserver_preload(
    ["_survive", "marble.report", "marble.models.sd3", "torch.utils.tensorboard", "fsspec"]
)


def spawn(target: Callable[..., None], *args: Any) -> Any:
    process = _context.Process(target=target, args=args)
    process.start()
    return process


def run_to_end(recipe: str, out: str, overrides: Sequence[str] = (), resume: bool = False) -> None:
    """The body of `marble train`, in a child process; its exit status says how it went."""
    torch.set_num_threads(1)
    loaded = load_recipe(f"{out}/config.yaml" if resume else recipe, list(overrides))
    try:
        train(loaded, Path(out), device="cpu", resume=resume, console=Console(file=sys.stderr))
    except MarbleError as error:
        print(f"marble: {error}", file=sys.stderr)
        os._exit(2)


def run_compiled(recipe: str, out: str, overrides: Sequence[str], resume: bool) -> None:
    """`run_to_end` with blocks that are traced and differentiated as on a GPU, but not translated:
    that takes minutes."""
    compiling.Compiled.__init__.__kwdefaults__["backend"] = "aot_eager"
    run_to_end(recipe, out, [*overrides, "model.compile=true"], resume)


def _cli(args: Sequence[str], said: str) -> None:
    """`marble …` with both its outputs going to a file."""
    torch.set_num_threads(1)
    file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.argv = ["marble", *args]
    main()


def start_cli(said: Path, *args: object) -> Any:
    """`marble …` as a process of its own, which writes what it says into the file `said`."""
    return spawn(_cli, [str(a) for a in args], str(said))


def wait_for(condition: Callable[[], bool], process: Any, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.is_alive() and time.monotonic() < deadline
        time.sleep(0.002)


def run_commands(
    words: Sequence[str], said: Mapping[int, Path], **environment: str
) -> list[int | None]:
    """`marble …` as one gloo process for each of `said`, which get what it says; the statuses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        spawn(_rank, rank, len(said), port, _cli_in, environment, list(words), str(file))
        for rank, file in said.items()
    ]
    for process in ranks:
        process.join(120)
    for process in ranks:
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in ranks]


def _cli_in(environment: Mapping[str, str], args: Sequence[str], said: str) -> None:
    os.environ.update(environment)
    _cli(args, said)


def _rank(rank: int, size: int, port: int, body: Callable[..., None], *args: Any) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        ACCELERATE_USE_CPU="true",
    )
    body(*args)


def build_only(recipe: str, out: str, overrides: Sequence[str], resume: bool) -> None:
    """Builds a run's parts; writes how many frozen numbers of the denoiser this process holds."""
    loaded, processes = load_recipe(recipe, list(overrides)), Processes("cpu")
    parts = setup.build(loaded, processes.device, processes.size)
    held = held_here(parts.adapter.transformer)
    (Path(out) / f"held-{processes.rank}").write_text(str(held))
    processes.close()


def run_processes(
    size: int,
    recipe: Path,
    out: Path,
    *overrides: str,
    resume: bool = False,
    body: Callable[..., None] = run_to_end,
) -> list[int | None]:
    """A run of `size` gloo processes; their exit statuses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        spawn(_rank, rank, size, port, body, str(recipe), str(out), overrides, resume)
        for rank in range(size)
    ]
    for process in ranks:
        process.join(240)
    for process in ranks:
        if process.is_alive():
            process.kill()
            process.join()
    return [process.exitcode for process in ranks]


def kill_at(process: Any, moment: float, trigger: Callable[[], bool] | None = None) -> bool:
    """`kill -9` after `moment` seconds from now (or from when `trigger` first holds, if given).

    False when the process ended before.
    """
    started = None if trigger else time.monotonic()
    while process.is_alive():
        if started is None and trigger is not None and trigger():
            started = time.monotonic()
        if started is not None and time.monotonic() - started >= moment:
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            return True
        time.sleep(0.0005)
    process.join()
    return False


# -- what a run left behind -----------------------------------------------------------------------


def rows(run: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row without what the clock decides."""
    return {k: v for k, v in row.items() if not k.startswith(CLOCK_KEYS) and k != "seconds"}


def final_state(run: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """All tensors of the newest checkpoint, by file and name, and its JSON part."""
    checkpoint, _ = newest_complete(run / "checkpoints")
    tensors = {
        f"{path.relative_to(checkpoint)}:{name}": tensor
        for path in sorted(checkpoint.rglob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    meta = json.loads((checkpoint / "state" / "trainer.json").read_text())
    meta["recorder"].pop("seconds")
    meta["recorder"].pop("metrics")  # bytes of rows that hold times
    meta["recorder"].pop("evals")
    return tensors, meta


def assert_same_run(a: Path, b: Path) -> None:
    """Bit for bit: every tensor and value of the state, every row, every picture and table."""
    (tensors_a, meta_a), (tensors_b, meta_b) = final_state(a), final_state(b)
    assert tensors_a.keys() == tensors_b.keys()
    for name, tensor in tensors_a.items():
        assert tensor.dtype == tensors_b[name].dtype, name
        assert tensor.numpy().tobytes() == tensors_b[name].numpy().tobytes(), name
    assert meta_a == meta_b
    for name in ("metrics.jsonl", "evals.jsonl"):
        assert [timeless(r) for r in rows(a, name)] == [timeless(r) for r in rows(b, name)], name
    files_a, files_b = (
        {
            p.relative_to(run).as_posix(): p.read_bytes()
            for kind in ("samples", "evals", "advantages")
            for p in (run / kind).rglob("*")
            if p.is_file()
        }
        for run in (a, b)
    )
    assert files_a.keys() == files_b.keys()
    assert [n for n in files_a if files_a[n] != files_b[n]] == []
