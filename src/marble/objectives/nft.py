"""The DiffusionNFT loss (arXiv 2509.16117), split into the two sides that do not depend on r."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from marble.errors import MarbleError

MIN_ADAPTIVE_WEIGHT = 1e-5


@dataclass(frozen=True)
class NFT:
    """Per sample ``ℓ = r·L⁺ + (1−r)·L⁻`` for a velocity ``v_θ`` and its slow copy ``v_old``.

    ``v⁺ = βv_θ + (1−β)v_old`` and ``v⁻ = (1+β)v_old − βv_θ`` are pulled towards the sample.

    * adaptive (as trained in public code): ``x̂^± = x_t − t·v^±``,
      ``L^± = (A_max/β)·mean((x̂^± − x_0)²)/w^±`` with ``w^± = max(mean|x̂^± − x_0|, 1e-5)``
      detached, one per sample;
    * plain (the paper's equation): ``L^± = (A_max/β)·mean((v^± − v)²)`` with ``v = ε − x_0``.

    Everything is computed in fp32 (fp64 for fp64 inputs), also when the model gives bf16.
    """

    beta: float = 0.1
    a_max: float = 5.0
    adaptive: bool = True

    def __post_init__(self) -> None:
        if not (self.beta > 0 and self.a_max > 0):
            raise MarbleError(
                f"NFT needs beta > 0 and a_max > 0, got beta={self.beta}, a_max={self.a_max}."
            )

    @property
    def scale(self) -> float:
        return self.a_max / self.beta

    def sides(
        self,
        v_theta: Tensor,
        v_old: Tensor,
        x_t: Tensor,
        x_0: Tensor,
        t_B: Tensor,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``(L⁺, L⁻)``, each of shape [B], differentiable in ``v_theta``."""
        losses = []
        for sign in (1.0, -1.0):
            error, _ = self._error(sign, v_theta, v_old, x_t, x_0, t_B, noise)
            loss = error.square().flatten(1).mean(1)
            losses.append(self.scale * loss / self._weight(error))
        return losses[0], losses[1]

    @torch.no_grad()
    def cotangents(
        self,
        v_theta: Tensor,
        v_old: Tensor,
        x_t: Tensor,
        x_0: Tensor,
        t_B: Tensor,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``(P, N) = (∂L⁺/∂v_θ, ∂L⁻/∂v_θ)`` in closed form, shaped like ``v_theta``, no graph.

        The gradient of sample i for any r is ``N_i + r·(P_i − N_i)``.
        """
        sides = []
        for sign in (1.0, -1.0):
            error, slope = self._error(sign, v_theta, v_old, x_t, x_0, t_B, noise)
            factor = self.scale * 2.0 / error[0].numel() / self._weight(error)
            sides.append(_column(factor, error) * slope * error)
        return sides[0], sides[1]

    def _error(
        self,
        sign: float,
        v_theta: Tensor,
        v_old: Tensor,
        x_t: Tensor,
        x_0: Tensor,
        t_B: Tensor,
        noise: Tensor | None,
    ) -> tuple[Tensor, Tensor | float]:
        """The residual of one side, and its (elementwise constant) derivative in ``v_theta``."""
        _check_shapes(v_theta, v_old, x_t, x_0, t_B, noise)
        dtype = torch.float64 if v_theta.dtype == torch.float64 else torch.float32
        slope = sign * self.beta
        old = v_old.detach().to(dtype)
        mixed = old + slope * (v_theta.to(dtype) - old)
        x_0, t = x_0.to(dtype), _column(t_B.to(dtype), x_0)
        if self.adaptive:
            return x_t.to(dtype) - t * mixed - x_0, -slope * t
        velocity = (x_t.to(dtype) - x_0) / t if noise is None else noise.to(dtype) - x_0
        return mixed - velocity, slope

    def _weight(self, error: Tensor) -> Tensor:
        if not self.adaptive:
            return torch.ones(error.shape[0], dtype=error.dtype, device=error.device)
        return error.detach().abs().flatten(1).mean(1).clamp_min(MIN_ADAPTIVE_WEIGHT)


def _column(value_B: Tensor, like: Tensor) -> Tensor:
    return value_B.view(-1, *[1] * (like.dim() - 1))


def _check_shapes(
    v_theta: Tensor, v_old: Tensor, x_t: Tensor, x_0: Tensor, t_B: Tensor, noise: Tensor | None
) -> None:
    others = {"v_old": v_old, "x_t": x_t, "x_0": x_0}
    if noise is not None:
        others["noise"] = noise
    for name, tensor in others.items():
        if tensor.shape != v_theta.shape:
            raise MarbleError(
                f"NFT: {name} has shape {tuple(tensor.shape)}, v_theta {tuple(v_theta.shape)}; "
                "all tensors but t_B must have the velocity's shape."
            )
    if v_theta.dim() < 2 or t_B.shape != v_theta.shape[:1]:
        raise MarbleError(
            f"NFT: t_B has shape {tuple(t_B.shape)}; give one timestep per sample, "
            f"shape ({v_theta.shape[0] if v_theta.dim() else '?'},)."
        )
