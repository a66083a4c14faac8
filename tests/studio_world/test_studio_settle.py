"""A model settles on its own samples: what they are, and what is kept of the model before."""

import copy

import torch

from marble.studio.pretrain.generator import Generator
from marble.studio.pretrain.settle import keep, own_samples
from marble.studio.pretrain.tokenizer import MAX_LENGTH, build_tokenizer
from marble.studio.world import vocabulary


def test_own_samples_are_the_models_and_repeatable():
    tokenizer = build_tokenizer(vocabulary())
    torch.manual_seed(0)
    model = Generator(len(tokenizer), eos=1).eval()
    cpu = torch.device("cpu")
    latents, ids = own_samples(model, tokenizer, 10, cpu, seed=3)
    assert latents.shape == (10, 16, 8, 8) and ids.shape == (10, MAX_LENGTH)
    again, same = own_samples(model, tokenizer, 10, cpu, seed=3)
    assert torch.equal(latents, again) and torch.equal(ids, same)
    _, others = own_samples(model, tokenizer, 10, cpu, seed=4)
    assert not torch.equal(ids, others)


def test_a_share_of_the_weights_is_kept():
    torch.manual_seed(0)
    before, model = (Generator(40, eos=1) for _ in range(2))
    now = copy.deepcopy(model)
    keep(model, before, 0.25)
    for mixed, new, old in zip(model.parameters(), now.parameters(), before.parameters()):
        torch.testing.assert_close(mixed, 0.75 * new + 0.25 * old)
