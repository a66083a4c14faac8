"""Several rewards in a loop of DiffusionNFT's shape: v_old draws, v_θ learns, v_old follows.

    python examples/diffusion_nft.py --model stabilityai/stable-diffusion-3.5-medium

Two LoRA adapters on one transformer: "default" is trained, "old" draws the rollouts and follows it.
Each picture is trained on at several timesteps per step. `marble train` does all of this with
checkpoints, several GPUs and evaluation; this is for a loop that exists already.
"""

from __future__ import annotations

import argparse

import torch
from diffusers import StableDiffusion3Pipeline
from peft import LoraConfig

from marble import Balancer
from marble.objectives import Point

PROMPTS = ["a photo of a red apple", "a house by the sea", "a cat asleep", "two boats at night"]
NAMES = ["warm", "bright", "contrast"]


def rewards_of(images: torch.Tensor) -> torch.Tensor:
    """[3, n]; `contrast` speaks about half of the prompts only, and says NaN about the others."""
    warm = (images[:, 0] - images[:, 2]).mean((1, 2))
    contrast = images.flatten(1).std(1)
    contrast[: len(contrast) // 2] = float("nan")
    return torch.stack([warm, images.mean((1, 2, 3)), contrast])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--images", type=int, default=8, help="pictures of each prompt")
    parser.add_argument("--timesteps", type=int, default=4, help="trained on, of each picture")
    parser.add_argument("--sampling-steps", type=int, default=25)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--method", default="marble")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    pipe = StableDiffusion3Pipeline.from_pretrained(args.model).to(device)
    pipe.set_progress_bar_config(disable=True)
    transformer = pipe.transformer.requires_grad_(False)
    config = LoraConfig(r=16, lora_alpha=32, target_modules=["to_q", "to_k", "to_v", "to_out.0"])
    transformer.add_adapter(config, "default")
    transformer.add_adapter(config, "old")
    new = {n: p for n, p in transformer.named_parameters() if ".default." in n}
    old = {n: p for n, p in transformer.named_parameters() if ".old." in n}
    use(transformer, "default", new)
    follow(old, new, decay=0.0)
    optimizer = torch.optim.AdamW(new.values(), lr=3e-4)
    balancer = Balancer(transformer, NAMES, method=args.method, every=2)

    prompts = [p for p in PROMPTS for _ in range(args.images)]
    group = torch.arange(len(PROMPTS)).repeat_interleave(args.images)
    with torch.no_grad():
        text, _, pooled, _ = pipe.encode_prompt(prompts, prompts, prompts, device=device)

    def velocity(x: torch.Tensor, t: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return transformer(
            hidden_states=x,
            timestep=t * 1000,
            encoder_hidden_states=text[at],
            pooled_projections=pooled[at],
            return_dict=False,
        )[0].float()

    for epoch in range(args.epochs):
        use(transformer, "old", new)
        with torch.no_grad():
            x_0 = pipe(
                prompt_embeds=text,
                pooled_prompt_embeds=pooled,
                num_inference_steps=args.sampling_steps,
                guidance_scale=1.0,
                output_type="latent",
            ).images.float()
            latents = x_0 / pipe.vae.config.scaling_factor + pipe.vae.config.shift_factor
            images = pipe.vae.decode(latents, return_dict=False)[0].float().clamp(-1, 1)
        scores = rewards_of(images).cpu()
        batch = balancer.batch(scores, group)

        # Every picture at several timesteps: the same index in several micro-batches.
        pairs = torch.arange(len(x_0)).repeat(args.timesteps)
        t = torch.rand(len(pairs), device=device) * 0.98 + 0.01
        noise = torch.randn(len(pairs), *x_0.shape[1:], device=device)
        parts = torch.arange(len(pairs)).split(args.batch)
        plan = balancer.begin_step(batch, epoch, micro_batches=len(parts), pairs=args.timesteps)
        for part in parts:
            at, t_B = pairs[part], t[part]
            level = t_B.view(-1, 1, 1, 1)
            x_t = (1 - level) * x_0[at] + level * noise[part]
            use(transformer, "old", new)
            with torch.no_grad():
                v_old = velocity(x_t, t_B, at)
            use(transformer, "default", new)
            with plan.recording():
                v = velocity(x_t, t_B, at)
            plan.backward(v, Point(x_t, t_B, x_0[at], v_old=v_old), at)
        report = plan.finish()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        follow(old, new, decay=min(0.001 * epoch, 0.5))

        means = "  ".join(f"{n} {m:+.3f}" for n, m in zip(NAMES, scores.nanmean(1)))
        shares = ", ".join(f"{a:.2f}" for a in report.alpha_K)
        far = sum(
            float((old[n.replace(".default.", ".old.")] - p).square().sum()) for n, p in new.items()
        )
        print(f"epoch {epoch + 1}: {means}  α {shares}  v_old {far**0.5:.2g} away", flush=True)


def use(transformer: torch.nn.Module, name: str, trained: dict[str, torch.nn.Parameter]) -> None:
    """Draw with this adapter. peft also turns gradients on and off as it switches: undone here, as
    the Balancer wants the same trained parameters throughout."""
    transformer.set_adapter(name)
    for parameter in transformer.parameters():
        parameter.requires_grad_(False)
    for parameter in trained.values():
        parameter.requires_grad_(True)


@torch.no_grad()
def follow(
    old: dict[str, torch.nn.Parameter], new: dict[str, torch.nn.Parameter], decay: float
) -> None:
    """v_old ← decay · v_old + (1 − decay) · v_θ."""
    for name, parameter in new.items():
        old[name.replace(".default.", ".old.")].lerp_(parameter, 1 - decay)


if __name__ == "__main__":
    main()
