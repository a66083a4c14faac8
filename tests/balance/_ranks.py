"""One of two processes; writes the reports and gradients it ended up with to `folder`."""

from __future__ import annotations

import torch
import torch.distributed as dist
from _literal import NAN, make_balancer, make_data, make_model, run_step
from torch import nn

CASES = {
    "marble": {},
    "probe": {"probe": 0.5},
    "reward": {"target": "reward"},
    "heldout": {"heldout": True},
    "weighted_sum": {"method": "weighted_sum", "measure_every": 2},
    "uniform": {"method": "uniform"},
}
# Which samples each process holds.
DEALS = {"unequal": ([0, 3, 4, 5, 6], [1, 2, 7]), "one has none": (list(range(8)), [])}


def run(rank: int, world: int, folder: str) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world
    )
    torch.set_num_threads(1)
    try:
        torch.save(results(rank), f"{folder}/rank{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def results(rank: int) -> dict:
    out: dict = {}
    for deal, shares in DEALS.items():
        for case, options in CASES.items():
            model = make_model()
            out[deal, case] = steps(make_balancer(model, **options), model, shares[rank])
    model = nn.parallel.DistributedDataParallel(make_model())
    out["unequal", "ddp"] = steps(make_balancer(model), model, DEALS["unequal"][0 if rank else 1])
    # A sample that only one process holds is not finite, for a reward that is nowhere to be seen.
    model, data = make_model(), make_data()
    data.x_t[7] = NAN
    balancer = make_balancer(model)
    for step in (0, 1):
        report, _ = run_step(balancer, model, data, step, chosen=DEALS["unequal"][rank])
        out["bad", step] = (report.finite, report.bad_samples, balancer.state_dict())
    return out


def steps(balancer, model, share) -> list:
    """A refresh and an ordinary step with this process's share of the samples."""
    out = []
    for step in (0, 1):
        parts = max(1, len(share) // 2)
        report, gradient = run_step(balancer, model, make_data(), step, chosen=share, parts=parts,
                                    kl=0.2)  # fmt: skip
        out.append((gradient, report.coefficients_K, report.harmony, report.loss, report.kl))
    return out
