"""Per-sample weights whose single backward is exactly a chosen combination of K gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from marble.errors import MarbleError

if TYPE_CHECKING:
    from torch import Tensor


def mix(
    c_K: Tensor,
    a_KN: Tensor,
    b_KN: Tensor,
    valid_KN: Tensor | None = None,
    count_K: Tensor | None = None,
    *,
    target: str = "full",
    total: int | None = None,
    prefer_KN: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``(ρ⁺, ρ⁻)`` such that ``Σ_i ρ⁺_i L⁺_i + ρ⁻_i L⁻_i`` has gradient ``Σ_k c_k g_k``.

    With an objective's weights a, b, validity m and counts n, for ``target="full"`` (g_k is the
    mean over valid samples): ``ρ⁺_i = Σ_k c_k m_ki a_ki / n_k``, and ρ⁻ alike with b.

    For ``target="reward"`` (objectives with a + b = 1) the combination is ``Σ_k c_k h_k + W``:
    h_k is the part driven by advantages and W the a = b = 1/2 gradient averaged over all ``total``
    samples: ``ρ^±_i = ±Σ_k c_k m_ki (a_ki − 1/2) / n_k + 1/(2·total)``.

    ``count_K`` are the counts n_k of the whole optimiser step (all micro-batches, all ranks);
    by default they are taken from ``valid_KN``, which itself defaults to "a is not NaN".
    ``total`` defaults to the number of columns. A reward without valid samples adds nothing.
    ``prefer_KN`` multiplies c_k for each sample.
    """
    if a_KN.dim() != 2 or a_KN.shape != b_KN.shape or c_K.shape != a_KN.shape[:1]:
        raise MarbleError(
            f"mix: c has shape {tuple(c_K.shape)}, a {tuple(a_KN.shape)} and b "
            f"{tuple(b_KN.shape)}; give [K], [K, N] and [K, N]."
        )
    valid = ~a_KN.isnan() if valid_KN is None else valid_KN.bool()
    if valid.shape != a_KN.shape:
        raise MarbleError(
            f"mix: valid has shape {tuple(valid.shape)} and a {tuple(a_KN.shape)}; they must agree."
        )
    count = valid.sum(1) if count_K is None else count_K.to(a_KN.device)
    share = c_K.to(a_KN) / count.to(a_KN).clamp_min(1)
    weight = share[:, None] * valid
    weight = weight if prefer_KN is None else weight * prefer_KN.to(weight)
    # NaN times a zero weight would stay NaN, so inapplicable entries are replaced, not weighted.
    a, b = a_KN.where(valid, 0.5), b_KN.where(valid, 0.5)
    if target == "full":
        return (weight * a).sum(0), (weight * b).sum(0)
    if target == "reward":
        pull = (weight * (a - 0.5)).sum(0)
        half = 0.5 / (a_KN.shape[1] if total is None else total)
        return half + pull, half - pull
    raise MarbleError(f"mix: unknown target {target!r}; use 'full' or 'reward'.")


def terms(
    P: Tensor,
    N: Tensor | None,
    a_KB: Tensor,
    b_KB: Tensor,
    share_KB: Tensor,
    *,
    common_B: Tensor | None = None,
    extra: Tensor | None = None,
) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
    """What `Jacobian.backward` takes for ``g_k = Σ_i share_ki (a_ki P_i + b_ki N_i)``.

    Two passes: along ``(P − N)/2`` with weights ``(a − b)·share`` and along ``(P + N)/2`` with
    ``(a + b)·share``; one if there is no N. ``share_KB = m_ki/n_k`` has the accumulators' dtype;
    where it is 0, a and b may be NaN.

    ``common_B`` (objectives with a + b = 1): the second direction is common to all rewards. It
    leaves the balance with these weights and rides along with ``extra``, the cotangent of the
    terms outside the balance.
    """
    known = share_KB != 0
    both = (a_KB + b_KB).to(share_KB).where(known, 0.0)
    a = a_KB.to(share_KB).where(known, 0.0)
    if N is None:
        return [(P, a * share_KB)], extra
    # From a and the sum, not a − b: r and 1 − r differ from each other's rounding.
    found = [((P - N) / 2, (2 * a - both) * share_KB)]
    half = (P + N) / 2
    if common_B is None:
        return [*found, (half, both * share_KB)], extra
    common = half * common_B.to(half).view(-1, *[1] * (half.dim() - 1))
    return found, common if extra is None else common + extra
