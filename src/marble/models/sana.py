"""SANA: linear attention over the latents of a deep autoencoder (32 pixels a latent)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor

from marble.models import tiny
from marble.models.conditioning import Conditioning
from marble.models.family import Family, Layout, Published, Section
from marble.models.pipeline import PipelineAdapter, Reader


class SanaOptions(Section):
    instruction: bool = Field(
        default=True,
        description="Put diffusers' instruction to write a richer prompt before every prompt.",
    )


class SanaAdapter(PipelineAdapter):
    """Text of a fixed length with a mask, seen by cross-attention."""

    pipeline_class = "SanaPipeline"
    text_tokens = text_tokens_most = 300
    lora_targets = tuple(
        f"{attention}.{layer}"
        for attention in ("attn1", "attn2")
        for layer in ("to_q", "to_k", "to_v", "to_out.0")
    )

    def _shape_for(self, resolution: int | None) -> tuple[int, tuple[int, ...]]:
        config, scale = self.transformer.config, self.pipeline.vae_scale_factor
        side = self._side(resolution, config.sample_size * scale, scale * config.patch_size)
        return side, (config.in_channels, side // scale, side // scale)

    @classmethod
    def reader(cls, tokenizers: Mapping[str, Any], max_tokens: int, options: Section) -> Reader:
        """The pipeline makes room for its instruction: the prompt's own tokens are what counts."""
        return Reader(tokenizers["tokenizer"], max_tokens, lambda text: text.lower().strip())

    def _encode(self, prompts: list[str]) -> Conditioning:
        return self._encode_after(prompts, self._instruction)

    @torch.no_grad()
    def _encode_after(self, prompts: list[str], instruction: list[str] | None) -> Conditioning:
        from marble.models.quiet import quiet

        with quiet():
            embeds, mask, _, _ = self.pipeline.encode_prompt(
                prompts,
                do_classifier_free_guidance=False,
                device=self.device,
                max_sequence_length=self.max_tokens,
                complex_human_instruction=instruction,
            )
        return Conditioning({"prompt_embeds": embeds, "prompt_attention_mask": mask})

    @property
    def _instruction(self) -> list[str] | None:
        if not cast(SanaOptions, self.options).instruction:
            return None
        default = signature(type(self.pipeline).__call__).parameters["complex_human_instruction"]
        return cast("list[str]", default.default)

    def _unconditional(self) -> Conditioning:
        return self._empty

    @cached_property
    def _empty(self) -> Conditioning:
        """The pipeline gives the empty prompt no instruction."""
        return self._encode_after([""] * self.encode_batch, None)[0].to("cpu")

    def grid(self, steps: int) -> Tensor:
        return self._levels(num_inference_steps=steps)

    def velocity(self, x_t: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        config = self.transformer.config
        scale = self.pipeline.scheduler.config.num_train_timesteps * config.timestep_scale
        with self.autocast():
            v = self.transformer(
                hidden_states=x_t.to(self.dtype),
                timestep=sigma_B.float() * scale,
                encoder_hidden_states=cond.tensors["prompt_embeds"].to(self.dtype),
                encoder_attention_mask=cond.tensors["prompt_attention_mask"],
                return_dict=False,
            )[0]
        if v.shape[1] == 2 * x_t.shape[1]:  # some predict a variance as well
            v = v.chunk(2, dim=1)[0]
        return v.float()

    def _for_vae(self, latents: Tensor) -> Tensor:
        return latents / self.pipeline.vae.config.scaling_factor


class Sana(Family):
    pipeline = "SanaPipeline"
    transformer = "SanaTransformer2DModel"
    adapter = SanaAdapter
    Options = SanaOptions
    published: ClassVar = {
        "Efficient-Large-Model/Sana_1600M_1024px_BF16_diffusers": Published(
            {}, {"vae": 312_250_275, "text_encoder": 2_614_341_888}, resolution=1024
        ),
    }

    @classmethod
    def layout(cls, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> Layout:
        factor = 2 ** (len(vae.get("encoder_block_out_channels", (0,) * 6)) - 1)
        return Layout(
            layers=transformer["num_layers"],
            width=transformer["num_attention_heads"] * transformer["attention_head_dim"],
            channels=transformer["in_channels"],
            factor=factor,
            patch=transformer["patch_size"],
            resolution=transformer["sample_size"] * factor,
            text=cls.adapter.text_tokens,
        )

    @classmethod
    def arguments(cls, *, guidance: float, options: Section) -> dict[str, Any]:
        call: dict[str, Any] = {"guidance_scale": guidance, "use_resolution_binning": False}
        if not cast(SanaOptions, options).instruction:
            call["complex_human_instruction"] = None
        return call

    @classmethod
    def tiny(cls, folder: str | Path, *, seed: int = 0, scheduler: Any = None) -> Path:
        """Pictures of 32 pixels."""
        import diffusers
        import transformers

        def build() -> Any:
            tokenizer = tiny.gemma_tokenizer()
            encoder = transformers.Gemma2Config(
                vocab_size=len(tokenizer), **tiny.LANGUAGE_MODEL, pad_token_id=0
            )
            vae = diffusers.AutoencoderDC(
                latent_channels=4,
                attention_head_dim=4,
                encoder_block_out_channels=(8, 8),
                decoder_block_out_channels=(8, 8),
                encoder_block_types="ResBlock",
                decoder_block_types="ResBlock",
                encoder_layers_per_block=(1, 1),
                decoder_layers_per_block=(1, 1),
                encoder_qkv_multiscales=((), ()),
                decoder_qkv_multiscales=((), ()),
                scaling_factor=0.4,
            )
            transformer = diffusers.SanaTransformer2DModel(
                in_channels=4,
                out_channels=4,
                num_attention_heads=2,
                attention_head_dim=16,
                num_layers=2,
                num_cross_attention_heads=2,
                cross_attention_head_dim=16,
                cross_attention_dim=tiny.WIDTH,
                caption_channels=tiny.WIDTH,
                sample_size=16,
            )
            return diffusers.SanaPipeline(
                tokenizer=tokenizer,
                text_encoder=transformers.Gemma2Model(encoder).eval(),
                vae=vae,
                transformer=tiny.lively(transformer),
                scheduler=scheduler or diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
            )

        return tiny.save(build, folder, seed)
