"""The base learns what its guided teacher draws: the formula, the samples, the way there."""

import copy

import pytest
import torch

from marble.studio.pretrain.distil import GUIDES, distil, guided, guided_samples
from marble.studio.pretrain.generator import Generator, sample_latents
from marble.studio.pretrain.tokenizer import MAX_LENGTH, build_tokenizer
from marble.studio.world import vocabulary

N, CPU = 12, torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(vocabulary())


@pytest.fixture(scope="module")
def models(tokenizer):
    torch.manual_seed(0)
    teacher, weaker = (Generator(len(tokenizer), eos=1).eval() for _ in range(2))
    with torch.no_grad():  # a new MMDiT ignores its input: its gates and its last layer are zero
        for parameter in [*teacher.parameters(), *weaker.parameters()]:
            parameter.add_(0.02 * torch.randn_like(parameter))
    return teacher, weaker


def test_velocity_is_the_formula(models, tokenizer):
    teacher, weaker = models
    g = torch.Generator().manual_seed(1)
    x = torch.randn(N, 16, 8, 8, generator=g)
    ids = torch.randint(2, len(tokenizer), (N, MAX_LENGTH), generator=g)
    sigma, empty = torch.linspace(0.1, 0.9, N), torch.ones(1, MAX_LENGTH, dtype=torch.long)
    guides = torch.tensor([[1.0, 1.0], [3.0, 1.0], [1.0, 2.5], [2.0, 4.0]]).repeat(3, 1)
    target = guided(teacher, weaker, x, sigma, ids, empty, guides)
    with torch.no_grad():
        v = teacher(x, sigma, ids)
        away = {0: v - teacher(x, sigma, empty.expand_as(ids)), 1: v - weaker(x, sigma, ids)}
    for i, (w, a) in enumerate(guides.tolist()):
        expected = v[i] + (w - 1) * away[0][i] + (a - 1) * away[1][i]
        torch.testing.assert_close(target[i], expected)
    assert (target[1] - v[1]).abs().max() > 0.01  # guidance is not nothing here


def test_samples_are_repeatable_and_unguided_they_are_the_teachers_own(models, tokenizer):
    first, ids = guided_samples(*models, tokenizer, 10, CPU, seed=3, steps=4)
    assert first.shape == (10, 16, 8, 8) and ids.shape == (10, MAX_LENGTH)
    again, same = guided_samples(*models, tokenizer, 10, CPU, seed=3, steps=4)
    assert torch.equal(first, again) and torch.equal(ids, same)
    _, others = guided_samples(*models, tokenizer, 10, CPU, seed=4, steps=1)
    assert not torch.equal(ids, others)
    none = dict.fromkeys(GUIDES, (1.0, 1.0))
    plain, _ = guided_samples(*models, tokenizer, 10, CPU, none, seed=3, steps=4)
    torch.testing.assert_close(plain, sample_latents(models[0], ids, seed=3, steps=4))
    assert (plain - first).abs().max() > 0.01


def test_student_goes_towards_the_guided_samples(models, tokenizer):
    teacher, weaker = models
    student = distil(copy.deepcopy(teacher), weaker, tokenizer, CPU, 1.0, samples=10, batch=10)
    x_0, ids = guided_samples(teacher, weaker, tokenizer, 10, CPU)
    noise = torch.randn(x_0.shape, generator=torch.Generator().manual_seed(2))

    def loss(model):
        with torch.no_grad():
            v = model(0.4 * x_0 + 0.6 * noise, torch.full((10,), 0.6), ids)
        return (v - (noise - x_0)).square().mean().item()

    assert loss(student) < loss(teacher)
    assert all(p.grad is None for p in [*teacher.parameters(), *weaker.parameters()])
