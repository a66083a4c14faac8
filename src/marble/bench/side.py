"""One of the two loops that are compared: its model, its batches, and the calls to be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor

from marble.balance import Balancer
from marble.bench.random_model import random_text
from marble.data import Prompt, Sample
from marble.errors import MarbleError
from marble.models import lora
from marble.models.pipeline import PipelineAdapter
from marble.objectives import objective_class
from marble.recipe import Recipe
from marble.recipe.balance import Reward
from marble.training.optimise import Part, Settings, take_step
from marble.training.setup import build_balancer

PROMPTS = 4
"""Different prompts of the samples; each has as many pictures as there are, in turn."""


def check_objective(recipe: Recipe) -> None:
    """Raises for an objective whose training a benchmark cannot make up samples for."""
    name = recipe.objective.name
    keeps, taught = objective_class(name).keeps_path, getattr(recipe.objective, "teachers", None)
    if keeps or taught:
        needs = "the paths of its rollouts" if keeps else "teachers"
        raise MarbleError(
            f"objective.name: {name} trains on {needs}, which a benchmark does not have; measure a "
            "recipe with another objective"
        )


class Side:
    """`adapter` has its LoRA already. Every call is what the trainer itself calls."""

    def __init__(self, adapter: PipelineAdapter, recipe: Recipe, *, batch: int, drawn: int) -> None:
        self.adapter, self.recipe, self.batch, self.drawn = adapter, recipe, batch, drawn
        self.device = adapter.device
        sampler = recipe.rollout.sampler  # noise would add little to the time of a step
        self.sampler = "euler" if sampler == "sde" else sampler
        self.parameters = adapter.lora_parameters()
        self.texts = _prompts(adapter)
        self.sigmas = adapter.grid(recipe.rollout.steps)[:-1]
        optim = recipe.optim
        self.optimizer = torch.optim.AdamW(
            list(self.parameters.values()), lr=1e-12, weight_decay=optim.weight_decay
        )
        self.average = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.update()  # Adam's moments are there from now on
        self.latents = torch.zeros(0)

    # -- rollout ----------------------------------------------------------------------------------

    def drawing(self) -> AbstractContextManager[None]:
        return self.adapter.drawing("old")

    def merge(self) -> None:
        with self.drawing():
            pass

    def sample(self, steps: int) -> None:
        cond = self.adapter.encode([self.texts[i % PROMPTS] for i in range(self.drawn)])
        self.latents = self.adapter.sample(
            cond, list(range(self.drawn)), steps=steps, sampler=self.sampler
        )

    def decode(self) -> None:
        self.adapter.decode(self.latents)

    # -- training ---------------------------------------------------------------------------------

    def step(
        self,
        balancer: Balancer,
        *,
        pairs: int = 1,
        kl: bool = False,
        refresh: bool = False,
        batch: int | None = None,
        samples: int | None = None,
    ) -> Callable[[], None]:
        """A call that takes the gradient of `pairs` micro-batches of the same samples."""
        count = samples or self.batch
        part, rewards, groups = self.part(count, len(balancer.names))
        found = balancer.batch(rewards, groups)
        objective = self.recipe.objective
        settings = Settings(
            seed=0,
            batch_size=batch or self.batch,
            pairs=pairs,
            kl=(objective.kl or 1e-4) if kl else 0.0,
            kl_every=1,
        )

        def take() -> None:
            self.clear()
            take_step(
                self.adapter, balancer, found, part, self.sigmas, settings,
                step=0 if refresh else 1, inner=0,
            )  # fmt: skip

        return take

    def part(self, count: int, k: int) -> tuple[Part, Tensor, Tensor]:
        """Samples with random latents and rewards, the same for every loop."""
        generator = torch.Generator().manual_seed(3)
        prompts = [Prompt(text, "bench", {"source": "bench"}) for text in self.texts]
        # Two pictures of a prompt side by side, for objectives that compare them.
        groups = [i // 2 % PROMPTS for i in range(count)]
        samples = [Sample(prompts[g], g, 100 + i, i) for i, g in enumerate(groups)]
        latents = torch.randn(count, *self.adapter.latent_shape, generator=generator)
        rewards = torch.randn(k, count, generator=generator, dtype=torch.float64)
        return (
            Part(samples, latents.to(self.device), {}, torch.arange(count)),
            rewards,
            torch.tensor(groups),
        )

    def gradient(self) -> Tensor:
        """The gradient just taken, flat, fp32, in the order of the parameters' names."""
        found = []
        for _, parameter in sorted(self.parameters.items()):
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found.append(grad.flatten().float())
        return torch.cat(found)

    def clear(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def update(self) -> None:
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        lora.blend_(self.average, self.parameters, 0.9)

    # -- balances ---------------------------------------------------------------------------------

    def weighted_sum(self, *, measured: bool = False) -> Balancer:
        """measured: all K gradients are taken too, in every step; the direction is the sum's."""
        changed = _changed(self.recipe, method="weighted_sum", options={}, probe=1.0)
        log = changed.log.model_copy(update={"harmony_every": int(measured)})
        changed = changed.model_copy(update={"log": log})
        return build_balancer(changed, self.adapter)

    def marble(self, k: int | None = None, *, every: int = 1) -> Balancer:
        """Refreshes, with all of a step recorded; the recipe's rule where it solves."""
        recipe = self.recipe if k is None else _with_rewards(self.recipe, k)
        method = {} if recipe.balance.uses_gram else {"method": "marble", "options": {}}
        changed = _changed(recipe, every=every, probe=1.0, consolidate=0, **method)
        return build_balancer(changed, self.adapter)

    @property
    def calls(self) -> dict[str, Callable[[], None]]:
        return {
            "sampling": partial(self.sample, self.recipe.rollout.steps),
            "decoding": self.decode,
        }


def _changed(recipe: Recipe, **balance: object) -> Recipe:
    return recipe.model_copy(update={"balance": recipe.balance.model_copy(update=balance)})


def _with_rewards(recipe: Recipe, k: int) -> Recipe:
    """K rewards instead of the recipe's; nothing scores them here."""
    train = [Reward(name=f"reward-{i}", reward="clipscore") for i in range(k)]
    balance: dict[str, object] = {"priorities": {}, "floors": [], "groups": {}, "options": {}}
    recipe = _changed(recipe, **balance)
    rewards = recipe.rewards.model_copy(update={"train": train})
    return recipe.model_copy(update={"rewards": rewards})


def _prompts(adapter: PipelineAdapter) -> Sequence[str]:
    """Prompts that the adapter has encoded; random embeddings where there are no encoders."""
    texts = [f"picture {i}" for i in range(PROMPTS)]
    if getattr(adapter.pipeline, "text_encoder", None) is not None:
        return texts
    adapter.truncate_prompts = True  # nothing is there to count tokens with
    rows = random_text(adapter, PROMPTS)
    for i, text in enumerate(texts):
        adapter.cache.put(text, rows[i].trimmed())
    return texts
