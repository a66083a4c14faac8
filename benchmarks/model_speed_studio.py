"""The studio in `model_speed.py`: a step of 576 pictures, as it ships."""

from __future__ import annotations

import torch
from torch import Tensor

from marble.models import lora
from marble.models.build import build_adapter
from marble.recipe import load_recipe
from model_speed_decoding import LOW, difference, in_format, levels
from model_speed_setup import Bench


def studio(bench: Bench) -> None:
    """A step of 576 pictures without its rewards: drawn, decoded, trained on."""
    recipe = load_recipe("studio", ["model.compile=auto"])
    adapter = build_adapter(recipe, bench.device)
    adapter.add_lora(32, 64)
    pictures = 4 if bench.args.tiny else 576
    size = 2 if bench.args.tiny else recipe.rollout.batch_size
    steps = 2 if bench.args.tiny else recipe.rollout.steps
    cond = adapter.encode([f"a red circle {i % 10}" for i in range(pictures)])
    seeds, drawn = list(range(pictures)), {}

    def sample() -> None:
        drawn["x"] = adapter.sample(cond, seeds, steps=steps, batch_size=size)

    def graphed() -> None:
        with adapter.drawing(lora.OLD):
            sample()

    def unmerged() -> None:
        with adapter.using(lora.OLD):
            sample()

    def train(size: int = size) -> None:
        for _ in range(max(1, round(recipe.train.timesteps_fraction * steps))):
            for start in range(0, pictures, size):
                x = drawn["x"][start : start + size]
                rows = cond[start : start + size].to(bench.device)
                sigma = torch.full((len(x),), 0.5, device=bench.device)
                with torch.no_grad(), adapter.using(lora.OLD):
                    adapter.velocity(x, sigma, rows)
                v = adapter.velocity(x, sigma, rows)
                v.backward(torch.ones_like(v))

    bench.take("studio, draw 576, before", lambda: bench.ms(unmerged, 1))
    bench.take("studio, draw 576, after", lambda: bench.ms(graphed, 1))
    for larger in (2, 6):

        def wide(count: int = larger * size) -> None:
            with adapter.drawing(lora.OLD):
                adapter.sample(cond, seeds, steps=steps, batch_size=count)

        bench.take(f"studio, draw 576, {larger * size} at once", lambda w=wide: bench.ms(w, 1))
    bench.take("studio, decode 576", lambda: bench.ms(lambda: adapter.decode(drawn["x"]), 1))
    bench.take("studio, train 576", lambda: bench.ms(train, 1))
    bench.take(
        f"studio, train 576, {6 * size} at once", lambda: bench.ms(lambda: train(6 * size), 1)
    )
    real = drawn["x"][:64]
    wanted = adapter.decode(real).float()
    part = adapter.pipeline.vae
    for name, dtype in LOW.items():
        with in_format(part, dtype):

            def low(z: Tensor, dtype: torch.dtype = dtype) -> Tensor:
                return part.decode(z.to(dtype), return_dict=False)[0]

            pictures = levels(adapter, low, real).cpu()
        bench.take(f"studio, {name} decoding", lambda p=pictures: difference(p, wanted))
