"""What the options cost that trade exactness for speed: each one's error beside its time.

fp8 rollouts, fewer sampling steps, and training on the extremes of a group change what a run
computes, so each is off by default. Here every one is held against the same without it, and against
a difference of known size: another seed for pictures, other timesteps for a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marble.bench.loop import about, adapter_options, same_weights
from marble.bench.random_model import open_pipeline
from marble.bench.report import Report
from marble.bench.side import PROMPTS, Side, check_objective
from marble.bench.timing import milliseconds
from marble.errors import MarbleError
from marble.models import fp8
from marble.models.pipeline import PipelineAdapter
from marble.recipe import Recipe, load_recipe
from marble.training.extremes import extremes, sizes
from marble.training.memory import fitted
from marble.training.optimise import Part, Settings, take_step
from marble.training.processes import Processes

LEVELS = 5
"""Noise levels of the rollout at which velocities are compared."""
FEWER = (2.0, 0.6, 0.4)
"""Sampling steps by the recipe's; twice as many show what the recipe's own number leaves out."""
SHARE, SETS = 0.5, 3
"""Of `train.extremes`, and how many sets of random rewards it is tried with."""


def bench_options(
    name: str,
    overrides: Sequence[str] = (),
    *,
    device: str | None = None,
    pictures: int = 16,
    repeats: int = 3,
    out: Path | None = None,
    trust: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Errors and times of each option, for the recipe's model; its weights are random unless its
    files are here. `pictures` of four prompts are drawn, and trained on with random rewards."""
    on = Processes(device).device
    recipe = load_recipe(name, overrides, trust=trust)
    check_objective(recipe)
    recipe = fitted(recipe, on, 1)
    report = Report(out, say)
    made = about(recipe, on, None)
    report.note(**made | {"what": f"{recipe.name}: options that trade exactness for speed"})
    report.note(setup={"pictures": pictures, "repeats": repeats})
    with report.part("model"):
        bench = Options(recipe, on, pictures, repeats)
    if "model" not in report.found["failures"]:
        for part in ("steps", "fp8", "extremes"):
            with report.part(part):
                report.note(**{part: getattr(bench, part)()})
    report.note(complete=not report.found["failures"])
    return report.found


