"""One rank that gathers rewards; the second rank of three has none."""

import numpy as np
import torch
import torch.distributed as dist

from marble.advantage import advantages, gather_rewards

SHARES = {2: [[5, 0, 3], [1, 4, 2, 6]], 3: [[5, 0, 3], [], [1, 4, 2, 6]]}


def step() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rewards = rng.normal(size=(2, 7))
    rewards[1, 3] = np.nan
    return rewards, np.array([2, 2, 0, 0, 1, 1, 1])


def run(rank: int, world: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world
    )
    try:
        rewards, group = step()
        mine = np.array(SHARES[world][rank], dtype=int)
        gathered = gather_rewards(rewards[:, mine], group[mine], mine)
        assert np.array_equal(
            gathered.rewards_KN[:, gathered.local_n], rewards[:, mine], equal_nan=True
        )
        result = advantages(gathered.rewards_KN, gathered.group_N)
        torch.save(result.adv_KN, f"{folder}/rank{rank}.pt")
    finally:
        dist.destroy_process_group()
