"""One rank of a distributed step; writes what it ended up with to `folder`."""

import torch
import torch.distributed as dist
from _jacobian_model import make_batch, tiny_sd3, trainable, two_pass, velocity
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from marble.jacobian import Jacobian
from marble.objectives import NFT, mix

K = 4
C = torch.tensor([0.4, 1.0, 0.0, 0.3], dtype=torch.float64)
# Samples of each rank's micro-batches; ranks of a DDP run need not have the same number of them.
DDP = {2: [(2, 1), (4,)], 3: [(2,), (1, 1), (3,)]}
FSDP = [(2, 2), (1, 2)]
SAMPLES = 7


def run(rank: int, world: int, folder: str) -> None:
    """Three ranks under DDP; then the first two of them, as a group, under DDP and FSDP2."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world
    )
    torch.set_num_threads(1)
    try:
        pair = dist.new_group([0, 1])
        results = {"ddp 3": ddp_step(rank, None)}
        if rank < 2:
            results["ddp 2"] = ddp_step(rank, pair)
            results["fsdp 2"] = fsdp_step(rank, pair)
        torch.save(results, f"{folder}/rank{rank}.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def ddp_step(rank: int, group: dist.ProcessGroup | None) -> dict[str, Tensor]:
    model = tiny_sd3()
    batch = make_batch(model, SAMPLES, K)
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=group)
    return measure(rank, group, wrapped, batch, DDP[dist.get_world_size(group)])


def fsdp_step(rank: int, group: dist.ProcessGroup) -> dict[str, Tensor]:
    model = tiny_sd3()
    batch = make_batch(model, SAMPLES, K)
    mesh = DeviceMesh.from_group(group, "cpu")
    for block in model.transformer_blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    results = measure(rank, group, model, batch, FSDP)
    kinds = {type(x).__name__ for p in trainable(model) for x in (p, p.grad)}
    assert kinds == {"DTensor"}, kinds
    return results


def measure(rank, group, model, batch, plan) -> dict[str, Tensor]:
    nft = NFT()
    start = sum(map(sum, plan[:rank]))
    results = {}
    jac = Jacobian(model, K)
    for name in ("rows", "rows of a second step"):
        jac.zero()
        two_pass(jac, batch, nft, plan[rank], start=start)
        jac.reduce(group)
        results[name] = jac.rows.data[0].clone()
    assert all(p.grad is None for p in model.parameters())
    results["gram"] = jac.gram()
    jac.write_grad(C)
    results["written"] = flat_grad(model)

    # An ordinary step afterwards. Weights hold global counts, so ranks must sum; DDP and FSDP
    # take the mean over ranks, hence the factor.
    model.zero_grad()
    part = batch.part(slice(start, start + sum(plan[rank])))
    plus, minus = nft.sides(velocity(model, part), part.point())
    rho_plus, rho_minus = mix(C, part.r, 1 - part.r, part.valid, batch.valid.sum(1))
    world = dist.get_world_size(group)
    (world * (rho_plus * plus + rho_minus * minus).sum()).backward()
    results["ordinary"] = flat_grad(model)
    return results


def flat_grad(model: nn.Module) -> Tensor:
    grads = [p.grad for p in trainable(model)]
    return torch.cat([getattr(g, "full_tensor", lambda g=g: g)().flatten() for g in grads])
