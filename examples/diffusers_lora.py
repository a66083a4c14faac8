"""Several rewards in a plain diffusers, accelerate and peft LoRA script.

    python examples/diffusers_lora.py --model stabilityai/stable-diffusion-3.5-medium
    accelerate launch examples/diffusers_lora.py --model FOLDER

`Balancer` takes the place of a loss: the lines marked with ←. Everything else is diffusers' own.
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import gather
from diffusers import StableDiffusion3Pipeline
from peft import LoraConfig, get_peft_model_state_dict

from marble import Balancer
from marble.objectives import Point

PROMPTS = ["a photo of a red apple", "a house by the sea", "a cat asleep", "two boats at night"]


def rewards_of(images: torch.Tensor) -> torch.Tensor:
    """[3, n]: warm, bright, rich in contrast. NaN would say that a reward does not apply."""
    warm = (images[:, 0] - images[:, 2]).mean((1, 2))
    return torch.stack([warm, images.mean((1, 2, 3)), images.flatten(1).std(1)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", default="lora")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--images", type=int, default=8, help="pictures of each prompt")
    parser.add_argument("--sampling-steps", type=int, default=25)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()

    accelerator = Accelerator()
    torch.manual_seed(accelerator.process_index)
    pipe = StableDiffusion3Pipeline.from_pretrained(args.model).to(accelerator.device)
    pipe.set_progress_bar_config(disable=True)
    transformer = pipe.transformer.requires_grad_(False)
    targets = ["to_q", "to_k", "to_v", "to_out.0"]
    transformer.add_adapter(LoraConfig(r=16, lora_alpha=32, target_modules=targets))
    parameters = [p for p in transformer.parameters() if p.requires_grad]
    optimizer = accelerator.prepare(torch.optim.AdamW(parameters, lr=args.lr))
    balancer = Balancer(transformer, ["warm", "bright", "contrast"])  # ←

    prompts = [p for p in PROMPTS for _ in range(args.images)]
    with torch.no_grad():
        text, _, pooled, _ = pipe.encode_prompt(
            prompts, prompts, prompts, device=accelerator.device
        )
    group = torch.arange(len(PROMPTS)).repeat_interleave(args.images)

    for step in range(args.steps):
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
        # Scores of all processes, in one order; this process's pictures are a part of them.
        scores = gather(rewards_of(images).T.contiguous()).T.cpu()
        groups = gather(group.to(accelerator.device) + 1000 * accelerator.process_index).cpu()
        batch = balancer.batch(scores, groups)  # ←
        first = accelerator.process_index * len(prompts)

        t = torch.rand(len(x_0), device=x_0.device) * 0.98 + 0.01
        noise = torch.randn_like(x_0)
        x_t = (1 - t.view(-1, 1, 1, 1)) * x_0 + t.view(-1, 1, 1, 1) * noise
        parts = torch.arange(len(x_0)).split(args.batch)
        plan = balancer.begin_step(batch, step, micro_batches=len(parts))  # ←
        for at in parts:
            with plan.recording():  # ←
                v = transformer(
                    hidden_states=x_t[at],
                    timestep=t[at] * 1000,
                    encoder_hidden_states=text[at],
                    pooled_projections=pooled[at],
                    return_dict=False,
                )[0].float()
            # On policy: v_old, which drew the pictures, is v itself before the step.
            point = Point(x_t[at], t[at], x_0[at], v_old=v.detach())
            plan.backward(v, point, first + at)  # ←
        report = plan.finish()
        optimizer.step()
        optimizer.zero_grad()
        if accelerator.is_main_process:
            means = "  ".join(f"{n} {m:+.3f}" for n, m in zip(balancer.names, scores.mean(1)))
            shares = ", ".join(f"{a:.2f}" for a in report.alpha_K)
            print(f"step {step + 1}: {means}  α {shares}", flush=True)

    if accelerator.is_main_process:
        StableDiffusion3Pipeline.save_lora_weights(
            args.out, transformer_lora_layers=get_peft_model_state_dict(transformer)
        )


if __name__ == "__main__":
    main()
