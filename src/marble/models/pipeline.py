"""The adapter of a diffusers pipeline: what all families share, whatever their transformer is.

A family's own adapter says how prompts are encoded, which noise levels the pipeline uses, how the
transformer is called, and how latents enter the decoder.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from marble.errors import MarbleError
from marble.models import compiling, cpu
from marble.models.base import Adapter
from marble.models.cpu_decoding import CpuDecoder
from marble.models.decoding import Decoder, compilable, levels
from marble.models.folder import pipeline_index
from marble.models.precision import DTYPES
from marble.options import Section

# Characters of a prompt that are looked at first when its tokens are counted.
PREFIX = 2000
JOINT_ATTENTION = (
    "attn.to_q",
    "attn.to_k",
    "attn.to_v",
    "attn.to_out.0",
    "attn.add_q_proj",
    "attn.add_k_proj",
    "attn.add_v_proj",
    "attn.to_add_out",
)
"""Linears of attention over the picture's tokens and the text's."""
HALF = "decoding in fp16"
"""Name of a decision that a checkpoint keeps."""
DECODE_PIXELS = 9 * 512 * 512
"""Decoded at once on a GPU, at most: the decoder works in fp32 at full resolution."""


@dataclass(frozen=True)
class Reader:
    """The tokenizer that sees most of a prompt, and how much that is."""

    tokenizer: Any
    limit: int
    written: Callable[[str], str] = str
    """The prompt as it is tokenized, e.g. inside a chat template."""


class PipelineAdapter(Adapter):
    """Adapter of one kind of diffusers pipeline."""

    pipeline_class: ClassVar[str]
    text_tokens: ClassVar[int]
    """Tokens of the text encoder if a recipe says nothing: what diffusers itself uses."""
    text_tokens_most: ClassVar[int]
    readers: ClassVar[tuple[str, ...]] = ("tokenizer",)
    """Tokenizers that are asked whether a prompt is too long."""
    optional_parts: ClassVar[tuple[str, ...]] = ()
    """Parts that a folder may leave out."""

    def __init__(
        self,
        pipeline: Any,
        *,
        options: Section,
        device: str | torch.device = "cpu",
        dtype: str = "fp32",
        precision: str | None = None,
        resolution: int | None = None,
        max_sequence_length: int | None = None,
        truncate_prompts: bool = False,
        offload_encoders: bool = False,
        gradient_checkpointing: bool = False,
        compile: bool | Literal["auto"] = False,
        denoiser_on_cpu: bool = False,
    ) -> None:
        super().__init__(device, dtype, precision)
        self.pipeline, self.options = pipeline, options
        self._decoder: Decoder | CpuDecoder | None = None
        self.max_tokens = self.text_tokens if max_sequence_length is None else max_sequence_length
        self.truncate_prompts = truncate_prompts
        if self.max_tokens > self.text_tokens_most:
            raise MarbleError(f"model.max_sequence_length: at most {self.text_tokens_most}")
        self._place(offload_encoders, denoiser_on_cpu)
        self.side, self._latent_shape = self._shape_for(resolution)
        self.lora_targets = self.targets_in(n for n, _ in self.transformer.named_parameters())
        if self.low_on_cpu:
            cpu.make_fast(self.transformer)
        if gradient_checkpointing:
            self.transformer.enable_gradient_checkpointing()
        weights = sum(p.numel() for p in self.transformer.parameters())
        if compiling.wanted(compile, self.device, weights, lambda line: self.say(line)):
            self.compile_blocks()

    def _place(self, offload_encoders: bool, denoiser_on_cpu: bool) -> None:
        """Every part frozen, in evaluation mode and where it belongs."""
        from marble.models.quiet import quiet

        for name, part in self.pipeline.components.items():
            if isinstance(part, nn.Module):
                streamed = offload_encoders and name.startswith("text_encoder")
                stays = streamed or (denoiser_on_cpu and name == "transformer")
                part.requires_grad_(False).eval().to("cpu" if stays else self.device)
                if streamed:  # each layer visits the device while it works: a T5 is 9.5 GB
                    from accelerate import cpu_offload

                    cpu_offload(part, self.device)
        vae = self.pipeline.vae
        with quiet():  # bf16 would cost visible levels; see `decoding` for fp16
            vae.to(torch.float32)
        if not any(p.dim() == 5 for p in vae.parameters()):
            vae.to(memory_format=torch.channels_last)  # convolutions run a third faster

    @classmethod
    def from_folder(cls, folder: Path, **options: Any) -> PipelineAdapter:
        """The adapter of a checked pipeline folder. Options are those of `marble.models.load`."""
        import diffusers

        from marble.models.quiet import quiet

        dtype = DTYPES[options.get("dtype", "fp32")]
        index = pipeline_index(folder)
        # Parts that the folder leaves out (the T5 often is) have to be named as absent.
        absent = {part: None for part in cls.optional_parts if index.get(part, [None])[0] is None}
        with quiet(), opening(folder):
            pipeline = getattr(diffusers, cls.pipeline_class).from_pretrained(
                folder, torch_dtype=dtype, use_safetensors=True, local_files_only=True, **absent
            )
        return cls(pipeline, **options)

    @classmethod
    def targets_in(cls, weights: Iterable[str]) -> Sequence[str]:
        """The LoRA targets of a transformer with weights of these names."""
        return cls.lora_targets

    @property
    def transformer(self) -> Any:
        return self.pipeline.transformer

    @property
    def latent_shape(self) -> tuple[int, ...]:
        return self._latent_shape

    def compile_blocks(self, backend: str = "inductor") -> compiling.Compiled:
        self._suit_compiler()
        self.compiled = compiling.Compiled(
            blocks(self.transformer), lambda line: self.say(line), backend=backend
        )
        return self.compiled

    def _suit_compiler(self) -> None:
        """Gives the denoiser's parts the forms that compile to fewer and faster kernels; a family
        may know more of them. What they compute stays the same."""
        from marble.models.gelu import use_sigmoid

        use_sigmoid(self.transformer)

    # ---- what a family provides -----------------------------------------------------------

    @abstractmethod
    def _shape_for(self, resolution: int | None) -> tuple[int, tuple[int, ...]]:
        """Picture side in pixels, shape of a sample's latents; or an error that names the limit."""

    @classmethod
    @abstractmethod
    def reader(cls, tokenizers: Mapping[str, Any], max_tokens: int, options: Section) -> Reader:
        """The tokenizer that sees most of a prompt, of those in `readers`."""

    @abstractmethod
    def _for_vae(self, latents: Tensor) -> Tensor:
        """Latents in the scale and shape that the decoder takes."""

    def _picture(self, decoded: Tensor) -> Tensor:
        """[B, 3, H, W] in −1 … 1, of what the decoder returns."""
        return decoded

    # ---- prompts ----------------------------------------------------------------------------

    def check_prompts(self, prompts: Iterable[str]) -> None:
        if not self.truncate_prompts:
            found = {name: getattr(self.pipeline, name, None) for name in self.readers}
            check_lengths(prompts, self.reader(found, self.max_tokens, self.options))

    @classmethod
    def check_folder_prompts(
        cls,
        folder: Path,
        prompts: Iterable[str],
        max_sequence_length: int | None,
        options: Section,
    ) -> None:
        """`check_prompts` before anything else is loaded: it takes the tokenizers alone."""
        from marble.models.quiet import quiet

        index = pipeline_index(folder)
        found = {}
        for name in cls.readers:
            library, kind = index.get(name, (None, None))
            with quiet(), opening(folder / name):
                found[name] = (
                    getattr(import_module(library), kind).from_pretrained(folder / name)
                    if library is not None
                    else None
                )
        tokens = cls.text_tokens if max_sequence_length is None else max_sequence_length
        check_lengths(prompts, cls.reader(found, tokens, options))

    # ---- the flow ---------------------------------------------------------------------------

    def _levels(self, **how: Any) -> Tensor:
        """Noise levels of the pipeline's scheduler, set as the pipeline itself sets it."""
        scheduler = copy.deepcopy(self.pipeline.scheduler)
        scheduler.set_timesteps(**how)
        return torch.as_tensor(scheduler.sigmas).clone()

    def _side(self, resolution: int | None, default: int, unit: int) -> int:
        """Picture side in pixels; `unit`: what it must be a multiple of."""
        if resolution is not None and resolution % unit:
            raise MarbleError(f"model.resolution={resolution}: must be a multiple of {unit}")
        return default if resolution is None else resolution

    def _decoded(self, latents: Tensor, size: int = 0) -> Tensor:
        """size: pictures that a compiled decoder is given at once."""
        if self.low_on_cpu:
            if self._decoder is None:
                self._decoder = CpuDecoder(self.pipeline.vae, lambda line: self.say(line))
            return self._decoder(latents)
        if self.device.type == "cpu":
            decoded: Tensor = self.pipeline.vae.decode(latents, return_dict=False)[0]
            return decoded
        if not isinstance(self._decoder, Decoder):
            self._decoder = self._gpu_decoder()
        return self._decoder(latents, size)

    def _gpu_decoder(self, half: bool | None = None) -> Decoder:
        """Compiled where the blocks are."""
        vae, blocks = self.pipeline.vae, self.compiled
        compiled = blocks is not None and blocks.mode != "off" and compilable(vae)
        return Decoder(vae, lambda line: self.say(line), half, compiled=compiled)

    def blocks(self) -> list[nn.Module]:
        return blocks(self.transformer)

    def decisions(self) -> dict[str, bool]:
        half = self._decoder.half if isinstance(self._decoder, Decoder) else None
        return {} if half is None else {HALF: half}

    def decide(self, decisions: Mapping[str, bool]) -> None:
        if self.device.type != "cpu" and HALF in decisions:
            half = bool(decisions[HALF])
            if self.decisions() != {HALF: half}:  # else it is compiled already
                self._decoder = self._gpu_decoder(half)

    @torch.no_grad()
    def decode(self, latents: Tensor, batch_size: int | None = None) -> Tensor:
        latents = self._for_vae(latents.float())
        # On a CPU small batches stay in the cache.
        at_once = 8 if self.device.type == "cpu" else _parts_of(len(latents), self.side)
        size = batch_size or at_once
        # Fewer than a batch become the next power of two: no more memory than theirs in fp32.
        full = min(size, 1 << (len(latents) - 1).bit_length())
        pictures = []
        for part in latents.split(size):
            layout = torch.channels_last if part.dim() == 4 else torch.preserve_format
            part = part.to(self.device, memory_format=layout)
            picture = self._picture(self._decoded(part, full))
            pictures.append(levels(picture).to(torch.uint8).cpu())
        return torch.cat(pictures)


