"""Guidance is put into the weights: the target is the formula's, and training goes towards it."""

import copy

import pytest
import torch

from marble.studio.pretrain.common import Budget
from marble.studio.pretrain.generator import Generator
from marble.studio.pretrain.refine import guided, refine

VOCABULARY, N = 40, 12


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    teacher, weaker = (Generator(VOCABULARY, eos=1).eval() for _ in range(2))
    with torch.no_grad():  # a new MMDiT ignores its input: its gates and its last layer are zero
        for parameter in [*teacher.parameters(), *weaker.parameters()]:
            parameter.add_(0.02 * torch.randn_like(parameter))
    return teacher, weaker


@pytest.fixture(scope="module")
def batch():
    g = torch.Generator().manual_seed(1)
    x = torch.randn(N, 16, 8, 8, generator=g)
    ids = torch.randint(2, VOCABULARY, (N, 16), generator=g)
    return x, torch.linspace(0.1, 0.9, N), ids, torch.ones(1, 16, dtype=torch.long)


def test_target_is_the_formula(models, batch):
    teacher, weaker = models
    x, sigma, ids, empty = batch
    guides = torch.tensor([[1.0, 1.0], [3.0, 1.0], [1.0, 2.5], [2.0, 4.0]]).repeat(3, 1)
    target = guided(teacher, weaker, x, sigma, ids, empty, guides)
    with torch.no_grad():
        v = teacher(x, sigma, ids)
        away = {0: v - teacher(x, sigma, empty.expand_as(ids)), 1: v - weaker(x, sigma, ids)}
    for i, (w, a) in enumerate(guides.tolist()):
        expected = v[i] + (w - 1) * away[0][i] + (a - 1) * away[1][i]
        torch.testing.assert_close(target[i], expected)
    assert (target[1] - v[1]).abs().max() > 0.01  # guidance is not nothing here


def test_student_goes_to_the_guided_teacher(models, batch):
    teacher, weaker = models
    x, sigma, ids, empty = batch
    guides = torch.tensor([[2.0, 2.0]]).repeat(N, 1)
    target = guided(teacher, weaker, x, sigma, ids, empty, guides)
    cpu = torch.device("cpu")
    student = refine(
        copy.deepcopy(teacher),
        weaker,
        x,
        ids,
        guides,
        empty,
        cpu,
        Budget(600, steps=20),
        batch=N,
        peak_lr=8e-3,  # the warm-up is longer than these few steps
    )

    def distance(model):
        with torch.no_grad():
            return (model(x, sigma, ids) - target).square().mean().item()

    assert distance(student) < 0.9 * distance(teacher)
    assert all(p.grad is None for p in weaker.parameters())
