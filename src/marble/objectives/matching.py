"""How well a velocity matches the one that leads from a picture to its noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marble.objectives.base import Point, column, wide

if TYPE_CHECKING:
    from torch import Tensor


def error(v: Tensor, point: Point) -> Tensor:
    """``v − (ε − x_0)``, in a format that is wide enough; ε from x_t where it was not kept."""
    dtype = wide(v)
    x_t, x_0 = point.x_t.to(dtype), point.x_0.to(dtype)
    t = column(point.t_B.to(dtype), x_0)
    target = (x_t - x_0) / t if point.noise is None else point.noise.to(dtype) - x_0
    return v.to(dtype) - target


def gain(v: Tensor, reference: Tensor, point: Point) -> Tensor:
    """[B]: ``t·(mean((v_ref − u)²) − mean((v − u)²))`` with ``u = ε − x_0``: how much better than
    the reference v explains the pictures.

    t: near t = 0 the error is that of ε, which has nothing to do with the picture; it would drown
    what is learned at high noise, where the picture is decided.
    """
    mine, other = (error(w, point).square().flatten(1).mean(1) for w in (v, reference.detach()))
    return point.t_B.to(mine) * (other - mine)
