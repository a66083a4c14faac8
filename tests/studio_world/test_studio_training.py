"""What the studio's pretraining is made of: tokenizer, optimiser, recorded steps, late errors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marble.studio.pretrain import flow
from marble.studio.pretrain.common import Recorded, cosine_lr
from marble.studio.pretrain.generator import Generator
from marble.studio.pretrain.muon import Muon, orthogonalise
from marble.studio.pretrain.tokenizer import build_tokenizer
from marble.studio.world import vocabulary

TOKENIZER = build_tokenizer(vocabulary())


def tokens(prompt):
    return TOKENIZER.convert_ids_to_tokens(TOKENIZER(prompt)["input_ids"])[1:-1]


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=9), st.booleans())
def test_inside_quotes_every_letter_is_a_token(word, capital):
    said = tokens(f'a sign that says "{word.upper() if capital else word}"')
    assert said == ["a", "sign", "that", "says", '"', *word.upper(), '"']


def test_two_signs_do_not_mix():
    first, second = tokens('"tea"'), tokens('"milk"')
    assert tokens('“tea” and "MILK"') == [*first, "and", *second]


def test_muon_is_torchs_muon():
    """Ours takes matrices of one shape together; the result is the same."""
    torch.manual_seed(0)
    shapes = [(8, 8), (8, 8), (6, 10), (12, 5), (8, 8)]
    ours, theirs = ([torch.nn.Parameter(torch.randn(s)) for s in shapes] for _ in range(2))
    for a, b in zip(ours, theirs):
        b.data.copy_(a.data)
    starts = {id(p): p.detach().clone() for p in ours}
    mine = Muon(ours, lr=0.02, momentum=0.9, weight_decay=0.1)
    other = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(4):
        for a, b in zip(ours, theirs):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        mine.step()
        other.step()
    for a, b in zip(ours, theirs):
        # Both iterate in bf16, but round in another order.
        assert (a - b).norm() < 0.05 * (b - starts[id(a)]).norm()


@settings(deadline=None)
@given(st.integers(2, 12), st.integers(2, 12), st.integers(0, 1000))
def test_orthogonalised_singular_values_are_near_one(rows, columns, seed):
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, rows, columns))).float()
    found = torch.linalg.svdvals(orthogonalise(x, steps=8).float())
    assert found.max() < 1.35
    assert (found > 0.5).float().mean() > 0.5  # tiny ones grow slowly


def test_every_matrix_of_a_layer_goes_to_muon_and_nothing_twice():
    model = Generator(50, eos=1)
    muon, adam = flow.new_optimisers(model, 1e-3, torch.device("cpu"))
    by_muon, by_adam = ({id(p) for g in o.param_groups for p in g["params"]} for o in (muon, adam))
    assert not by_muon & by_adam
    assert by_muon | by_adam == {id(p) for p in model.parameters()}
    names = {id(p): name for name, p in model.named_parameters()}
    assert {"transformer.transformer_blocks.0.attn.to_q.weight"} <= {names[i] for i in by_muon}
    left = [
        n for i, n in names.items() if i in by_adam and dict(model.named_parameters())[n].ndim == 2
    ]
    kept = ("embed", "shared", "proj_out", "projection", "norm_out", "relative_attention")
    assert all(any(k in n for k in kept) for n in left), left


def test_a_recorded_step_on_a_cpu_is_the_step():
    torch.manual_seed(0)
    plain, recorded = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    recorded.load_state_dict(plain.state_dict())

    def stepping(model):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            loss = model(x).square().mean()
            loss.backward()
            optimiser.step()
            return loss.detach()

        return step, optimiser

    step, optimiser = stepping(plain)
    other, its = stepping(recorded)
    run = Recorded(other, [its])
    for x in torch.randn(6, 4, 3):
        optimiser.zero_grad()
        assert torch.equal(step(x), run(x))
    assert torch.equal(plain.weight, recorded.weight)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="records CUDA graphs")
def test_a_recorded_step_on_a_gpu_is_the_step():
    results = []
    for graphed in (False, True):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1).cuda()
        rate = torch.tensor(0.1, device="cuda")
        optimiser = torch.optim.AdamW(model.parameters(), lr=rate, capturable=True)

        def step(x, model=model, optimiser=optimiser):
            loss = model(x).square().mean()
            loss.backward()
            optimiser.step()
            return loss.detach()

        run = Recorded(step, [optimiser])
        if not graphed:
            run.WARM_UP = 100
        for i, x in enumerate(torch.randn(8, 4, 3, device="cuda")):
            cosine_lr(optimiser, 0.1, i, i / 8)
            run(x)
        assert (run.graph is not None) == graphed
        results.append(model.weight.detach().clone())
    torch.testing.assert_close(*results)


def test_a_tensor_learning_rate_is_changed_in_place():
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    rate = torch.tensor(1.0)
    optimiser = Muon([weight], lr=rate)
    cosine_lr(optimiser, 0.5, step=1000, done=0.0)
    assert optimiser.param_groups[0]["lr"] is rate and rate.item() == pytest.approx(0.5)


def test_wrong_captions_come_late():
    right = torch.tensor([True, False] * 20)
    at_first, later = flow._orders(right, 40, 10, torch.device("cpu"))
    assert right[torch.cat([next(at_first) for _ in range(6)])].all()
    assert not right[torch.cat([next(later) for _ in range(4)])].all()
    everything, same = flow._orders(None, 40, 10, torch.device("cpu"))
    assert everything is same
