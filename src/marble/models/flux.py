"""FLUX.1 [dev]: a number for the strength of guidance is an input, in training as in sampling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor

from marble.models import tiny
from marble.models.conditioning import Conditioning
from marble.models.family import KL_VAE, Family, Layout, Published, Rest, Section
from marble.models.packing import DEFAULT_LATENTS, PackedAdapter, pack, positions, unpack
from marble.models.pipeline import Reader


class FluxOptions(Section):
    guidance: float = Field(
        default=3.5,
        ge=0,
        description="Strength of guidance that the model is told, in rollouts, training and "
        "evaluation. rollout.guidance is classifier-free guidance on top of it: 1, none.",
    )


class FluxAdapter(PackedAdapter):
    """A T5 for the words, a CLIP for the whole; the guidance is embedded beside the time."""

    pipeline_class = "FluxPipeline"
    text_tokens = text_tokens_most = 512
    readers = ("tokenizer_2",)
    optional_parts = ("image_encoder", "feature_extractor")

    @classmethod
    def reader(cls, tokenizers: Mapping[str, Any], max_tokens: int, options: Section) -> Reader:
        return Reader(tokenizers["tokenizer_2"], max_tokens)

    @torch.no_grad()
    def _encode(self, prompts: list[str]) -> Conditioning:
        from marble.models.quiet import quiet

        with quiet():  # the CLIP sees the first 77 tokens only, which is as it should be
            embeds, pooled, _ = self.pipeline.encode_prompt(
                prompts, device=self.device, max_sequence_length=self.max_tokens
            )
        return Conditioning({"prompt_embeds": embeds, "pooled_prompt_embeds": pooled})

    def velocity(self, x_t: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        batch, _, height, width = x_t.shape
        text = cond.tensors["prompt_embeds"].to(self.dtype)
        strength = None
        if self.transformer.config.guidance_embeds:
            told = cast(FluxOptions, self.options).guidance
            strength = torch.full((batch,), told, device=x_t.device)
        with self.autocast():
            v = self.transformer(
                hidden_states=pack(x_t.to(self.dtype)),
                timestep=sigma_B.float(),
                guidance=strength,
                pooled_projections=cond.tensors["pooled_prompt_embeds"].to(self.dtype),
                encoder_hidden_states=text,
                txt_ids=torch.zeros(text.shape[1], 3, device=x_t.device),
                img_ids=positions(height // 2, width // 2, 3, x_t.device),
                return_dict=False,
            )[0]
        return unpack(v, height, width).float()

    def _for_vae(self, latents: Tensor) -> Tensor:
        config = self.pipeline.vae.config
        return latents / config.scaling_factor + config.shift_factor


class Flux(Family):
    pipeline = "FluxPipeline"
    transformer = "FluxTransformer2DModel"
    parts = (*Family.parts, "text_encoder_2", "tokenizer_2")
    adapter = FluxAdapter
    rest = Rest("AutoencoderKL", KL_VAE, {"use_dynamic_shifting": True})
    Options = FluxOptions
    published: ClassVar = {
        "black-forest-labs/FLUX.1-dev": Published(
            {"guidance_embeds": True},
            {"vae": 83_819_683, "text_encoder": 123_060_480, "text_encoder_2": 4_762_310_656},
            resolution=1024,
            gated=True,
            spare=("flux1-dev.safetensors", "ae.safetensors"),
        ),
    }

    @classmethod
    def layout(cls, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> Layout:
        factor = 2 ** (len(vae.get("block_out_channels", (0,) * 4)) - 1)
        return Layout(
            layers=transformer["num_layers"] + transformer["num_single_layers"],
            width=transformer["num_attention_heads"] * transformer["attention_head_dim"],
            channels=transformer["in_channels"] // 4,
            factor=factor,
            patch=2,
            resolution=DEFAULT_LATENTS * factor,
            text=cls.adapter.text_tokens,
        )

    @classmethod
    def arguments(cls, *, guidance: float, options: Section) -> dict[str, Any]:
        call: dict[str, Any] = {"guidance_scale": cast(FluxOptions, options).guidance}
        if guidance > 1:
            call |= {"true_cfg_scale": guidance, "negative_prompt": cls.adapter.empty_prompt}
        return call

    @classmethod
    def tiny(cls, folder: str | Path, *, seed: int = 0) -> Path:
        import diffusers

        def build() -> Any:
            tokenizer = tiny.clip_tokenizer(77)
            transformer = diffusers.FluxTransformer2DModel(
                in_channels=16,
                num_layers=1,
                num_single_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=2 * tiny.WIDTH,
                pooled_projection_dim=tiny.WIDTH,
                guidance_embeds=True,
                axes_dims_rope=(4, 6, 6),
            )
            return diffusers.FluxPipeline(
                scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
                    shift=3.0, use_dynamic_shifting=True
                ),
                vae=tiny.kl_vae(),
                text_encoder=tiny.clip(tokenizer, "CLIPTextModel"),
                tokenizer=tokenizer,
                text_encoder_2=tiny.t5(),
                tokenizer_2=tiny.t5_tokenizer(),
                transformer=tiny.lively(transformer),
            )

        return tiny.save(build, folder, seed)
