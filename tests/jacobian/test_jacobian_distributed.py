"""Two and three processes give the gradients of one, under DDP and under FSDP2."""

import torch
import torch.multiprocessing as mp
from _jacobian_model import literal_gradients, make_batch, relative_error, tiny_sd3
from _jacobian_worker import SAMPLES, C, K, run

from marble.objectives import NFT


def test_processes_give_the_gradients_of_one(tmp_path):
    mp.spawn(run, (3, str(tmp_path)), nprocs=3)
    model = tiny_sd3()
    literal = literal_gradients(model, make_batch(model, SAMPLES, K), NFT())
    for rank in range(3):
        results = torch.load(tmp_path / f"rank{rank}.pt")
        assert set(results) == ({"ddp 3", "ddp 2", "fsdp 2"} if rank < 2 else {"ddp 3"})
        for got in results.values():
            assert relative_error(got["rows"], literal) <= 1e-12
            assert relative_error(got["rows of a second step"], literal) <= 1e-12
            assert relative_error(got["gram"], literal @ literal.T) <= 1e-12
            assert relative_error(got["written"], C @ literal) <= 1e-12
            assert relative_error(got["ordinary"], C @ literal) <= 1e-12