class Options:
    def __init__(self, recipe: Recipe, device: torch.device, pictures: int, repeats: int) -> None:
        if pictures < 2 * PROMPTS:
            raise MarbleError(f"--pictures: at least {2 * PROMPTS}, two for each of the prompts")
        pipeline, family = open_pipeline(recipe, device)
        adapter = family.adapter(pipeline, **adapter_options(recipe, family, device))
        lora = recipe.model.lora
        adapter.add_lora(lora.rank, lora.alpha, targets=lora.targets)
        same_weights([adapter])
        self.recipe, self.adapter, self.device = recipe, adapter, device
        self.count, self.repeats = pictures, repeats
        self.side = Side(adapter, recipe, batch=pictures, drawn=pictures)
        self.whole: tuple[Tensor, Tensor] | None = None

    # -- rollouts ---------------------------------------------------------------------------------

    def draw(self, steps: int | None = None, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Latents and pictures, of the same prompts every time."""
        adapter, rollout = self.adapter, self.recipe.rollout
        latents = adapter.sample(
            adapter.encode([self.side.texts[i % PROMPTS] for i in range(self.count)]),
            list(range(seed, seed + self.count)),
            steps=steps or rollout.steps,
            sampler=self.side.sampler,
        )
        return latents, adapter.decode(latents)

    def timed(self, steps: int) -> float:
        """ms of one picture's sampling step."""
        self.side.sample(steps)
        found = median(
            milliseconds(lambda: self.side.sample(steps), self.device) for _ in range(self.repeats)
        )
        return found / steps / self.count

    def exact(self) -> tuple[Tensor, Tensor]:
        """As the recipe draws, without options."""
        if self.whole is None:
            self.whole = self.draw()
        return self.whole

    def steps(self) -> dict[str, Any]:
        """Pictures of fewer steps, and of more, beside those of the recipe's number."""
        number = self.recipe.rollout.steps
        with self.adapter.drawing("old"):
            exact = self.exact()
            found = {"another seed": apart(self.draw(seed=self.count), exact)}
            for share in FEWER:
                steps = max(1, round(share * number))
                found[f"{steps} steps"] = apart(self.draw(steps), exact) | {"time": steps / number}
        return {"steps": number, "against": scaled(found)}

    def fp8(self) -> dict[str, Any]:
        """Velocities and pictures in fp8 beside bf16; why not, where the device cannot."""
        try:
            fp8.check(self.device)
        except MarbleError as error:
            return {"not measured": str(error)}
        few = min(4, self.recipe.rollout.steps)
        with self.adapter.drawing("old"):
            exact = self.exact()
            plain = self.velocities(exact[0])
            with eager(self.adapter):
                halves = self.velocities(exact[0], parts=2)
            times = {"bf16": self.timed(few)}
            other = apart(self.draw(seed=self.count), exact)
        with self.adapter.drawing("old", low=True):
            layers = sum(isinstance(m, fp8.Fp8Linear) for m in self.adapter.transformer.modules())
            low = self.velocities(exact[0])
            times["fp8"] = self.timed(few)
            found = {"another seed": other, "fp8": apart(self.draw(), exact)}
        return {
            "layers": layers,
            "velocity_error": {
                "fp8": [relative(a, b) for a, b in zip(low, plain)],
                "bf16, uncompiled and in halves": [relative(a, b) for a, b in zip(halves, plain)],
            },
            "against": scaled(found),
            "ms_per_picture_and_step": times,
            "speed": times["bf16"] / times["fp8"],
        }

    @torch.no_grad()
    def velocities(self, latents: Tensor, parts: int = 1) -> list[Tensor]:
        """At `LEVELS` noise levels of the rollout, evenly chosen, on noised pictures."""
        generator = torch.Generator().manual_seed(11)
        noise = torch.randn(latents.shape, generator=generator).to(latents)
        texts = [self.side.texts[i % PROMPTS] for i in range(self.count)]
        chosen = torch.linspace(0, len(self.side.sigmas) - 1, LEVELS).round().long()
        found = []
        for sigma in self.side.sigmas[chosen].tolist():
            x = (1 - sigma) * latents + sigma * noise
            rows = []
            for at in torch.arange(self.count).chunk(parts):
                cond = self.adapter.encode([texts[i] for i in at]).to(self.device)
                t_B = torch.full((len(at),), sigma, device=self.device)
                rows.append(self.adapter.velocity(x[at.to(x.device)], t_B, cond).float())
            found.append(torch.cat(rows))
        return found

    # -- training ---------------------------------------------------------------------------------

    def extremes(self) -> dict[str, Any]:
        """Gradients of a step on some pictures of each prompt, beside that on all of them. Blocks
        run uncompiled: the cosines are what is asked, and compiling would take minutes."""
        rows: dict[str, list[float]] = {}
        with eager(self.adapter):
            for rewards_KN, groups in (self._scored(i) for i in range(SETS)):
                everyone, none = np.arange(self.count), np.zeros(self.count)
                batch = self.side.marble().batch(rewards_KN, groups)
                active = np.ones(len(rewards_KN), bool)
                chosen = {
                    f"extremes {SHARE:g}": extremes(
                        sizes(batch, active, merged=False), groups.tolist(), SHARE
                    ),
                    f"any {SHARE:g}": extremes(none, groups.tolist(), SHARE),
                }
                full = self.gradient(everyone, rewards_KN, groups)
                other = self.gradient(everyone, rewards_KN, groups, seed=1)
                rows.setdefault("all, other timesteps", []).append(cosine(other, full))
                for name, at in chosen.items():
                    found = self.gradient(at, rewards_KN, groups)
                    rows.setdefault(name, []).append(cosine(found, full))
            times = [
                milliseconds(lambda at=at: self.gradient(at, rewards_KN, groups), self.device)  # type: ignore[misc]
                for at in (everyone, chosen[f"extremes {SHARE:g}"])
            ]
        against: dict[str, dict[str, Any]] = {
            name: {"cosine": sum(values) / SETS, "cosines": values} for name, values in rows.items()
        }
        against[f"extremes {SHARE:g}"]["time"] = times[1] / times[0]
        return {"pictures_per_prompt": math.ceil(self.count / PROMPTS), "against": against}

    def _scored(self, seed: int) -> tuple[Tensor, Tensor]:
        """Random rewards [K, n], and the pictures' prompts."""
        _, like, groups = self.side.part(self.count, len(self.recipe.rewards.names))
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(like.shape, generator=generator, dtype=like.dtype), groups

    def gradient(
        self, chosen: np.ndarray, rewards_KN: Tensor, groups: Tensor, seed: int = 0
    ) -> Tensor:
        """Of a step on the pictures at `chosen`, each at one timestep."""
        side, at = self.side, torch.from_numpy(chosen)
        part, *_ = side.part(self.count, len(rewards_KN))
        drawn = part.latents if self.whole is None else self.whole[0]
        own = Part(
            [part.samples[i] for i in chosen], drawn[at.to(drawn.device)], {},
            torch.arange(len(chosen)),
        )  # fmt: skip
        settings = Settings(seed=seed, batch_size=8, pairs=1, kl=0.0, kl_every=1)
        balancer = side.marble()
        side.clear()
        take_step(
            self.adapter, balancer, balancer.batch(rewards_KN, groups).select(at), own,
            side.sigmas, settings, step=0, inner=0,
        )  # fmt: skip
        return side.gradient()


@contextmanager
def eager(adapter: PipelineAdapter) -> Iterator[None]:
    """Blocks run as they are."""
    compiled = adapter.compiled
    before = None if compiled is None else compiled.mode
    if compiled is not None:
        compiled.mode = "off"
    try:
        yield
    finally:
        if compiled is not None and before is not None:
            compiled.mode = before


def apart(one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> dict[str, float]:
    """How far two sets of latents and pictures are from each other."""
    levels = (one[1].int() - two[1].int()).abs().flatten()
    share = levels.bincount(minlength=256).double().cumsum(0) / levels.numel()
    return {
        "latents": relative(one[0], two[0]),
        "mean_levels": float(levels.double().mean()),
        "p99_levels": float((share < 0.99).sum()),
        "within_one_level": float(share[1]),
    }


def scaled(rows: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """The rows with their mean difference by that of another seed."""
    unit = rows["another seed"]["mean_levels"]
    return {
        name: row | ({"by_another_seed": row["mean_levels"] / unit} if unit > 0 else {})
        for name, row in rows.items()
    }


def relative(found: Tensor, true: Tensor) -> float:
    return float((found - true).norm() / true.norm())


def cosine(one: Tensor, two: Tensor) -> float:
    return float((one @ two) / (one.norm() * two.norm()))
