"""MARBLE in one file: one small flow model, three rewards that disagree.

    python examples/minimal_marble.py      # CPU, about ten seconds; writes minimal_marble.png

A flow model draws points in the plane, as a diffusion model draws pictures: prompt in, sample out.
Three rewards score the points. They are of very different scale, pull in different directions,
and `text` says something only about prompts of the source "text". We fine-tune a LoRA twice with
the DiffusionNFT loss (arXiv 2509.16117): on the sum of the rewards, and with MARBLE (arXiv
2605.06507), which finds a direction that improves all of them. Needs torch, numpy and Pillow.
"""

import argparse
import copy
import itertools
import math

import numpy as np
import torch
from torch import nn

A_MAX, BETA = 5.0, 0.1  # of the NFT loss
RANK, WIDTH = 4, 64  # of the model

# ---------------------------------------------------------------- the world: prompts and rewards

REWARDS = ("bright", "calm", "text")
SCALE = torch.tensor([10.0, 1.0, 0.3])  # raw rewards come in whatever units their authors chose
WANTED = torch.tensor([[2.0, 0.0], [1.4, 1.9], [0.0, 1.7]])  # where each wants the points to be
PROMPTS, PER_PROMPT, SOURCE_TEXT = 8, 24, 4  # prompts 0-3: source "general", 4-7: source "text"


def score(x, prompt):
    """Rewards [K, n] of points x [n, 2]. NaN = the reward does not apply, which is not a 0."""
    distance = (x[None] - WANTED.to(x)[:, None]).norm(dim=2)
    rewards = SCALE.to(x)[:, None] * torch.exp(-(distance**2) / 4)
    rewards[2, prompt < SOURCE_TEXT] = torch.nan
    return rewards


# ------------------------------------------------------------------- the model: a flow, a LoRA


