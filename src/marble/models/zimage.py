"""Z-Image: text and picture in one sequence of their own lengths; time runs the other way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from marble.models import tiny
from marble.models.conditioning import MASK, Conditioning
from marble.models.family import KL_VAE, Family, Layout, Published, Rest, Section
from marble.models.pipeline import PipelineAdapter, Reader, chat, even_levels, line_shift

DEFAULT_SIDE = 1024
PATCH = 2


class ZImageAdapter(PipelineAdapter):
    """Ragged text: the transformer takes a list of prompts, each as long as it is."""

    pipeline_class = "ZImagePipeline"
    text_tokens, text_tokens_most = 512, 1024
    lora_targets = ("attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0")

    def _shape_for(self, resolution: int | None) -> tuple[int, tuple[int, ...]]:
        scale = self.pipeline.vae_scale_factor
        side = self._side(resolution, DEFAULT_SIDE, PATCH * scale)
        return side, (self.transformer.config.in_channels, side // scale, side // scale)

    @classmethod
    def reader(cls, tokenizers: Mapping[str, Any], max_tokens: int, options: Section) -> Reader:
        tokenizer = tokenizers["tokenizer"]
        return Reader(tokenizer, max_tokens, chat(tokenizer, thinking=True))

    @torch.no_grad()
    def _encode(self, prompts: list[str]) -> Conditioning:
        rows, _ = self.pipeline.encode_prompt(
            list(prompts),  # the pipeline writes into the list
            device=self.device,
            do_classifier_free_guidance=False,
            max_sequence_length=self.max_tokens,
        )
        mask = pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in rows], True)
        embeds = pad_sequence(rows, batch_first=True)
        return Conditioning({"prompt_embeds": embeds, MASK: mask}, ragged=("prompt_embeds", MASK))

    def grid(self, steps: int) -> Tensor:
        _, height, width = self.latent_shape
        mu = line_shift(self.pipeline.scheduler.config, (height // PATCH) * (width // PATCH))
        return self._levels(sigmas=even_levels(steps), mu=mu)

    def velocity(self, x_t: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        text = cond.tensors["prompt_embeds"].to(self.dtype)
        with self.autocast():
            rows = self.transformer(
                list(x_t.to(self.dtype).unsqueeze(2).unbind()),
                1 - sigma_B.float(),
                [row[:length] for row, length in zip(text, cond.lengths())],
                return_dict=False,
            )[0]
        return -torch.stack(list(rows)).squeeze(2).float()

    def _for_vae(self, latents: Tensor) -> Tensor:
        config = self.pipeline.vae.config
        return latents / config.scaling_factor + config.shift_factor


class ZImage(Family):
    pipeline = "ZImagePipeline"
    transformer = "ZImageTransformer2DModel"
    adapter = ZImageAdapter
    rest = Rest("AutoencoderKL", KL_VAE, {"shift": 3.0}, ragged=True)
    published: ClassVar = {
        "Tongyi-MAI/Z-Image": Published(
            {}, {"vae": 83_819_683, "text_encoder": 4_022_468_096}, resolution=DEFAULT_SIDE
        ),
    }

    @classmethod
    def layout(cls, transformer: Mapping[str, Any], vae: Mapping[str, Any]) -> Layout:
        return Layout(
            layers=transformer["n_layers"] + transformer["n_refiner_layers"],
            width=transformer["dim"],
            channels=transformer["in_channels"],
            factor=2 ** (len(vae.get("block_out_channels", (0,) * 4)) - 1),
            patch=PATCH,
            resolution=DEFAULT_SIDE,
            text=cls.adapter.text_tokens,
        )

    @classmethod
    def arguments(cls, *, guidance: float, options: Section) -> dict[str, Any]:
        """The pipeline counts from 0: v_c + g·(v_c − v_u)."""
        return {"guidance_scale": max(guidance, 1.0) - 1.0}

    @classmethod
    def tiny(cls, folder: str | Path, *, seed: int = 0) -> Path:
        import diffusers
        import transformers

        def build() -> Any:
            tokenizer = tiny.chat_tokenizer()
            encoder = transformers.Qwen3Config(
                vocab_size=len(tokenizer), **(tiny.LANGUAGE_MODEL | {"num_hidden_layers": 2})
            )
            transformer = diffusers.ZImageTransformer2DModel(
                in_channels=4,
                dim=tiny.WIDTH,
                n_layers=2,
                n_refiner_layers=1,
                n_heads=2,
                n_kv_heads=2,
                cap_feat_dim=tiny.WIDTH,
                axes_dims=[4, 6, 6],
                axes_lens=[1100, 32, 32],
            )
            return diffusers.ZImagePipeline(
                scheduler=diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
                vae=tiny.kl_vae(),
                text_encoder=transformers.Qwen3Model(encoder).eval(),
                tokenizer=tokenizer,
                transformer=tiny.lively(transformer),
            )

        return tiny.save(build, folder, seed)
