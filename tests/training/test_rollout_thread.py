"""The thread that scores pictures works on the GPU that draws them."""

import pytest
import torch

from marble.training.rollout import scoring_thread


@pytest.mark.parametrize(("device", "told"), [("cuda:1", [1]), ("cuda", [3]), ("cpu", [])])
def test_it_is_told_which_gpu(monkeypatch, device, told):
    found = []
    monkeypatch.setattr(torch.cuda, "set_device", found.append)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    with scoring_thread(torch.device(device)) as pool:
        assert pool.submit(lambda: 7).result() == 7
    assert found == told
