"""Qwen-Image: ragged text of a vision-language model, the autoencoder of a video model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from marble.models import tiny
from marble.models.conditioning import MASK, Conditioning
from marble.models.family import Family, Layout, Published, Rest, Section
from marble.models.packing import DEFAULT_LATENTS, PackedAdapter, pack, unpack
from marble.models.pipeline import Reader

TEMPLATE_TOKENS = 34
"""Tokens of the pipeline's template before the prompt; it drops their embeddings."""


class QwenAdapter(PackedAdapter):
    """Ragged text with a mask. Guidance keeps the length of every token's velocity."""

    pipeline_class = "QwenImagePipeline"
    text_tokens, text_tokens_most = 512, 1024
    empty_prompt = " "
    encode_batch = 1  # the pipeline pads to the longest prompt of a batch

    @classmethod
    def reader(cls, tokenizers: Mapping[str, Any], max_tokens: int, options: Section) -> Reader:
        """What follows the prompt in the template (five tokens) has to fit as well."""
        return Reader(tokenizers["tokenizer"], max_tokens - 5)

    @torch.no_grad()
    def _encode(self, prompts: list[str]) -> Conditioning:
        embeds, mask = self.pipeline.encode_prompt(
            prompts, device=self.device, max_sequence_length=self.max_tokens
        )
        if mask is None:  # the pipeline drops a mask that hides nothing
            mask = torch.ones(embeds.shape[:2], dtype=torch.bool)
        tensors = {"prompt_embeds": embeds, MASK: mask.bool()}
        return Conditioning(tensors, ragged=("prompt_embeds", MASK))

    def velocity(self, x_t: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        batch, _, height, width = x_t.shape
        whole = len(set(cond.lengths())) == 1  # attention is faster without a mask
        with self.autocast():
            v = self.transformer(
                hidden_states=pack(x_t.to(self.dtype)),
                timestep=sigma_B.float(),
                encoder_hidden_states=cond.tensors["prompt_embeds"].to(self.dtype),
                encoder_hidden_states_mask=None if whole else cond.tensors[MASK],
                img_shapes=[[(1, height // 2, width // 2)]] * batch,
                return_dict=False,
            )[0]
        return unpack(v, height, width).float()

    def _combine(self, free: Tensor, bound: Tensor, guidance: float) -> Tensor:
        _, _, height, width = bound.shape
        guided = pack(super()._combine(free, bound, guidance))
        length = pack(bound).norm(dim=-1, keepdim=True) / guided.norm(dim=-1, keepdim=True)
        return unpack(guided * length, height, width)

    def _for_vae(self, latents: Tensor) -> Tensor:
        config = self.pipeline.vae.config
        mean = torch.tensor(config.latents_mean).view(1, -1, 1, 1).to(latents)
        std = torch.tensor(config.latents_std).view(1, -1, 1, 1).to(latents)
        return (latents * std + mean).unsqueeze(2)  # a video of one frame

    def _picture(self, decoded: Tensor) -> Tensor:
        return decoded[:, :, 0]


class Qwen(Family):
    pipeline = "QwenImagePipeline"
    transformer = "QwenImageTransformer2DModel"
    adapter = QwenAdapter
    rest = Rest("AutoencoderKLQwenImage", {}, {"use_dynamic_shifting": True}, ragged=True)
    published: ClassVar = {
        "Qwen/Qwen-Image": Published(
            {}, {"vae": 126_892_531, "text_encoder": 8_292_166_656}, resolution=1024
        ),
    }

    @classmethod
    def layout(cls, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> Layout:
        factor = 2 ** len(vae.get("temperal_downsample", (0,) * 3))
        return Layout(
            layers=transformer["num_layers"],
            width=transformer["num_attention_heads"] * transformer["attention_head_dim"],
            channels=transformer["in_channels"] // 4,
            factor=factor,
            patch=2,
            resolution=DEFAULT_LATENTS * factor,
            text=cls.adapter.text_tokens,
        )

    @classmethod
    def arguments(cls, *, guidance: float, options: Section) -> dict[str, Any]:
        if guidance <= 1:
            return {"true_cfg_scale": 1.0}
        return {"true_cfg_scale": guidance, "negative_prompt": cls.adapter.empty_prompt}

    @classmethod
    def tiny(cls, folder: str | Path, *, seed: int = 0) -> Path:
        import diffusers
        import transformers

        def build() -> Any:
            tokenizer = tiny.chat_tokenizer()
            end = tokenizer.pad_token_id
            text = tiny.LANGUAGE_MODEL | {"vocab_size": len(tokenizer)}
            text |= {"bos_token_id": end, "eos_token_id": end}
            text["rope_parameters"] = {
                "rope_type": "default",
                "rope_theta": 1e6,
                "mrope_section": [2, 3, 3],
            }
            vision = {
                "depth": 1,
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_heads": 2,
                "out_hidden_size": tiny.WIDTH,
                "fullatt_block_indexes": [0],
            }
            encoder = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision)
            vae = diffusers.AutoencoderKLQwenImage(
                base_dim=8,
                z_dim=4,
                dim_mult=[1, 1],
                num_res_blocks=1,
                temperal_downsample=[False],
                latents_mean=[-0.7, 0.1, 0.9, -0.2],
                latents_std=[2.8, 1.4, 2.3, 1.2],
            )
            transformer = diffusers.QwenImageTransformer2DModel(
                in_channels=16,
                out_channels=4,
                num_layers=2,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=tiny.WIDTH,
                axes_dims_rope=(4, 6, 6),
            )
            return diffusers.QwenImagePipeline(
                scheduler=diffusers.FlowMatchEulerDiscreteScheduler(
                    use_dynamic_shifting=True,
                    base_shift=0.5,
                    max_shift=0.9,
                    max_image_seq_len=8192,
                    shift_terminal=0.02,
                ),
                vae=vae,
                text_encoder=transformers.Qwen2_5_VLForConditionalGeneration(encoder).eval(),
                tokenizer=tokenizer,
                transformer=tiny.lively(transformer),
            )

        return tiny.save(build, folder, seed)
