"""Stable Diffusion 3 and 3.5, and the studio: everything a `StableDiffusion3Pipeline` opens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from marble.errors import MarbleError
from marble.models import tiny
from marble.models.conditioning import Conditioning
from marble.models.family import KL_VAE, Family, Layout, Published, Rest, Section
from marble.models.pipeline import JOINT_ATTENTION, PipelineAdapter, Reader, line_shift

CLIP_TOKENS = 77


class SD3Adapter(PipelineAdapter):
    """Three text encoders side by side, the T5 of them optional; latents as they are."""

    pipeline_class = "StableDiffusion3Pipeline"
    text_tokens, text_tokens_most = 256, 512
    readers = ("tokenizer", "tokenizer_3")
    optional_parts = ("text_encoder_3", "tokenizer_3", "image_encoder", "feature_extractor")
    lora_targets = JOINT_ATTENTION

    def _shape_for(self, resolution: int | None) -> tuple[int, tuple[int, ...]]:
        config, scale = self.transformer.config, self.pipeline.vae_scale_factor
        side = self._side(resolution, config.sample_size * scale, scale * config.patch_size)
        most = config.pos_embed_max_size * config.patch_size * scale
        if side > most:
            raise MarbleError(f"model.resolution={resolution}: this model takes at most {most}")
        return side, (config.in_channels, side // scale, side // scale)

    def _suit_compiler(self) -> None:
        from marble.models.joint_attention import use_joint_attention

        super()._suit_compiler()
        use_joint_attention(self.transformer)

    @classmethod
    def reader(cls, tokenizers: Mapping[str, Any], max_tokens: int, options: Section) -> Reader:
        """The encoders see the prompt side by side: one that reads it all is enough."""
        clip, t5 = tokenizers["tokenizer"], tokenizers["tokenizer_3"]
        short = Reader(clip, clip.model_max_length)
        return Reader(t5, max_tokens) if t5 is not None and max_tokens > short.limit else short

    @torch.no_grad()
    def _encode(self, prompts: list[str]) -> Conditioning:
        from marble.models.quiet import quiet

        with quiet():
            embeds, _, pooled, _ = self.pipeline.encode_prompt(
                prompts,
                None,
                None,
                device=self.device,
                do_classifier_free_guidance=False,
                max_sequence_length=self.max_tokens,
            )
        return Conditioning({"prompt_embeds": embeds, "pooled_prompt_embeds": pooled})

    def grid(self, steps: int) -> Tensor:
        config = self.pipeline.scheduler.config
        if not config.get("use_dynamic_shifting"):
            return self._levels(num_inference_steps=steps)
        patch = self.transformer.config.patch_size
        _, height, width = self.latent_shape
        mu = line_shift(config, (height // patch) * (width // patch))
        return self._levels(num_inference_steps=steps, mu=mu)

    def velocity(self, x_t: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        timestep = sigma_B.float() * self.pipeline.scheduler.config.num_train_timesteps
        with self.autocast():
            v = self.transformer(
                hidden_states=x_t.to(self.dtype),
                timestep=timestep,
                encoder_hidden_states=cond.tensors["prompt_embeds"].to(self.dtype),
                pooled_projections=cond.tensors["pooled_prompt_embeds"].to(self.dtype),
                return_dict=False,
            )[0]
        return v.float()

    def _for_vae(self, latents: Tensor) -> Tensor:
        config = self.pipeline.vae.config
        return latents / config.scaling_factor + (config.shift_factor or 0.0)


_ENCODERS = {
    "vae": 83_819_683,
    "text_encoder": 123_650_304,
    "text_encoder_2": 694_659_840,
    "text_encoder_3": 4_762_310_656,
}
_SPARE = ("text_encoders/*", "sd3*.safetensors")
_MEDIUM: dict[str, Any] = {
    "sample_size": 128,
    "num_layers": 24,
    "num_attention_heads": 24,
    "caption_projection_dim": 1536,
    "pos_embed_max_size": 384,
    "dual_attention_layers": tuple(range(13)),
    "qk_norm": "rms_norm",
}
_LARGE = _MEDIUM | {
    "num_layers": 38,
    "num_attention_heads": 38,
    "caption_projection_dim": 2432,
    "pos_embed_max_size": 192,
    "dual_attention_layers": (),
}


class SD3(Family):
    pipeline = "StableDiffusion3Pipeline"
    transformer = "SD3Transformer2DModel"
    parts = (*Family.parts, "text_encoder_2", "tokenizer_2")
    adapter = SD3Adapter
    rest = Rest("AutoencoderKL", KL_VAE, {"shift": 3.0}, extra_tokens=77)
    published: ClassVar = {
        f"stabilityai/stable-diffusion-3.5-{name}": Published(
            config, _ENCODERS, resolution=1024, gated=True, spare=_SPARE
        )
        for name, config in (("medium", _MEDIUM), ("large", _LARGE))
    }

    @classmethod
    def layout(cls, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> Layout:
        factor = 2 ** (len(vae.get("block_out_channels", (0,) * 4)) - 1)
        return Layout(
            layers=transformer["num_layers"],
            width=transformer["num_attention_heads"] * transformer["attention_head_dim"],
            channels=transformer["in_channels"],
            factor=factor,
            patch=transformer["patch_size"],
            resolution=transformer["sample_size"] * factor,
            text=CLIP_TOKENS + cls.adapter.text_tokens,
            fixed_text=CLIP_TOKENS,
        )

    @classmethod
    def tiny(
        cls,
        folder: str | Path,
        *,
        seed: int = 0,
        t5: bool = False,
        sample_size: int = 8,
        shift: float = 3.0,
        layers: int = 2,
        width: int = tiny.WIDTH,
        tokens: int = CLIP_TOKENS,
        dual: bool = True,
        scheduler: dict[str, Any] | None = None,
    ) -> Path:
        """Pictures of 2·sample_size pixels; prompts of up to `tokens` bytes without the T5.

        `dual`: a second attention in the first block, as Medium has it and Large has not.
        """
        import diffusers

        def build() -> Any:
            transformer = diffusers.SD3Transformer2DModel(
                sample_size=sample_size,
                patch_size=1,
                in_channels=4,
                out_channels=4,
                num_layers=layers,
                attention_head_dim=width // 2,
                num_attention_heads=2,
                joint_attention_dim=2 * tiny.WIDTH,
                caption_projection_dim=width,
                pooled_projection_dim=2 * tiny.WIDTH,
                pos_embed_max_size=2 * sample_size,
                dual_attention_layers=(0,) if dual else (),
                qk_norm="rms_norm",
            )
            vae = tiny.kl_vae()
            tokenizer = tiny.clip_tokenizer(tokens)
            return diffusers.StableDiffusion3Pipeline(
                transformer=transformer,
                scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
                    shift=shift, **(scheduler or {})
                ),
                vae=vae,
                text_encoder=tiny.clip(tokenizer),
                tokenizer=tokenizer,
                text_encoder_2=tiny.clip(tokenizer),
                tokenizer_2=tokenizer,
                text_encoder_3=tiny.t5() if t5 else None,
                tokenizer_3=tiny.t5_tokenizer() if t5 else None,
            )

        return tiny.save(build, folder, seed)
