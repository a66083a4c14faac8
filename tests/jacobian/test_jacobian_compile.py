"""A compiled model gives the same K gradients, and its ordinary steps stay ordinary."""

import shutil

import pytest
import torch
from _jacobian_model import (
    literal_gradients,
    make_batch,
    relative_error,
    tiny_sd3,
    trainable,
    two_pass,
    velocity,
)
from torch._dynamo.utils import counters

from marble.jacobian import Jacobian
from marble.objectives import NFT, mix


def check(model, compiled) -> None:
    """``compiled(model)`` compiles the model, or a part of it, and returns what to call."""
    nft = NFT()
    batch = make_batch(model, 4, 3)
    literal = literal_gradients(model, batch, nft)
    forward_model = compiled(model)
    jac = Jacobian(model, 3)
    for _ in range(2):
        jac.zero()
        rows = two_pass(jac, batch, nft, (2, 2), model=forward_model)
        assert relative_error(rows, literal) <= 1e-12
    assert all(p.grad is None for p in trainable(model))
    c = torch.tensor([0.5, 1.5, 0.2], dtype=torch.float64)
    for index in (slice(0, 2), slice(2, 4)):
        part = batch.part(index)
        plus, minus = nft.sides(velocity(forward_model, part), part.point())
        rho_plus, rho_minus = mix(c, part.r, 1 - part.r, part.valid, batch.valid.sum(1))
        (rho_plus * plus + rho_minus * minus).sum().backward()
    ordinary = torch.cat([p.grad.flatten() for p in trainable(model)])
    assert relative_error(ordinary, c @ literal) <= 1e-12


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    counters.clear()
    yield
    # One version of each graph for recorded and one for ordinary steps, not one per call.
    assert counters["stats"]["unique_graphs"] <= 2
    torch.compiler.reset()


def first_block(**options):
    def compiled(model):
        model.transformer_blocks[0].compile(fullgraph=True, **options)
        return model

    return compiled


def test_compiled_block_in_one_graph():
    """Traced without graph breaks, forward and backward, beside blocks that are not compiled."""
    check(tiny_sd3(), first_block(backend="aot_eager"))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
def test_compiled_block_with_inductor():
    check(tiny_sd3(), first_block())


@pytest.mark.slow
def test_compiled_model_with_checkpointing():
    model = tiny_sd3().train()
    model.enable_gradient_checkpointing()
    check(model, lambda model: torch.compile(model, fullgraph=True, backend="aot_eager"))
