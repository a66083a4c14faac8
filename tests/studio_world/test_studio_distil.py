"""The base learns what its guided teacher draws: the formula, the samples, the way there."""

import copy

import pytest
import torch

from marble.studio.pretrain.distil import GUIDES, distil, guided, guided_samples, keep
from marble.studio.pretrain.generator import Generator, sample_latents
from marble.studio.pretrain.tokenizer import MAX_LENGTH, build_tokenizer
from marble.studio.world import vocabulary

N, CPU = 12, torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(vocabulary())


@pytest.fixture(scope="module")
def teacher(tokenizer):
    torch.manual_seed(0)
    teacher = Generator(len(tokenizer), eos=1).eval()
    with torch.no_grad():  # a new MMDiT ignores its input: its gates and its last layer are zero
        for parameter in teacher.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    return teacher


def test_velocity_is_the_formula(teacher, tokenizer):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(N, 16, 8, 8, generator=g)
    ids = torch.randint(2, len(tokenizer), (N, MAX_LENGTH), generator=g)
    sigma, empty = torch.linspace(0.1, 0.9, N), torch.ones(1, MAX_LENGTH, dtype=torch.long)
    strength = torch.tensor([1.0, 3.0, 1.5, 2.0]).repeat(3)
    target = guided(teacher, x, sigma, ids, empty, strength)
    with torch.no_grad():
        v = teacher(x, sigma, ids)
        away = v - teacher(x, sigma, empty.expand_as(ids))
    for i, w in enumerate(strength.tolist()):
        torch.testing.assert_close(target[i], v[i] + (w - 1) * away[i])
    assert (target[1] - v[1]).abs().max() > 0.01  # guidance is not nothing here


def test_samples_are_repeatable_and_unguided_they_are_the_teachers_own(teacher, tokenizer):
    first, ids = guided_samples(teacher, tokenizer, 10, CPU, seed=3, steps=4)
    assert first.shape == (10, 16, 8, 8) and ids.shape == (10, MAX_LENGTH)
    again, same = guided_samples(teacher, tokenizer, 10, CPU, seed=3, steps=4)
    assert torch.equal(first, again) and torch.equal(ids, same)
    _, others = guided_samples(teacher, tokenizer, 10, CPU, seed=4, steps=1)
    assert not torch.equal(ids, others)
    none = dict.fromkeys(GUIDES, 1.0)
    plain, _ = guided_samples(teacher, tokenizer, 10, CPU, none, seed=3, steps=4)
    torch.testing.assert_close(plain, sample_latents(teacher, ids, seed=3, steps=4))
    assert (plain - first).abs().max() > 0.01


def test_student_goes_towards_the_guided_samples(teacher, tokenizer):
    student = distil(copy.deepcopy(teacher), tokenizer, CPU, 1.0, samples=10, batch=10)
    x_0, ids = guided_samples(teacher, tokenizer, 10, CPU)
    noise = torch.randn(x_0.shape, generator=torch.Generator().manual_seed(2))

    def loss(model):
        with torch.no_grad():
            v = model(0.4 * x_0 + 0.6 * noise, torch.full((10,), 0.6), ids)
        return (v - (noise - x_0)).square().mean().item()

    assert loss(student) < loss(teacher)
    assert all(p.grad is None for p in teacher.parameters())


def test_a_share_of_the_weights_is_kept():
    torch.manual_seed(0)
    before, model = (Generator(40, eos=1) for _ in range(2))
    now = copy.deepcopy(model)
    keep(model, before, 0.25)
    for mixed, new, old in zip(model.parameters(), now.parameters(), before.parameters()):
        torch.testing.assert_close(mixed, 0.75 * new + 0.25 * old)
