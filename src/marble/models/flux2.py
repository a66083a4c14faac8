"""FLUX.2 [klein]: one language model reads the prompt, its layers side by side in the channels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from marble.errors import MarbleError
from marble.models import tiny
from marble.models.conditioning import Conditioning
from marble.models.family import Family, Layout, Published, Rest, Section
from marble.models.packing import DEFAULT_LATENTS, positions
from marble.models.pipeline import JOINT_ATTENTION, PipelineAdapter, Reader, chat, even_levels


class Flux2Adapter(PipelineAdapter):
    """Latents [4C, H/2, W/2], normalised by the statistics the autoencoder carries."""

    pipeline_class = "Flux2KleinPipeline"
    text_tokens = text_tokens_most = 512
    lora_targets = (*JOINT_ATTENTION, "attn.to_qkv_mlp_proj")

    @classmethod
    def targets_in(cls, weights: Iterable[str]) -> Sequence[str]:
        """`attn.to_out` is a layer in single blocks and a list of layers in double ones."""
        out = re.compile(r"(single_transformer_blocks\.\d+\.attn\.to_out)\.(base_layer\.)?weight")
        single = {match[1] for name in weights if (match := out.fullmatch(name))}
        return (*cls.lora_targets, *sorted(single))

    def _shape_for(self, resolution: int | None) -> tuple[int, tuple[int, ...]]:
        scale = self.pipeline.vae_scale_factor
        side = self._side(resolution, DEFAULT_LATENTS * scale, 2 * scale)
        latents = side // (2 * scale)
        return side, (self.transformer.config.in_channels, latents, latents)

    @classmethod
    def reader(cls, tokenizers: Mapping[str, Any], max_tokens: int, options: Section) -> Reader:
        tokenizer = tokenizers["tokenizer"]
        return Reader(tokenizer, max_tokens, chat(tokenizer, thinking=False))

    @torch.no_grad()
    def _encode(self, prompts: list[str]) -> Conditioning:
        embeds, _ = self.pipeline.encode_prompt(
            prompts, device=self.device, max_sequence_length=self.max_tokens
        )
        return Conditioning({"prompt_embeds": embeds})

    def grid(self, steps: int) -> Tensor:
        from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

        _, height, width = self.latent_shape
        mu = compute_empirical_mu(image_seq_len=height * width, num_steps=steps)
        return self._levels(sigmas=even_levels(steps), mu=mu)

    def velocity(self, x_t: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        _, _, height, width = x_t.shape
        text = cond.tensors["prompt_embeds"].to(self.dtype)
        where = torch.zeros(text.shape[1], 4, device=x_t.device)
        where[:, 3] = torch.arange(text.shape[1], device=x_t.device)
        with self.autocast():
            v = self.transformer(
                hidden_states=x_t.to(self.dtype).flatten(2).transpose(1, 2),
                timestep=sigma_B.float(),
                guidance=None,
                encoder_hidden_states=text,
                txt_ids=where,
                img_ids=positions(height, width, 4, x_t.device),
                return_dict=False,
            )[0]
        return v.transpose(1, 2).reshape(x_t.shape).float()

    def _guided(self, cond: Conditioning, guidance: float) -> Any:
        if guidance > 1 and self.pipeline.config.is_distilled:
            raise MarbleError(
                "rollout.guidance: this model is distilled and takes none; set it to 1, or use the "
                "base model"
            )
        return super()._guided(cond, guidance)

    def _for_vae(self, latents: Tensor) -> Tensor:
        vae = self.pipeline.vae
        mean = vae.bn.running_mean.view(1, -1, 1, 1).to(latents)
        std = torch.sqrt(vae.bn.running_var.view(1, -1, 1, 1).to(latents) + vae.bn.eps)
        b, c, h, w = latents.shape
        squares = (latents * std + mean).reshape(b, c // 4, 2, 2, h, w)
        return squares.permute(0, 1, 4, 2, 5, 3).reshape(b, c // 4, 2 * h, 2 * w)


class Flux2(Family):
    pipeline = "Flux2KleinPipeline"
    transformer = "Flux2Transformer2DModel"
    adapter = Flux2Adapter
    rest = Rest("AutoencoderKLFlux2", {}, {"use_dynamic_shifting": True})
    published: ClassVar = {
        "black-forest-labs/FLUX.2-klein-base-4B": Published(
            {
                "num_layers": 5,
                "num_single_layers": 20,
                "num_attention_heads": 24,
                "joint_attention_dim": 7680,
                "guidance_embeds": False,
            },
            {"vae": 84_046_372, "text_encoder": 4_022_468_096},
            resolution=1024,
        ),
    }

    @classmethod
    def layout(cls, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> Layout:
        factor = 2 ** (len(vae.get("block_out_channels", (0,) * 4)) - 1)
        return Layout(
            layers=transformer["num_layers"] + transformer["num_single_layers"],
            width=transformer["num_attention_heads"] * transformer["attention_head_dim"],
            channels=transformer["in_channels"],
            factor=2 * factor,
            patch=1,
            resolution=DEFAULT_LATENTS * factor,
            text=cls.adapter.text_tokens,
        )

    @classmethod
    def tiny(cls, folder: str | Path, *, seed: int = 0) -> Path:
        """The pipeline takes the language model's layers 9, 18 and 27: it has 28."""
        import diffusers
        import transformers

        def build() -> Any:
            tokenizer = tiny.chat_tokenizer()
            encoder = transformers.Qwen3Config(
                vocab_size=len(tokenizer), **(tiny.LANGUAGE_MODEL | {"num_hidden_layers": 28})
            )
            vae: Any = diffusers.AutoencoderKLFlux2(
                down_block_types=("DownEncoderBlock2D",) * 2,
                up_block_types=("UpDecoderBlock2D",) * 2,
                block_out_channels=(8, 8),
                layers_per_block=1,
                latent_channels=4,
                norm_num_groups=4,
            )
            vae.bn.running_mean.normal_()
            vae.bn.running_var.uniform_(0.5, 2.0)
            transformer = diffusers.Flux2Transformer2DModel(
                in_channels=16,
                num_layers=1,
                num_single_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=3 * tiny.WIDTH,
                axes_dims_rope=(4, 4, 4, 4),
                guidance_embeds=False,
            )
            return diffusers.Flux2KleinPipeline(
                scheduler=diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
                vae=vae,
                text_encoder=transformers.Qwen3ForCausalLM(encoder).eval(),
                tokenizer=tokenizer,
                transformer=tiny.lively(transformer),
            )

        return tiny.save(build, folder, seed)
