"""Trains the studio's generator by flow matching.

Two choices are the studio's own. Captions of the training set are *sloppy* (see `world`), which
gives the base model the headroom that Stable Diffusion has without guidance. And wrong captions
come late: to find out that letters in the prompt are letters in the picture is a threshold, and it
is passed sooner while every caption is right, and with a high learning rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .common import Budget, Recorded, WeightAverage, autocast, batches, cosine_lr
from .generator import LONG, SHORT, Generator
from .muon import Muon

# Every 12th step takes the long form, on few samples: each costs over four times as much.
LONG_EVERY = 12
DROPPED = 0.08  # captions left out, so that guidance works too
ALL_FROM = 0.3  # share of the time after which wrong captions are in


def train_generator(
    latents: Tensor,
    ids: Tensor,
    empty_ids: Tensor,
    vocabulary: int,
    device: torch.device,
    seconds: float,
    *,
    right: Tensor | None = None,
    batch: int = 1024,
    peak_lr: float = 3e-3,
    start: Generator | None = None,
) -> Generator:
    """Flow matching on scaled `latents` [n, 16, 8, 8] with token `ids` [n, 16].

    `right` [n] says which captions are (default: no distinction); `start` is a generator to go on
    from. Returns the averaged weights.
    """
    model = (Generator(vocabulary, eos=1) if start is None else start).to(device).train()
    average = WeightAverage([model], decay=0.999)
    optimisers = new_optimisers(model, peak_lr, device)
    compiled: Callable[..., Any] = model.transformer
    if device.type == "cuda":
        compiled = torch.compile(model.transformer, dynamic=False, fullgraph=True)
    empty_ids = empty_ids.to(device)
    # Only the usual, short form is compiled; the rare long form runs as it is.
    short = _step(model, optimisers, empty_ids, SHORT, compiled)
    long = _step(model, optimisers, empty_ids, LONG, None)
    budget = Budget(seconds)
    at_first, later = _orders(right, len(latents), batch, latents.device)
    step, done = 0, 0.0
    while done < 1:
        index = next(at_first if done < ALL_FROM else later)
        for optimiser in optimisers:
            cosine_lr(optimiser, peak_lr, step, done)
        is_long = step % LONG_EVERY == LONG_EVERY - 1
        if is_long:
            index = index[: max(16, batch // 16)]
        run = long if is_long else short
        loss = run(latents[index].to(device).float(), ids[index].to(device))
        average.update(step)
        if step % 500 == 0:
            print(f"generator {step:6d}  {done:4.0%}  loss {loss.item():.4f}", flush=True)
        step += 1
        if step == LONG_EVERY:
            budget = Budget(seconds)  # compilation is not training time
        done = budget.fraction(step)
    average.copy_to_live()
    return model.eval()


def new_optimisers(
    model: Generator, lr: float, device: torch.device
) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for all else."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and in_a_layer(name)]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    on_gpu = device.type == "cuda"
    rates = [torch.tensor(lr, device=device) if on_gpu else lr for _ in range(2)]
    adam = torch.optim.AdamW(
        others, lr=rates[1], betas=(0.9, 0.99), weight_decay=0.01, fused=on_gpu, capturable=on_gpu
    )
    return [Muon(matrices, lr=rates[0], weight_decay=0.01), adam]


def in_a_layer(name: str) -> bool:
    """Not the embeddings, the first and the last projection, or T5's table of distances."""
    in_layer = "blocks." in name or ".layers." in name or ".block." in name
    return in_layer and "relative_attention" not in name


def _step(
    model: Generator,
    optimisers: list[torch.optim.Optimizer],
    empty_ids: Tensor,
    t5_length: int,
    transformer: Callable[..., Any] | None,
) -> Recorded:
    parameters = list(model.parameters())

    def step(x_0: Tensor, ids: Tensor) -> Tensor:
        n, device = len(x_0), x_0.device
        ids = torch.where(torch.rand(n, 1, device=device) < DROPPED, empty_ids, ids)
        sigma = torch.sigmoid(torch.randn(n, device=device) * 1.1 + 0.3)
        noise, s = torch.randn_like(x_0), sigma.view(-1, 1, 1, 1)
        with autocast(device):
            v = model((1 - s) * x_0 + s * noise, sigma, ids, t5_length, transformer)
        loss = F.mse_loss(v.float(), noise - x_0)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        for optimiser in optimisers:
            optimiser.step()
        return loss.detach()

    return Recorded(step, optimisers)


def _orders(
    right: Tensor | None, n: int, batch: int, device: torch.device
) -> tuple[Iterator[Tensor], Iterator[Tensor]]:
    """Index batches over the right captions, and over all."""
    everything = batches(n, batch, 2, device)
    if right is None or not right.any():
        return everything, everything
    chosen = right.nonzero().squeeze(1).to(device)
    return (chosen[index] for index in batches(len(chosen), batch, 1, device)), everything
