"""How fast the studio draws and scores, part by part, and how fast its pipeline opens."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from itertools import chain, cycle, islice, pairwise
from typing import Any

import torch

from marble.data import Sample
from marble.errors import MarbleError
from marble.models.base import Adapter
from marble.models.build import build_adapter
from marble.models.conditioning import PromptCache
from marble.models.fetch import find_model
from marble.recipe import Recipe, load_recipe
from marble.rewards import RewardSet
from marble.training.processes import Processes
from marble.training.setup import build_rewards, check, evaluation_samples

# Nothing of marble in it: this is what anyone with diffusers waits for.
OPEN = """
import json, sys, time
began = time.perf_counter()
from diffusers import StableDiffusion3Pipeline
from transformers import CLIPTextModelWithProjection, PreTrainedTokenizerFast, T5EncoderModel
imported = time.perf_counter()
StableDiffusion3Pipeline.from_pretrained(sys.argv[1])
opened = time.perf_counter()
print(json.dumps({"imports_s": imported - began, "pipeline_s": opened - imported}))
"""


def bench_studio(
    *, pictures: int = 64, rounds: int = 5, device: str | None = None
) -> dict[str, Any]:
    """Seconds by part of `pictures` held-out prompts drawn, decoded and scored by every reward.

    One round more than `rounds` runs, to warm up; figures are medians. Prompts are encoded anew in
    each round. `cpu_s` is the processor time of a round over all threads, which other load on the
    machine hardly changes. `opening` is measured in a fresh process that imports no marble.
    """
    recipe = load_recipe("studio")
    check(recipe, training=False)
    opening = [_open(str(find_model(recipe.model.path))) for _ in range(min(rounds, 3))]
    processes = Processes(device)
    rewards, _ = build_rewards(recipe, processes.device)
    adapter = build_adapter(recipe, processes.device)
    samples = _mixed(evaluation_samples(recipe), pictures)
    timed = [_round(adapter, rewards, samples, recipe) for _ in range(1 + rounds)][1:]
    parts = {part: statistics.median(seconds[part] for seconds, _ in timed) for part in timed[0][0]}
    return {
        "seconds": parts,
        "cpu_s": statistics.median(cpu for _, cpu in timed),
        "opening": {key: statistics.median(one[key] for one in opening) for key in opening[0]},
        "target": {"total_s": 8.0, "pipeline_s": 2.0},
        "setup": {"pictures": pictures, "steps": recipe.rollout.steps, "rounds": rounds},
        "device": processes.device.type,
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def _mixed(samples: list[Sample], count: int) -> list[Sample]:
    """`count` samples, the sources in turn: the shares of a training epoch."""
    sources: dict[str, list[Sample]] = {}
    for sample in samples:
        sources.setdefault(sample.prompt.source, []).append(sample)
    in_turn = list(chain.from_iterable(zip(*sources.values())))
    return list(islice(cycle(in_turn), count))


def _round(
    adapter: Adapter, rewards: RewardSet, samples: list[Sample], recipe: Recipe
) -> tuple[dict[str, float], float]:
    """Seconds by part, and processor seconds of it all."""
    prompts = [s.prompt.text for s in samples]
    adapter.cache = PromptCache()
    cpu, marks = time.process_time(), [time.perf_counter()]

    def mark() -> None:
        if adapter.device.type == "cuda":
            torch.cuda.synchronize(adapter.device)
        marks.append(time.perf_counter())

    cond = adapter.encode(prompts)
    mark()
    settings = recipe.rollout
    latents = adapter.sample(
        cond,
        [s.seed for s in samples],
        steps=settings.steps,
        sampler=settings.sampler,
        guidance=settings.guidance,
        batch_size=settings.batch_size,
    )
    mark()
    images = adapter.decode(latents)
    mark()
    rewards.score(images, prompts, [dict(s.prompt.metadata) for s in samples])
    mark()
    spans = [after - before for before, after in pairwise(marks)]
    seconds = dict(zip(("prompts", "sampling", "decoding"), spans))
    seconds |= {f"reward {name}": o.seconds for name, o in rewards.outcomes.items()}
    seconds["other"] = sum(spans) - sum(seconds.values())
    return seconds | {"total": sum(spans)}, time.process_time() - cpu


def _open(folder: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", OPEN, folder], capture_output=True, text=True)
    if done.returncode:
        cause = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise MarbleError(f"{folder}: a fresh process cannot open it ({cause})")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found
