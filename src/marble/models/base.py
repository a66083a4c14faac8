"""The adapter: all that training, evaluation and sampling ask of a model family.

A new family subclasses `Adapter` and provides what is abstract; sampling, prompt caching, LoRA
switching and its states are the same for all.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from marble.errors import MarbleError
from marble.models import cpu, fp8, gelu, lora, merge
from marble.models.compiling import Compiled
from marble.models.conditioning import Conditioning, PromptCache
from marble.models.graphs import Graphs, TrainedGraphs
from marble.models.lora_layer import keep_low
from marble.models.precision import DTYPES, computing_dtype, products_in_tf32
from marble.models.samplers import Sampler, Velocity, sample_ode
from marble.models.sliders import SLIDERS, Gates, Sliders
from marble.replay import allow, is_small

RESIDENT = 1 << 30
"""Bytes of prompts kept on the device; SD3.5's encoders make 2.7 MB of each, so some 400."""


class Adapter(ABC):
    """A text-to-image flow model with LoRA.

    Latents and velocities cross this interface in float32, whatever the model computes in.
    `precision` is the format of the computation (autocast), `dtype` that of the frozen weights.
    """

    lora_targets: Sequence[str]
    """Name endings of the layers that get a LoRA unless a recipe says otherwise."""
    empty_prompt: ClassVar[str] = ""
    """What guidance contrasts a prompt with."""
    encode_batch: ClassVar[int] = 16
    """Prompts are encoded in batches of this one size: kernels round differently at different
    sizes, and a prompt's encoding must not depend on which others were new with it (exact resume,
    many ranks). Encoders that pad to the longest of a batch need 1."""

    def __init__(self, device: str | torch.device, dtype: str, precision: str | None) -> None:
        self.device = torch.device(device)
        self.dtype = DTYPES[dtype]
        self.precision = computing_dtype(precision, dtype, self.device)
        self.tf32 = products_in_tf32(precision, dtype, self.device)
        self.cache = PromptCache()
        self._on_device: PromptCache | None = None
        self.sliders: Sliders | None = None
        self._gates: Gates | None = None
        self.compiled: Compiled | None = None
        self.replays = False
        """Whether a small model's passes are replayed as CUDA graphs (`graphs`)."""
        self.halves = self.device.type == "cuda"
        """Whether recorded micro-batches come in halves, to save memory."""
        self._graphs: dict[tuple[str, bool, bool], Graphs | TrainedGraphs] = {}
        self._draws = False
        self._fit: bool | None = None
        self.say: Callable[[str], None] = _to_stderr
        """Where a line for the user goes; a run with a display of its own sets it."""

    # ---- what a family provides -----------------------------------------------------------

    @property
    @abstractmethod
    def transformer(self) -> Any:
        """The denoiser: the module that carries the LoRA."""

    @property
    @abstractmethod
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of one sample's latents, e.g. (16, 64, 64)."""

    @abstractmethod
    def check_prompts(self, prompts: Iterable[str]) -> None:
        """Raises for the first prompt that is longer than the text encoders take."""

    @abstractmethod
    def grid(self, steps: int) -> Tensor:
        """The steps+1 noise levels of a sampling run, float32, from the first down to 0."""

    @abstractmethod
    def velocity(self, x_t: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        """v = ε − x_0 as predicted at x_t = (1−σ)x_0 + σε, under the adapter in use."""

    @abstractmethod
    def decode(self, latents: Tensor, batch_size: int | None = None) -> Tensor:
        """Latents → pictures, uint8 [n, 3, H, W], on the CPU."""

    @abstractmethod
    def _encode(self, prompts: list[str]) -> Conditioning:
        """Runs the text encoders."""

    # ---- what a family may change -------------------------------------------------------------

    def _unconditional(self) -> Conditioning:
        """One row: what guidance contrasts a prompt with."""
        return self.encode([self.empty_prompt])

    def _combine(self, free: Tensor, bound: Tensor, guidance: float) -> Tensor:
        """Classifier-free guidance: v_u + g·(v_c − v_u)."""
        return free + guidance * (bound - free)

    def _write_lora(self, file: Path, values: Mapping[str, Tensor]) -> None:
        """Writes a LoRA as the family's pipeline loads it."""
        lora.write_file(file, values, lora.config_of(self.transformer))

    def blocks(self) -> list[nn.Module]:
        """The parts of the denoiser that repeat: where its weights are."""
        return [self.transformer]

    def decisions(self) -> dict[str, bool]:
        """What the adapter has measured and decided by it, such that a resumed run must not decide
        anew."""
        return {}

    def decide(self, decisions: Mapping[str, bool]) -> None:
        """Takes over what `decisions` gave; names that mean nothing here are passed over."""
        return None

    # ---- prompts ----------------------------------------------------------------------------

    def encode(self, prompts: Sequence[str]) -> Conditioning:
        """Conditioning of the prompts, one row each, on the adapter's device."""
        rows = self.prepare(prompts)
        if self.device.type != "cpu":
            rows = {prompt: self._resident(prompt, row) for prompt, row in rows.items()}
        return Conditioning.cat(rows[p] for p in prompts)

    def prepare(self, prompts: Sequence[str]) -> dict[str, Conditioning]:
        """The prompts' rows on the CPU. Each prompt is encoded once: all of a rollout's together,
        so that encoders that wait in main memory come to the device a single time."""
        rows: dict[str, Conditioning] = {p: self.cache.get(p) for p in prompts if p in self.cache}
        missing = [p for p in dict.fromkeys(prompts) if p not in rows]
        self.check_prompts(missing)
        size = self.encode_batch
        for start in range(0, len(missing), size):
            part = missing[start : start + size]
            encoded = self._encode(part + part[-1:] * (size - len(part))).to("cpu")
            for i, prompt in enumerate(part):
                rows[prompt] = encoded[i].trimmed()
                self.cache.put(prompt, rows[prompt])
        return rows

    def _resident(self, prompt: str, row: Conditioning) -> Conditioning:
        """The row on the device, where those used last stay: an epoch asks for each of its prompts
        in every micro-batch."""
        if self._on_device is None:
            self._on_device = PromptCache(RESIDENT, self.device)
        if prompt not in self._on_device:
            self._on_device.put(prompt, row)
        return self._on_device.get(prompt)

    # ---- sampling ---------------------------------------------------------------------------

    def noise(self, seeds: Sequence[int]) -> Tensor:
        """Initial noise, each sample from its own seed: the same alone, in a batch, on any rank."""
        draws = [
            torch.randn(self.latent_shape, generator=torch.Generator().manual_seed(int(seed)))
            for seed in seeds
        ]
        return torch.stack(draws).to(self.device)

    @torch.no_grad()
    def sample(
        self,
        cond: Conditioning,
        seeds: Sequence[int],
        *,
        steps: int,
        sampler: str | Sampler = "dpm",
        guidance: float = 1.0,
        batch_size: int | None = None,
    ) -> Tensor:
        """Latents x_0 [n, …], one for each row of `cond`, under the adapter in use."""
        if len(cond) != len(seeds):
            raise ValueError(f"{len(cond)} prompts but {len(seeds)} seeds")
        size = batch_size or len(seeds)
        sigmas = self.grid(steps).tolist()
        parts = []
        for start in range(0, len(seeds), size):
            chosen = slice(start, start + size)
            v = self._guided(cond[chosen].to(self.device), guidance)
            with nullcontext() if self._gates is None else self._gates.only(chosen):
                parts.append(sample_ode(sampler, v, self.noise(seeds[chosen]), sigmas))
        return torch.cat(parts)

    def _guided(self, cond: Conditioning, guidance: float) -> Velocity:
        """Velocity with guidance; 1 is none for every family, whatever its pipeline counts from."""
        run = self.replayed if self._draws else self.velocity
        if guidance <= 1:
            return lambda x, sigma: run(x, sigma, cond)
        empty = self._unconditional().to(self.device)[[0] * len(cond)]
        both = Conditioning.cat([empty, cond])

        def velocity(x: Tensor, sigma: Tensor) -> Tensor:
            free, bound = run(torch.cat([x, x]), torch.cat([sigma, sigma]), both).chunk(2)
            return self._combine(free, bound, guidance)

        return velocity

    def autocast(self) -> AbstractContextManager[Any]:
        """The context a forward pass computes in."""
        enabled = self.precision is not torch.float32
        return torch.autocast(self.device.type, dtype=self.precision, enabled=enabled)

    # ---- LoRA -------------------------------------------------------------------------------

    def add_lora(
        self,
        rank: int = 32,
        alpha: float = 64,
        *,
        targets: Sequence[str] | None = None,
        init: str = "gaussian",
        seed: int = 0,
    ) -> None:
        """Adds the trained adapter `default` and its frozen copy `old`, equal at the start."""
        self._fit = None
        lora.add_adapters(
            self.transformer,
            rank=rank,
            alpha=alpha,
            targets=targets or self.lora_targets,
            init=init,
            seed=seed,
        )
        if self.precision is not torch.float32:
            layers = [layer for _, layer in lora.lora_layers(self.transformer)]
            keep_low(self.transformer, layers, self.precision)

    def add_sliders(self, sliders: Sliders) -> None:
        """Shares the LoRA's rank out among the sliders; needed for `preferring` and the export."""
        self.sliders, self._gates = sliders, Gates(self.transformer)

    def add_frozen(self, name: str, folder: str | Path) -> None:
        """Adds a saved LoRA that is only asked for velocities, as `using(name)`. After sliders,
        which are not its own."""
        lora.add_frozen(self.transformer, name, *lora.read_file(folder))

    def preferring(self, weights: Sequence[Sequence[float] | None]) -> AbstractContextManager[None]:
        """Context whose forward passes have slider weights of their own for every sample of the
        batch; None: the default, 1 each."""
        if self._gates is None or self.sliders is None or all(w is None for w in weights):
            return nullcontext()
        if lora.is_fixed(self.transformer):
            raise RuntimeError("a LoRA is merged into the weights: its sliders cannot differ now")
        default = [1.0] * len(self.sliders.names)
        rows = self.sliders.gates([default if w is None else w for w in weights])
        return self._gates.set(rows.to(self.device))

    def using(self, name: str) -> AbstractContextManager[None]:
        """Context in which the model is `default`, `old`, `base` or a LoRA of `add_frozen`."""
        return lora.using(self.transformer, name)

    @contextmanager
    def drawing(self, name: str, *, steered: bool = False, low: bool = False) -> Iterator[None]:
        """Context for drawing many pictures with `default`, `old` or `base`; nothing is trained in
        it. On a GPU, and in bf16 on a CPU, the LoRA is merged into the weights (`merge`), unless
        these are sharded or quantised; on a GPU passes of small models are replayed (`graphs`), and
        products of compiled blocks have GELU in them (`gelu`). In fp32 on a CPU pictures stay
        those of `using`, bit for bit.

        steered: samples have slider weights of their own (`preferring`), so nothing is merged.
        low: the blocks' products are in fp8 (`fp8`), whose `check` comes first.
        """
        model = self.transformer
        gpu, plain = self.device.type == "cuda", name == lora.BASE or merge.mergeable(model)
        merges = (gpu or self.low_on_cpu) and plain and name != lora.BASE and not steered
        with (
            merge.merged(model, name) if merges else self.using(name),
            cpu.drawing(model) if self.low_on_cpu else nullcontext(),
            gelu.drawing(model) if gpu else nullcontext(),
            fp8.drawing(self.blocks()) if low else nullcontext(),
        ):
            before, self._draws = self._draws, not low
            try:
                yield
            finally:
                self._draws = before

    def replayed(self, x_t: Tensor, sigma_B: Tensor, cond: Conditioning) -> Tensor:
        """`velocity` under the adapter in use, as a CUDA graph where the model is small and on a
        GPU. A pass with gradients is differentiated once, and before the next one.

        Weights lie where they lay when a pass was recorded: a LoRA is merged in place.
        """
        if not self._replays:
            return self.velocity(x_t, sigma_B, cond)
        trained = torch.is_grad_enabled()
        gated = self._gates is not None and self._gates.rows is not None
        key = (lora.active(self.transformer), gated, trained)
        if key not in self._graphs:
            say: Callable[[str], None] = lambda line: self.say(line)  # noqa: E731
            parameters = list(self.lora_parameters().values()) if trained else []
            self._graphs[key] = (
                TrainedGraphs(self.velocity, parameters, say)
                if trained
                else Graphs(self.velocity, say)
            )
        return self._graphs[key](x_t, sigma_B, cond)

    @property
    def _replays(self) -> bool:
        if not (self.replays and self.device.type == "cuda" and self.compiled is None):
            return False
        if self._fit is None:  # asked in every pass
            plain = not lora.names(self.transformer) or merge.mergeable(self.transformer)
            self._fit = plain and not self._recomputes and is_small(self.transformer)
            if self._fit:
                allow()
        return self._fit

    @property
    def _recomputes(self) -> bool:
        return bool(getattr(self.transformer, "is_gradient_checkpointing", False))

    @property
    def low_on_cpu(self) -> bool:
        """Whether passes are those of `models.cpu`."""
        return self.device.type == "cpu" and self.precision is torch.bfloat16

    def swapped(
        self, values: Mapping[str, Tensor], name: str = lora.TRAINED
    ) -> AbstractContextManager[None]:
        """Context in which an adapter has other weights, such as their EMA."""
        return lora.swapped(self.transformer, name, values)

    def lora_parameters(self, name: str = lora.TRAINED) -> dict[str, nn.Parameter]:
        """Live parameters by name: what the optimiser gets."""
        return lora.parameters(self.transformer, name)

    def lora_state(self, name: str = lora.TRAINED) -> lora.State:
        """Copy of an adapter's weights."""
        return lora.state(self.transformer, name)

    def load_lora_state(self, name: str, values: Mapping[str, Tensor]) -> None:
        lora.load_state(self.transformer, name, values)

    def follow(self, decay: float) -> None:
        """v_old ← decay·v_old + (1−decay)·v_θ."""
        lora.blend_(self.lora_parameters(lora.OLD), self.lora_parameters(lora.TRAINED), decay)

    def save_lora(
        self,
        folder: str | Path,
        name: str = lora.TRAINED,
        values: Mapping[str, Tensor] | None = None,
    ) -> Path:
        """Writes an adapter (or other `values` for it, such as the EMA) as diffusers loads it; its
        sliders too, as files of their own."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        values = self.lora_state(name) if values is None else values
        values = {k: v.detach().cpu().contiguous() for k, v in values.items()}
        self._write_lora(folder / lora.WEIGHTS_FILE, values)
        if self.sliders is not None:
            (folder / SLIDERS).mkdir(exist_ok=True)
            for part, state in self.sliders.split(values).items():
                self._write_lora(folder / SLIDERS / f"{part}.safetensors", state)
            self.sliders.write(folder)
        return folder / lora.WEIGHTS_FILE

    def load_lora(self, folder: str | Path) -> None:
        """Loads a saved LoRA into `default` and `old`, adding adapters of its shape if needed."""
        values, config = lora.read_file(folder)
        if not getattr(self.transformer, "peft_config", None):
            self.add_lora(config["r"], config["lora_alpha"], targets=config["target_modules"])
        alpha = lora.config_of(self.transformer)["lora_alpha"]
        if alpha != config["lora_alpha"]:
            raise MarbleError(
                f"{folder}: made with model.lora.alpha={config['lora_alpha']:g}, this is {alpha:g}"
            )
        for name in (lora.TRAINED, lora.OLD):
            self.load_lora_state(name, values)


def _to_stderr(line: str) -> None:
    print(f"marble: {line}", file=sys.stderr)
