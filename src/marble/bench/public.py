"""The loop as public code has it: eager, peft's LoRA as it comes, decoding in fp32, nine at once.

Public code of DiffusionNFT and MARBLE takes v_old's and v_ref's forward on every micro-batch of
nine. This adapter has only what that needs, and none of what makes ours faster: changes to our
adapters must not reach it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn

from marble.models.conditioning import Conditioning
from marble.models.family import Family
from marble.models.pipeline import PipelineAdapter
from marble.models.quiet import quiet
from marble.models.samplers import sample_ode

BATCH = 9
"""Pictures sampled, and pairs trained on, at once."""


def public_adapter(
    family: type[Family], pipeline: Any, options: Mapping[str, Any]
) -> PipelineAdapter:
    """An adapter of the family with peft's own LoRA, uncompiled."""
    kind = type("Public", (_Public, family.adapter), {})
    return cast(PipelineAdapter, kind(pipeline, **{**options, "compile": False}))


@contextmanager
def switched_by_hand(adapter: PipelineAdapter) -> Iterator[None]:
    """Without peft's walks through all modules: what they cost."""
    assert isinstance(adapter, _Public)
    adapter.direct = True
    try:
        yield
    finally:
        adapter.direct = False


class _Public(PipelineAdapter):
    direct = False

    def add_lora(self, rank: int = 32, alpha: float = 64, **options: Any) -> None:
        from peft import LoraConfig

        targets = options.get("targets") or self.lora_targets
        self.transformer.requires_grad_(False)
        for name in ("default", "old"):
            config = LoraConfig(r=rank, lora_alpha=cast(int, alpha), target_modules=list(targets))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.transformer.add_adapter(config, adapter_name=name)
        for name in ("default", "old"):
            for parameter in self.lora_parameters(name).values():
                parameter.data = parameter.data.float()
                parameter.requires_grad_(name == "default")

    def lora_parameters(self, name: str = "default") -> dict[str, nn.Parameter]:
        found = {}
        for at, layer in self._layers():
            found[f"{at}.lora_A.weight"] = layer.lora_A[name].weight
            found[f"{at}.lora_B.weight"] = layer.lora_B[name].weight
        return found

    def _layers(self) -> list[tuple[str, Any]]:
        from peft.tuners.lora import LoraLayer

        if "_found" not in vars(self):
            self._found = [
                (n, m) for n, m in self.transformer.named_modules() if isinstance(m, LoraLayer)
            ]
        return self._found

    @torch.no_grad()
    def load_lora_state(self, name: str, values: Mapping[str, Tensor]) -> None:
        for key, parameter in self.lora_parameters(name).items():
            parameter.copy_(values[key])

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """By peft's own calls, which walk through all modules: what public code makes, three times
        per micro-batch."""
        if self.direct:
            self._mark(name == "base", "default" if name == "base" else name)
        elif name == "base":
            self.transformer.disable_adapters()
        elif name != "default":
            self.transformer.set_adapter(name)
        try:
            yield
        finally:
            if self.direct:
                self._mark(False, "default")
            elif name == "base":
                self.transformer.enable_adapters()
            elif name != "default":
                self.transformer.set_adapter("default")

    def _mark(self, disabled: bool, active: str) -> None:
        for _, layer in self._layers():
            layer._disable_adapters = disabled
            layer._active_adapter = [active]

    @contextmanager
    def drawing(self, name: str, *, steered: bool = False, low: bool = False) -> Iterator[None]:
        with self.using(name):
            yield

    @torch.no_grad()
    def sample(
        self,
        cond: Conditioning,
        seeds: Sequence[int],
        *,
        steps: int,
        sampler: Any = "dpm",
        guidance: float = 1.0,
        batch_size: int | None = None,
    ) -> Tensor:
        rows = cond.to(self.device)
        sigmas = self.grid(steps).tolist()
        velocity: Callable[[Tensor, Tensor], Tensor] = lambda x, s: self.velocity(x, s, rows)  # noqa: E731
        return sample_ode(sampler, velocity, self.noise(seeds), sigmas)

    @torch.no_grad()
    def decode(self, latents: Tensor, batch_size: int | None = None) -> Tensor:
        vae = self.pipeline.vae
        if vae.dtype != torch.float32:
            with quiet():
                vae.to(torch.float32)
        pictures = []
        for part in self._for_vae(latents.float()).split(BATCH):
            decoded = self._picture(vae.decode(part.to(self.device), return_dict=False)[0])
            levels = (decoded / 2 + 0.5).clamp(0, 1) * 255
            pictures.append(levels.round().to(torch.uint8).cpu())
        return torch.cat(pictures)
