"""Stable Diffusion 3 and 3.5, and the studio: everything a `StableDiffusion3Pipeline` opens."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from accelerate import cpu_offload
from diffusers import StableDiffusion3Pipeline
from torch import Tensor

from marble.errors import MarbleError
from marble.models import lora
from marble.models.base import DTYPES, Adapter
from marble.models.conditioning import Conditioning
from marble.models.folder import pipeline_index
from marble.models.quiet import quiet

# What diffusers itself uses when nothing is said.
T5_TOKENS = 256
T5_TOKENS_MOST = 512
# Characters of a prompt that are looked at first when its tokens are counted.
PREFIX = 2000
_ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
_PARTS = ("text_encoder_3", "tokenizer_3", "image_encoder", "feature_extractor")


class SD3Adapter(Adapter):
    """Adapter for `StableDiffusion3Pipeline` folders."""

    family = "StableDiffusion3Pipeline"
    lora_targets = (
        "attn.to_q",
        "attn.to_k",
        "attn.to_v",
        "attn.to_out.0",
        "attn.add_q_proj",
        "attn.add_k_proj",
        "attn.add_v_proj",
        "attn.to_add_out",
    )

    def __init__(
        self,
        pipeline: Any,
        *,
        device: str | torch.device = "cpu",
        dtype: str = "fp32",
        precision: str | None = None,
        resolution: int | None = None,
        max_sequence_length: int | None = None,
        truncate_prompts: bool = False,
        offload_encoders: bool = False,
        gradient_checkpointing: bool = False,
        compile: bool = False,
        denoiser_on_cpu: bool = False,
    ) -> None:
        super().__init__(device, dtype, precision)
        self.pipeline = pipeline
        self.t5_tokens = T5_TOKENS if max_sequence_length is None else max_sequence_length
        self.truncate_prompts = truncate_prompts
        if self.t5_tokens > T5_TOKENS_MOST:
            raise MarbleError(f"model.max_sequence_length: at most {T5_TOKENS_MOST}")
        for name, part in pipeline.components.items():
            if isinstance(part, torch.nn.Module):
                streamed = offload_encoders and name in _ENCODERS
                stays = streamed or (denoiser_on_cpu and name == "transformer")
                part.requires_grad_(False).eval().to("cpu" if stays else self.device)
                if streamed:  # each layer visits the device while it works: the T5 is 9.5 GB
                    cpu_offload(part, self.device)
        with quiet():  # decoding in 16 bits costs visible levels and saves little
            pipeline.vae.to(torch.float32)
        pipeline.vae.to(memory_format=torch.channels_last)  # convolutions run a third faster
        self._latent_shape = self._shape_for(resolution)
        if gradient_checkpointing:
            self.transformer.enable_gradient_checkpointing()
        if compile:
            for block in self.transformer.transformer_blocks:
                block.compile()

    @classmethod
    def from_folder(cls, folder: Path, **options: Any) -> SD3Adapter:
        dtype = DTYPES[options.get("dtype", "fp32")]
        index = pipeline_index(folder)
        # Parts that the folder leaves out (the T5 often is) have to be named as absent.
        absent = {part: None for part in _PARTS if index.get(part, [None])[0] is None}
        with quiet(), _opening(folder):
            pipeline = StableDiffusion3Pipeline.from_pretrained(
                folder, torch_dtype=dtype, use_safetensors=True, local_files_only=True, **absent
            )
        return cls(pipeline, **options)

    @property
    def transformer(self) -> Any:
        return self.pipeline.transformer

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self._latent_shape

    def _shape_for(self, resolution: int | None) -> tuple[int, ...]:
        config, scale = self.transformer.config, self.pipeline.vae_scale_factor
        side = config.sample_size if resolution is None else resolution // scale
        unit = scale * config.patch_size
        if resolution is not None and resolution % unit:
            raise MarbleError(f"model.resolution={resolution}: must be a multiple of {unit}")
        most = config.pos_embed_max_size * config.patch_size * scale
        if side * scale > most:
            raise MarbleError(f"model.resolution={resolution}: this model takes at most {most}")
        return (config.in_channels, side, side)

    # ---- prompts ----------------------------------------------------------------------------

    def check_prompts(self, prompts: Iterable[str]) -> None:
        if not self.truncate_prompts:
            pipe = self.pipeline
            _check_lengths(prompts, pipe.tokenizer, pipe.tokenizer_3, self.t5_tokens)

    @classmethod
    def check_folder_prompts(
        cls, folder: Path, prompts: Iterable[str], max_sequence_length: int | None
    ) -> None:
        """`check_prompts` before anything else is loaded: it takes the tokenizers alone."""
        index = pipeline_index(folder)
        found = []
        for name in ("tokenizer", "tokenizer_3"):
            library, kind = index.get(name, (None, None))
            with quiet(), _opening(folder / name):
                found.append(
                    getattr(import_module(library), kind).from_pretrained(folder / name)
                    if library is not None
                    else None
                )
        _check_lengths(prompts, found[0], found[1], max_sequence_length or T5_TOKENS)

    @torch.no_grad()
    def _encode(self, prompts: list[str]) -> Conditioning:
        if self.pipeline.text_encoder is None:
            raise MarbleError(f'text encoders are freed and "{prompts[0][:80]}" is not cached')
        with quiet():
            embeds, _, pooled, _ = self.pipeline.encode_prompt(
                prompts,
                None,
                None,
                device=self.device,
                do_classifier_free_guidance=False,
                max_sequence_length=self.t5_tokens,
            )
        return Conditioning({"prompt_embeds": embeds, "pooled_prompt_embeds": pooled})

    def drop_encoders(self) -> None:
        for name in _ENCODERS:
            self.pipeline.register_modules(**{name: None})
        self._free_memory()

    def _free_memory(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # ---- the flow ---------------------------------------------------------------------------

    def grid(self, steps: int) -> Tensor:
        """Exactly the noise levels diffusers' own pipeline would use, shift included."""
        scheduler = copy.deepcopy(self.pipeline.scheduler)
        options = {}
        if scheduler.config.get("use_dynamic_shifting"):
            options["mu"] = self._dynamic_shift(scheduler.config)
        scheduler.set_timesteps(steps, **options)
        return scheduler.sigmas.clone()

    def _dynamic_shift(self, config: Mapping[str, Any]) -> float:
        """μ of resolution-dependent shifting: a line through (base_len, base), (max_len, max)."""
        patch = self.transformer.config.patch_size
        _, height, width = self.latent_shape
        tokens = (height // patch) * (width // patch)
        base_length, max_length = config["base_image_seq_len"], config["max_image_seq_len"]
        slope = (config["max_shift"] - config["base_shift"]) / (max_length - base_length)
        return float(config["base_shift"] + slope * (tokens - base_length))

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

    @torch.no_grad()
    def decode(self, latents: Tensor, batch_size: int | None = None) -> Tensor:
        vae = self.pipeline.vae
        latents = latents.float() / vae.config.scaling_factor + (vae.config.shift_factor or 0.0)
        # On a CPU small batches stay in the cache.
        size = batch_size or (8 if self.device.type == "cpu" else max(1, len(latents)))
        pictures = []
        for part in latents.split(size):
            part = part.to(self.device, memory_format=torch.channels_last)
            picture = vae.decode(part, return_dict=False)[0]
            levels = (picture / 2 + 0.5).clamp(0, 1) * 255
            pictures.append(levels.round().to(torch.uint8).cpu())
        return torch.cat(pictures)

    # ---- export -----------------------------------------------------------------------------

    def _write_lora(self, folder: Path, values: Mapping[str, Tensor]) -> None:
        lora.write_file(folder, values, lora.config_of(self.transformer))


@contextmanager
def _opening(folder: Path) -> Iterator[None]:
    """One clear line for files that diffusers and transformers cannot make sense of."""
    try:
        yield
    except Exception as error:  # their parsers raise anything, plain `Exception` included
        cause = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise MarbleError(
            f"{folder}: cannot be opened ({cause}); is a file missing or damaged?"
        ) from None


def _check_lengths(
    prompts: Iterable[str], tokenizer: Any, tokenizer_3: Any, t5_tokens: int
) -> None:
    """The three encoders see the prompt side by side: one that reads it all is enough."""
    limits = [(tokenizer, tokenizer.model_max_length)] if tokenizer is not None else []
    if tokenizer_3 is not None:
        limits.append((tokenizer_3, t5_tokens))
    prompts = list(prompts)
    if not prompts or not limits:
        return
    tokenizer, limit = max(limits, key=lambda pair: pair[1])
    with quiet():
        counts = _count_tokens(prompts, tokenizer, limit)
    for prompt, count in zip(prompts, counts):
        if count > limit:
            shown = prompt if len(prompt) <= 80 else prompt[:77] + "…"
            more = " or more" if len(prompt) > PREFIX else ""
            raise MarbleError(
                f'prompt too long: "{shown}" has {count}{more} tokens, the text encoders take '
                f"{limit}; shorten it, raise model.max_sequence_length or set "
                "model.truncate_prompts=true"
            )


def _count_tokens(prompts: list[str], tokenizer: Any, limit: int) -> list[int]:
    """Tokens of each prompt; of a long one whose beginning is beyond `limit`, of that alone.

    Rules of a tokenizer may take time quadratic in the length: a book as a prompt must not hang.
    """
    counts = [len(ids) for ids in tokenizer([p[:PREFIX] for p in prompts])["input_ids"]]
    return [
        len(tokenizer(prompt)["input_ids"]) if len(prompt) > PREFIX and count <= limit else count
        for prompt, count in zip(prompts, counts)
    ]