class LoraLinear(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.base = nn.Linear(fan_in, fan_out)
        self.down = nn.Linear(fan_in, RANK, bias=False)
        self.up = nn.Linear(RANK, fan_out, bias=False)
        nn.init.zeros_(self.up.weight)  # starts as the base model
        self.tape = None  # while recording: a function that takes (layer, δ, input)

    def forward(self, x):
        h = self.down(x)
        y = self.up(h)
        if self.tape is not None:  # see k_gradients
            tape = self.tape
            h.register_hook(lambda delta: tape(self.down, delta, x.detach()))
            y.register_hook(lambda delta: tape(self.up, delta, h.detach()))
        return self.base(x) + y


class Flow(nn.Module):
    """Velocity v(x_t, t | prompt), with x_t = (1−t)·x_0 + t·noise."""

    def __init__(self):
        super().__init__()
        sizes = [2 + 2 + PROMPTS, WIDTH, WIDTH, 2]
        self.layers = nn.ModuleList(LoraLinear(a, b) for a, b in itertools.pairwise(sizes))

    def forward(self, x, t, prompt):
        one_hot = nn.functional.one_hot(prompt, PROMPTS).to(x)
        h = torch.cat([x, t[:, None], (t * t)[:, None], one_hot], 1)
        for layer in self.layers[:-1]:
            h = nn.functional.silu(layer(h))
        return self.layers[-1](h)

    def lora(self):
        return [p for layer in self.layers for p in (layer.down.weight, layer.up.weight)]


@torch.no_grad()
def draw(model, prompt, generator, steps=12):
    """Integrates the flow from noise (t = 1) to samples (t = 0)."""
    x = torch.randn(len(prompt), 2, generator=generator).to(model.lora()[0])
    for i in range(steps):
        t = torch.full((len(x),), 1 - i / steps).to(x)
        x = x - model(x, t, prompt) / steps
    return x


def pretrain(steps, generator):
    """The base model: points around their prompt's centre. Ordinary flow matching, without LoRA."""
    model = Flow()
    base = [p for layer in model.layers for p in layer.base.parameters()]
    optimizer = torch.optim.Adam(base, 3e-3)
    angle = torch.arange(PROMPTS) * 2 * math.pi / PROMPTS
    centres = 0.6 * torch.stack([angle.cos(), angle.sin()], 1)
    for _ in range(steps):
        prompt = torch.randint(PROMPTS, (256,), generator=generator)
        x_0 = centres[prompt] + 0.5 * torch.randn(256, 2, generator=generator)
        noise, t = torch.randn(256, 2, generator=generator), torch.rand(256, generator=generator)
        x_t = x_0 + t[:, None] * (noise - x_0)
        loss = (model(x_t, t, prompt) - (noise - x_0)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for layer in model.layers:
        layer.base.requires_grad_(False)
    return model


def optimality(rewards, prompt):
    """r = 1/2 + A/(2·A_max), clamped to [0, 1]; NaN stays NaN.

    The advantage A is (R − mean over the prompt's samples) / std over all samples.
    """
    adv = torch.empty_like(rewards)
    for k, row in enumerate(rewards):
        std = row[~row.isnan()].std(correction=0)
        for p in prompt.unique():
            adv[k, prompt == p] = (row[prompt == p] - row[prompt == p].mean()) / (std + 1e-4)
    return (0.5 + adv / (2 * A_MAX)).clamp(0, 1)


def forward(model, pairs):
    """v, and for every (sample, timestep) pair P = ∂L⁺/∂v and N = ∂L⁻/∂v.

    v⁺ = v_old + β(v − v_old) is pulled to the sample with weight r, its mirror image v⁻ with
    weight 1−r. The loss r·L⁺ + (1−r)·L⁻ is affine in r: sample i enters the gradient of *every*
    reward through the same two vectors P_i and N_i. Everything below rests on that.
    """
    x_t, x_0, t, prompt, v_old = pairs
    v = model(x_t, t, prompt)
    sides = []
    for slope in (BETA, -BETA):
        v_side = v_old + slope * (v.detach() - v_old)
        error = x_t - t[:, None] * v_side - x_0  # of the sample that v_side would denoise to
        weight = error.abs().mean(1, keepdim=True).clamp_min(1e-5)
        sides.append(-(A_MAX / BETA) * 2 * slope * t[:, None] * error / weight / error.shape[1])
    return v, *sides


def k_gradients(model, pairs, r, weight):
    """All K gradients [K, parameters] in *two* backward passes, however large K is.

    Reward k's cotangent at sample i is weight_ki·((2r_ki − 1)·u_i + w_i), with u = (P−N)/2 and
    w = (P+N)/2. Backpropagation is linear and does not mix samples, so we propagate u and w once
    each and weigh the samples only where a layer forms its weight gradient Σ_i δ_i x_iᵀ.
    """
    grads = {p: torch.zeros(len(r), *p.shape).to(p) for p in model.lora()}

    def tape(layer, delta, x):
        grads[layer.weight] += torch.einsum("kb,bo,bi->koi", coefficients, delta, x)

    for layer in model.layers:
        layer.tape = tape
    v, P, N = forward(model, pairs)
    coefficients = (2 * r - 1) * weight
    torch.autograd.grad(v, model.lora(), (P - N) / 2, retain_graph=True)
    coefficients = weight
    torch.autograd.grad(v, model.lora(), (P + N) / 2)
    for layer in model.layers:
        layer.tape = None
    return torch.cat([grads[p].flatten(1) for p in model.lora()], 1)


# ----------------------------------------------------------------- harmonising the K gradients


def min_norm(gram):
    """α on the simplex that minimises αᵀGα. K is small here: try every subset of the rewards."""
    best, best_value = None, math.inf
    for size in range(1, len(gram) + 1):
        for chosen in itertools.combinations(range(len(gram)), size):
            inverse = np.linalg.pinv(gram[np.ix_(chosen, chosen)])
            alpha = np.zeros(len(gram))
            alpha[list(chosen)] = inverse.sum(1) / inverse.sum()
            if alpha.min() >= 0 and alpha @ gram @ alpha < best_value - 1e-15:
                best, best_value = alpha, alpha @ gram @ alpha
    return best


class Marble:
    """Solve every N-th step; in between reuse the moving average of α with one backward."""

    def __init__(self, every=10, rho=0.7):
        self.every, self.rho = every, rho
        self.alpha = np.full(len(REWARDS), 1 / len(REWARDS))

    def refresh(self, g):
        """Coefficients c of Σ c_k g_k: normalise, solve, rescale to the mean norm."""
        norms = g.norm(dim=1).double().cpu().numpy()
        unit = g.double().cpu().numpy() / norms[:, None]
        alpha = min_norm(unit @ unit.T)
        self.alpha = self.rho * self.alpha + (1 - self.rho) * alpha
        return alpha * norms.mean() / norms


def step_gradient(model, pairs, rewards, prompt, step, balance):
    """Leaves the gradient of one optimiser step in .grad."""
    if balance is None:  # the baseline: sum the rewards, then train on a single advantage
        rewards = rewards.nansum(0, keepdim=True)
    repeats = len(pairs[0]) // len(prompt)  # timesteps trained on per sample
    r = optimality(rewards, prompt).repeat(1, repeats)
    valid = ~r.isnan()
    weight = valid / valid.sum(1, keepdim=True).to(r)  # reward k: the mean over *its* samples
    r = torch.where(valid, r, 0.5)  # NaN times 0 would be NaN
    if balance is not None and step % balance.every == 0:  # full step
        g = k_gradients(model, pairs, r, weight)
        flat = torch.as_tensor(balance.refresh(g)).to(g) @ g
        for p, part in zip(model.lora(), flat.split([p.numel() for p in model.lora()])):
            p.grad = part.view_as(p).clone()
        return
    # Amortised step: one backward whose gradient is exactly Σ c_k g_k, masked and clamped or not.
    c = torch.as_tensor([1.0] if balance is None else balance.alpha).to(r)[:, None]
    v, P, N = forward(model, pairs)
    v.backward((c * weight * r).sum(0)[:, None] * P + (c * weight * (1 - r)).sum(0)[:, None] * N)


def train(base, balance, steps, timesteps=4):
    """Rollout with the old model, score, step, let the old model follow; scores and α by step."""
    generator = torch.Generator().manual_seed(1)
    model, old = copy.deepcopy(base), copy.deepcopy(base)
    optimizer = torch.optim.AdamW(model.lora(), 1.5e-3, weight_decay=1e-4)
    prompt = torch.arange(PROMPTS).repeat_interleave(PER_PROMPT)
    history = []
    for step in range(steps):
        x_0 = draw(old, prompt, generator)
        rewards = score(x_0, prompt)
        x_0, many = x_0.repeat(timesteps, 1), prompt.repeat(timesteps)
        noise = torch.randn(x_0.shape, generator=generator)
        t = torch.rand(len(x_0), generator=generator) * 0.95 + 0.05
        x_t = x_0 + t[:, None] * (noise - x_0)
        with torch.no_grad():
            v_old = old(x_t, t, many)
        optimizer.zero_grad()
        step_gradient(model, (x_t, x_0, t, many, v_old), rewards, prompt, step, balance)
        nn.utils.clip_grad_norm_(model.lora(), 1.0)
        optimizer.step()
        for slow, fast in zip(old.lora(), model.lora()):
            slow.data.lerp_(fast.data, 1 - min(0.01 * step, 0.5))
        history.append((evaluate(model), balance and balance.alpha))
    return history


def evaluate(model, per_prompt=64):
    """Mean of every reward over its own prompts, in units of its scale; the same noise always."""
    prompt = torch.arange(PROMPTS).repeat_interleave(per_prompt)
    scores = score(draw(model, prompt, torch.Generator().manual_seed(0)), prompt)
    return (scores.nanmean(1) / SCALE).numpy()


def picture(path, panels):
    """One panel per (title, curves [steps, K]), all on axes from 0 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    colours = ("#d97706", "#2563eb", "#059669")
    width, height, left, top = 720, 480, 90, 120
    image = Image.new("RGB", (len(panels) * (width + left + 50), height + top + 90), "white")
    pen, big, small = ImageDraw.Draw(image), ImageFont.load_default(34), ImageFont.load_default(26)
    for number, (title, curves) in enumerate(panels):
        x, y = number * (width + left + 50) + left, top
        pen.text((x, 20), title, "black", big)
        for value in (0.0, 0.25, 0.5, 0.75, 1.0):
            level = y + height * (1 - value)
            pen.line([(x, level), (x + width, level)], "#d4d4d8", 2)
            pen.text((x - 12, level), f"{value:g}", "#52525b", small, anchor="rm")
        last = max(1, len(curves) - 1)
        for k, curve in enumerate(np.asarray(curves).T):
            pen.text((x + 150 * k, 70), REWARDS[k], colours[k], small)
            points = [(x + width * i / last, y + height * (1 - v)) for i, v in enumerate(curve)]
            pen.line(points, colours[k], 6, joint="curve")
        pen.text((x + width, y + height + 15), f"step {last + 1}", "#52525b", small, anchor="rt")
    image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS).save(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", default="minimal_marble.png")
    options = parser.parse_args()
    torch.set_num_threads(1)  # tensors this small only wait for each other
    torch.manual_seed(0)
    base = pretrain(1000, torch.Generator().manual_seed(0))
    before = evaluate(base)
    runs = (("weighted sum", None), ("MARBLE", Marble()))
    histories = {n: train(base, balance, options.steps) for n, balance in runs}
    print(f"\n{'reward (1 = all it wants)':28}" + "".join(f"{name:>20}" for name in histories))
    for k, reward in enumerate(REWARDS):
        cells = (f"{before[k]:.2f} → {h[-1][0][k]:.2f}" for h in histories.values())
        print(f"{reward:28}" + "".join(f"{cell:>20}" for cell in cells))
    panels = [(f"{name}: rewards", [scores for scores, _ in h]) for name, h in histories.items()]
    panels.append(("MARBLE: weights (alpha)", [alpha for _, alpha in histories["MARBLE"]]))
    picture(options.out, panels)
    print(f"\nReward curves and α: {options.out}")


if __name__ == "__main__":
    main()
