"""Per-sample weights: Σ_k c_k times each reward's own masked mean."""

import pytest
import torch

from marble.errors import MarbleError
from marble.objectives import mix

NAN = float("nan")
R = torch.tensor([[0.9, NAN, 0.0], [0.2, 0.5, NAN]], dtype=torch.float64)
C = torch.tensor([0.7, 1.8], dtype=torch.float64)
PLUS = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
MINUS = torch.tensor([5.0, 7.0, 11.0], dtype=torch.float64)


def reward_loss(k: int) -> torch.Tensor:
    use = ~R[k].isnan()
    return (R[k] * PLUS + (1 - R[k]) * MINUS)[use].mean()


def test_is_the_combination_of_masked_means():
    plus, minus = mix(C, R, 1 - R)
    assert float((plus * PLUS + minus * MINUS).sum()) == pytest.approx(
        float(C[0] * reward_loss(0) + C[1] * reward_loss(1)), rel=1e-14
    )


def test_micro_batches_with_global_counts_add_up():
    whole = mix(C, R, 1 - R)
    count = (~R.isnan()).sum(1)
    parts = [mix(C, R[:, i : i + 1], 1 - R[:, i : i + 1], None, count) for i in range(3)]
    for side in (0, 1):
        torch.testing.assert_close(torch.cat([p[side] for p in parts]), whole[side])


def test_validity_wins_over_values():
    valid = torch.tensor([[True, False, False], [True, True, False]])
    plus, minus = mix(C, R.nan_to_num(0.3), 1 - R.nan_to_num(0.3), valid)
    torch.testing.assert_close(plus[2], torch.zeros((), dtype=torch.float64))
    torch.testing.assert_close(plus[1] + minus[1], C[1] / 2)


def test_target_reward_splits_pull_and_common_term():
    plus, minus = mix(C, R, 1 - R, target="reward")
    torch.testing.assert_close(plus + minus, torch.full((3,), 1 / 3, dtype=torch.float64))
    valid = ~R.isnan()
    pull = (C / valid.sum(1)) @ (R - 0.5).nan_to_num(0.0)
    torch.testing.assert_close(plus - minus, 2 * pull)
    half = mix(C, R[:, :2], 1 - R[:, :2], None, valid.sum(1), target="reward", total=3)
    torch.testing.assert_close(half[0], plus[:2])


def test_a_silent_reward_adds_nothing():
    r = torch.stack([R[0], torch.full((3,), NAN, dtype=torch.float64)])
    plus, minus = mix(C, r, 1 - r)
    alone = mix(C[:1], R[:1], 1 - R[:1])
    torch.testing.assert_close(plus, alone[0])
    torch.testing.assert_close(minus, alone[1])


def test_wrong_input():
    with pytest.raises(MarbleError, match=r"\[K\], \[K, N\]"):
        mix(C[:1], R, R)
    with pytest.raises(MarbleError, match="they must agree"):
        mix(C, R, R, torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(MarbleError, match="unknown target"):
        mix(C, R, R, target="both")
