"""Advantages do not depend on how samples lie on ranks."""

import pytest
import torch
import torch.multiprocessing as mp
from _advantage_worker import run, step

from marble.advantage import advantages


@pytest.mark.parametrize("world", [2, 3])
def test_gathered_advantages_equal_those_of_one_process(world, tmp_path):
    mp.spawn(run, (world, str(tmp_path)), nprocs=world)
    expected = advantages(*step()).adv_KN
    for rank in range(world):
        got = torch.load(tmp_path / f"rank{rank}.pt")
        assert torch.equal(got.nan_to_num(9.0), expected.nan_to_num(9.0))
