"""Trains the studio's detector on the world's boxes, as "objects as points" prescribes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from marble.rewards.geneval.centernet import (
    STRIDE,
    CenterNet,
    CenterNetDetector,
    DetectorConfig,
    peaks,
)

from .common import Budget, WeightAverage, autocast, batches, cosine_lr
from .reward_data import Objects, Pictures
from .reward_look import melted, mild


def targets(objects: Objects, classes: int, side: int) -> dict[str, Tensor]:
    """Heat map and per-object values to learn.

    An object is a Gaussian bump of its class, as wide as an eighth of its box, with 1 in the cell
    of its centre.
    """
    boxes, labels, _ = objects
    there = labels >= 0
    centre = (boxes[..., :2] + boxes[..., 2:]) / 2 / STRIDE
    size = ((boxes[..., 2:] - boxes[..., :2]) / STRIDE).clamp(min=0.25)
    cell = centre.floor().clamp(0, side - 1)
    axis = torch.arange(side, device=boxes.device)
    sigma = (size / 8).clamp(min=0.4)
    gx = torch.exp(-0.5 * ((axis - cell[..., :1]) / sigma[..., :1]) ** 2)
    gy = torch.exp(-0.5 * ((axis - cell[..., 1:]) / sigma[..., 1:]) ** 2)
    bump = gy[..., :, None] * gx[..., None, :] * there[..., None, None]
    heat = torch.zeros(len(boxes), classes, side, side, device=boxes.device)
    index = labels.clamp(min=0)[..., None, None].expand_as(bump)
    heat.scatter_reduce_(1, index, bump, "amax")
    return {
        "heat": heat,
        "there": there,
        "x": cell[..., 0].long(),
        "y": cell[..., 1].long(),
        "box": torch.cat([size.log(), centre - cell], -1),
    }


def jiggle(x: Tensor, objects: Objects) -> tuple[Tensor, Objects]:
    """Pictures zoomed and moved at random, boxes with them: a generator's layouts are its own.

    Only half of the pictures; an object whose centre leaves the picture is no longer one.
    """
    boxes, labels, colors = objects
    n, side = len(x), x.shape[-1]
    still = torch.rand(n, 1, device=x.device) < 0.5
    zoom = torch.where(still, 1.0, 0.8 + 0.45 * torch.rand(n, 1, device=x.device))
    shift = torch.where(still, 0.0, torch.rand(n, 2, device=x.device) * 0.4 - 0.2)
    matrix = torch.zeros(n, 2, 3, device=x.device)
    matrix[:, 0, 0] = matrix[:, 1, 1] = 1 / zoom[:, 0]
    matrix[:, :, 2] = -shift / zoom
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    x = F.grid_sample(x, grid, padding_mode="border", align_corners=False)
    # grid_sample maps output p to input (p − shift)/zoom in [−1, 1] units: boxes go the other way.
    unit = boxes * 2 / side - 1
    unit = unit * zoom[:, None] + shift.repeat(1, 2)[:, None]
    moved = (unit + 1) * side / 2
    centre = (moved[..., :2] + moved[..., 2:]) / 2
    inside = ((centre > 0) & (centre < side)).all(-1)
    moved = moved.clamp(0, side)
    return x, Objects(moved, torch.where(inside, labels, -1), torch.where(inside, colors, -1))


def melt_some(x: Tensor, objects: Objects) -> tuple[Tensor, Objects]:
    """Every eighth picture melted, and nothing left in it to find: a blob of the right colour is
    not an object, however much a generator would like it to be."""
    few = len(x) // 8
    x = torch.cat([melted(x[:few]), x[few:]])
    labels, colors = objects.labels.clone(), objects.colors.clone()
    labels[:few] = colors[:few] = -1
    return x, Objects(objects.boxes, labels, colors)


def detection_loss(
    maps: tuple[Tensor, Tensor, Tensor], t: dict[str, Tensor], colors: Tensor
) -> Tensor:
    """Penalty-reduced focal loss on the heat map, L1 on boxes, cross-entropy on known colours."""
    heat, box, color = (m.float() for m in maps)
    positive = t["heat"] >= 0.999
    log_p, log_q = F.logsigmoid(heat), F.logsigmoid(-heat)
    p = heat.sigmoid()
    focal = torch.where(
        positive, (1 - p).square() * log_p, (1 - t["heat"]) ** 4 * p.square() * log_q
    )
    loss = -focal.sum() / positive.sum().clamp(min=1)
    rows = torch.arange(len(heat), device=heat.device)[:, None]
    there = t["there"].float()
    count = there.sum().clamp(min=1)
    at = box.permute(0, 2, 3, 1)[rows, t["y"], t["x"]]
    loss = loss + ((at - t["box"]).abs().sum(-1) * there).sum() / count
    known = (t["there"] & (colors >= 0)).float()
    hue = color.permute(0, 2, 3, 1)[rows, t["y"], t["x"]]
    wrong = F.cross_entropy(hue.transpose(1, 2), colors.clamp(min=0), reduction="none")
    return loss + 0.5 * (wrong * known).sum() / known.sum().clamp(min=1)


def train_detector(
    train: Pictures,
    classes: list[str],
    colors: list[str],
    budget: Budget,
    *,
    batch: int = 512,
    peak_lr: float = 3e-3,
) -> CenterNetDetector:
    """Returns the detector with averaged weights and calibrated scores."""
    device = train.device
    model: Any = CenterNet(DetectorConfig(classes, colors)).to(device)
    model = model.to(memory_format=torch.channels_last).train()
    average = WeightAverage([model], decay=0.998)
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=peak_lr, weight_decay=0.01, fused=device.type == "cuda"
    )
    side = train.side // STRIDE
    for step, index in enumerate(batches(len(train), batch, 11, device)):
        done = budget.fraction(step)
        if done >= 1:
            break
        cosine_lr(optimiser, peak_lr, step, done)
        x, objects = melt_some(*jiggle(*train.with_objects(index)))
        x = mild(x) * 2 - 1
        with autocast(device):
            maps = model(x.contiguous(memory_format=torch.channels_last))
        goal = targets(objects, len(classes), side)
        loss = detection_loss(maps, goal, objects.colors)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
        average.update(step)
        if step % 500 == 0:
            print(f"detector {step:6d}  {done:4.0%}  loss {loss.item():.4f}", flush=True)
    average.copy_to_live()
    model = model.to(memory_format=torch.contiguous_format)
    refresh_norms(model, train, batch)
    detector = CenterNetDetector(model, device=device)
    calibrate(detector, train)
    return detector


@torch.no_grad()
def refresh_norms(model: CenterNet, train: Pictures, batch: int, rounds: int = 20) -> None:
    """Batch-norm statistics of the averaged weights: they belong to the live ones until redone."""
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative mean
    model.train()
    for step, index in enumerate(batches(len(train), batch, 12, train.device)):
        if step == rounds:
            break
        model(mild(train.with_objects(index)[0]) * 2 - 1)
    for norm in norms:
        norm.momentum = 0.1
    model.eval()


@torch.no_grad()
def calibrate(
    detector: CenterNetDetector, pictures: Pictures, number: int = 8192, top: int = 8
) -> None:
    """Fit the score so that it is the chance that a peak is a true object (Platt scaling)."""
    logits, truths = [], []
    some = torch.arange(min(number, len(pictures)), device=pictures.device)
    for index in some.split(1024):
        x, (boxes, labels, _) = pictures.with_objects(index)
        heat, _, _ = detector.model(mild(x) * 2 - 1)
        logit, label, y, x_cell = peaks(heat.float(), top)
        centre = torch.stack([x_cell, y], -1) + 0.5
        middle = (boxes[..., :2] + boxes[..., 2:]) / 2 / STRIDE
        near = (centre[:, :, None] - middle[:, None]).abs().amax(-1) < 1.6
        truth = (near & (label[:, :, None] == labels[:, None])).any(-1)
        keep = logit > -8
        logits.append(logit[keep])
        truths.append(truth[keep])
    slope, offset = platt(torch.cat(logits).double().cpu(), torch.cat(truths).double().cpu())
    detector.config.slope, detector.config.offset = slope, offset


def platt(logit: Tensor, truth: Tensor, rounds: int = 50) -> tuple[float, float]:
    """Logistic regression of ``truth`` on ``logit`` by Newton's method, slightly regularised."""
    if len(logit) < 10 or truth.min() == truth.max():
        return 1.0, 0.0
    design = torch.stack([logit, torch.ones_like(logit)], 1)
    w = torch.tensor([1.0, 0.0], dtype=torch.float64)
    prior = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for _ in range(rounds):
        p = torch.sigmoid(design @ w)
        gradient = design.T @ (p - truth) + (w - prior)
        hessian = design.T @ (design * (p * (1 - p))[:, None]) + torch.eye(2, dtype=torch.float64)
        w = w - torch.linalg.solve(hessian, gradient)
    return float(w[0]), float(w[1])
