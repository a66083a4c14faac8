"""A tiny SD3 transformer with a trained and an `old` LoRA, and literal per-reward gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from diffusers import SD3Transformer2DModel
from diffusers.models.normalization import RMSNorm
from peft import LoraConfig
from torch import Tensor

from marble.jacobian import Jacobian
from marble.objectives import NFT, Point, terms

TARGETS = [
    *("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out.0"),
    *("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj", "attn.to_add_out"),
]
TEXT_TOKENS, TEXT_DIM, POOLED_DIM, LATENT = 5, 24, 20, 8


def tiny_sd3(dtype: torch.dtype = torch.float64, seed: int = 0) -> SD3Transformer2DModel:
    torch.manual_seed(seed)
    model = SD3Transformer2DModel(
        sample_size=LATENT,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=3,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=TEXT_DIM,
        caption_projection_dim=16,
        pooled_projection_dim=POOLED_DIM,
        pos_embed_max_size=8,
        dual_attention_layers=(0,),
        qk_norm="rms_norm",
    )
    model.requires_grad_(False)
    for name in ("default", "old"):
        config = LoraConfig(r=4, lora_alpha=8, init_lora_weights="gaussian", target_modules=TARGETS)
        model.add_adapter(config, adapter_name=name)
    model.set_adapter("default")
    with torch.no_grad():
        # Away from the start, where lora_B = 0 and half of the gradients vanish.
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".default." in name)
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.__class__ = ExactRMSNorm
    return model.to(dtype).eval()


class ExactRMSNorm(RMSNorm):
    """The library's own computes in fp32 whatever the input, which would hide fp64 errors."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        scale = torch.rsqrt(hidden_states.square().mean(-1, keepdim=True) + self.eps)
        return hidden_states * scale * self.weight


def trainable(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


@dataclass
class Batch:
    """Everything about the samples of a step; `part` cuts out a micro-batch."""

    x_0: Tensor
    x_t: Tensor
    noise: Tensor
    t: Tensor
    text: Tensor
    pooled: Tensor
    v_old: Tensor
    r: Tensor
    valid: Tensor

    def part(self, index: slice | Tensor) -> Batch:
        fields = vars(self)
        columns = {"r", "valid"}
        return Batch(**{n: x[:, index] if n in columns else x[index] for n, x in fields.items()})

    def inputs(self) -> dict[str, Tensor]:
        return {
            "hidden_states": self.x_t,
            "encoder_hidden_states": self.text,
            "pooled_projections": self.pooled,
            "timestep": self.t * 1000,
        }

    def point(self) -> Point:
        return Point(self.x_t, self.t, self.x_0, self.noise, v_old=self.v_old)


def velocity(model: torch.nn.Module, batch: Batch) -> Tensor:
    return model(**batch.inputs(), return_dict=False)[0]


def make_batch(
    model: SD3Transformer2DModel,
    n: int,
    k: int,
    *,
    seed: int = 0,
    masked: bool = True,
    clamped: bool = True,
    off_policy: bool = True,
) -> Batch:
    dtype = next(model.parameters()).dtype
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)

    x_0, noise = normal(n, 4, LATENT, LATENT), normal(n, 4, LATENT, LATENT)
    t = (torch.rand(n, generator=g, dtype=torch.float64) * 0.9 + 0.05).to(dtype)
    x_t = (1 - t[:, None, None, None]) * x_0 + t[:, None, None, None] * noise
    advantage = torch.randn(k, n, generator=g, dtype=torch.float64) * (6.0 if clamped else 1.0)
    r = (0.5 + advantage / 10).clamp(0, 1)
    valid = torch.rand(k, n, generator=g) < 0.6 if masked else torch.ones(k, n, dtype=torch.bool)
    valid[:, 0] = True
    r = torch.where(valid, r, torch.nan)
    batch = Batch(x_0, x_t, noise, t, normal(n, TEXT_TOKENS, TEXT_DIM), normal(n, POOLED_DIM), x_0,
                  r, valid)  # fmt: skip
    if off_policy:
        model.set_adapter("old")
    with torch.no_grad():
        batch.v_old = velocity(model, batch)
    model.set_adapter("default")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".default." in name)
    return batch


def weights(batch: Batch) -> Tensor:
    """m_ki / n_k of the whole step."""
    return batch.valid.double() / batch.valid.sum(1, keepdim=True).clamp_min(1)


def literal_gradients(
    model: torch.nn.Module, batch: Batch, nft: NFT, *, forward=velocity
) -> Tensor:
    """K losses, K backwards, [K, total] in fp64: what the two passes must equal."""
    rows = []
    weight = weights(batch)
    v = forward(model, batch)
    for k in range(len(batch.r)):
        plus, minus = nft.sides(v, batch.point())
        use = batch.valid[k]
        r = torch.where(use, batch.r[k], 0.0).to(plus)
        loss = (weight[k].to(plus) * (r * plus + (1 - r) * minus)).sum()
        grads = torch.autograd.grad(loss, trainable(model), retain_graph=True)
        rows.append(torch.cat([g.double().flatten() for g in grads]))
    return torch.stack(rows)


def relative_error(value: Tensor, truth: Tensor) -> float:
    """The largest error of a row, relative to that row's norm."""
    error = (value.double() - truth).norm(dim=-1) / truth.norm(dim=-1)
    return float(error.max())


def backward(jac, v, sides, r, weight, *, slot=0, **options) -> None:
    """The sides' two passes, with a = r and b = 1 − r."""
    found, outside = terms(*sides, r, 1 - r, weight.to(jac.rows.data), **options)
    jac.backward(v, found, outside=outside, slot=slot)


def two_pass(
    jac: Jacobian,
    batch: Batch,
    nft: NFT,
    sizes: tuple[int, ...],
    *,
    model: torch.nn.Module | None = None,
    forward=velocity,
    start: int = 0,
) -> Tensor:
    """Accumulates micro-batches of these sizes and returns the rows [K, total]."""
    weight = weights(batch)
    for size in sizes:
        index = slice(start, start + size)
        start += size
        part = batch.part(index)
        with jac.recording(size):
            v = forward(model if model is not None else jac.model, part)
        backward(jac, v, nft.cotangents(v, part.point()), part.r, weight[:, index])
    return jac.rows.data[0]