def _parts_of(count: int, side: int) -> int:
    """How many of so many pictures a GPU decodes at once; if it can be, with no rest to fill up."""
    most = max(1, DECODE_PIXELS // side**2)
    return next((n for n in range(most, most // 2, -1) if count % n == 0), most)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The members of the model's lists of layers: what repeats is where the weights are."""
    lists = (part for part in model.children() if isinstance(part, nn.ModuleList))
    return [block for part in lists for block in part if any(True for _ in block.parameters())]


def line_shift(config: Mapping[str, Any], tokens: int) -> float:
    """μ of resolution-dependent shifting: a line through (base_len, base), (max_len, max)."""
    base_length, max_length = config["base_image_seq_len"], config["max_image_seq_len"]
    slope = (config["max_shift"] - config["base_shift"]) / (max_length - base_length)
    return float(config["base_shift"] + slope * (tokens - base_length))


def even_levels(steps: int) -> list[float]:
    """1 … 1/steps, evenly: what most pipelines hand to their scheduler."""
    return [float(s) for s in torch.linspace(1.0, 1 / steps, steps, dtype=torch.float64)]


def chat(tokenizer: Any, *, thinking: bool) -> Callable[[str], str]:
    """A prompt as a chat model reads it."""

    def written(prompt: str) -> str:
        return str(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=thinking,
            )
        )

    return written


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """One clear line for files that diffusers and transformers cannot make sense of."""
    try:
        yield
    except Exception as error:  # their parsers raise anything, plain `Exception` included
        cause = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise MarbleError(
            f"{folder}: cannot be opened ({cause}); is a file missing or damaged?"
        ) from None


def check_lengths(prompts: Iterable[str], reader: Reader | None) -> None:
    """Raises for the first prompt that the reader does not see to its end."""
    from marble.models.quiet import quiet

    prompts = list(prompts)
    if not prompts or reader is None:
        return
    with quiet():
        counts = _count_tokens(prompts, reader)
    for prompt, count in zip(prompts, counts):
        if count > reader.limit:
            shown = prompt if len(prompt) <= 80 else prompt[:77] + "…"
            more = " or more" if len(prompt) > PREFIX else ""
            raise MarbleError(
                f'prompt too long: "{shown}" has {count}{more} tokens, the text encoders take '
                f"{reader.limit}; shorten it, raise model.max_sequence_length or set "
                "model.truncate_prompts=true"
            )


def _count_tokens(prompts: list[str], reader: Reader) -> list[int]:
    """Tokens of each prompt; of a long one whose beginning is beyond `limit`, of that alone.

    Rules of a tokenizer may take time quadratic in the length: a book as a prompt must not hang.
    """
    written, tokenizer = reader.written, reader.tokenizer
    counts = [len(ids) for ids in tokenizer([written(p[:PREFIX]) for p in prompts])["input_ids"]]
    return [
        len(tokenizer(written(prompt))["input_ids"])
        if len(prompt) > PREFIX and count <= reader.limit
        else count
        for prompt, count in zip(prompts, counts)
    ]
