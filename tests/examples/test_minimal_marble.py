"""The example's update is the library's, and the script runs."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from marble import Balancer
from marble.objectives import Point

SCRIPT = Path(__file__).parents[2] / "examples" / "minimal_marble.py"
TIMESTEPS = 2


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("minimal_marble", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def setting(example):
    """An fp64 model off its start, an old one that differs, samples and their rewards."""
    torch.manual_seed(0)
    model = example.Flow().double()
    for layer in model.layers:
        layer.base.requires_grad_(False)
        torch.nn.init.normal_(layer.up.weight, std=0.3)
    prompt = torch.arange(example.PROMPTS).repeat_interleave(6)
    x_0 = torch.randn(len(prompt), 2, dtype=torch.float64)
    rewards = example.score(x_0, prompt)
    x_0, many = x_0.repeat(TIMESTEPS, 1), prompt.repeat(TIMESTEPS)
    noise, v_old = torch.randn(2, *x_0.shape, dtype=torch.float64)
    t = torch.rand(len(x_0), dtype=torch.float64) * 0.9 + 0.05
    x_t = x_0 + t[:, None] * (noise - x_0)
    return model, (x_t, x_0, t, many, v_old), rewards, prompt


def library_step(balancer, model, pairs, rewards, prompt, step):
    x_t, x_0, t, many, v_old = pairs
    batch = balancer.batch(rewards, prompt)
    plan = balancer.begin_step(batch, step, micro_batches=TIMESTEPS, pairs=TIMESTEPS)
    for at in torch.arange(len(x_t)).chunk(TIMESTEPS):
        with plan.recording():
            v = model(x_t[at], t[at], many[at])
        point = Point(x_t[at], t[at], x_0[at], v_old=v_old[at])
        plan.backward(v, point, torch.arange(len(prompt)))
    return plan.finish()


def gradient(model):
    return torch.cat([p.grad.flatten() for p in model.lora()])


def relative(a, b):
    return float((a - b).norm() / b.norm())


def test_marble_update_is_the_library_s(example, setting):
    """A refresh step, the amortised steps after it, and the next refresh."""
    model, pairs, rewards, prompt = setting
    mine = example.Marble(every=3, rho=0.7)
    balancer = Balancer(model, example.REWARDS, target="full", every=3, rho=0.7)
    for step in range(4):
        scores = rewards.roll(6 * step, dims=1)  # other rewards at every step
        scores[2] = torch.where(prompt < example.SOURCE_TEXT, torch.nan, scores[2].nan_to_num())
        model.zero_grad()
        example.step_gradient(model, pairs, scores, prompt, step, mine)
        wanted = gradient(model)
        model.zero_grad()
        report = library_step(balancer, model, pairs, scores, prompt, step)
        assert report.refreshed == (step % 3 == 0)
        assert relative(gradient(model), wanted) < 1e-10
        assert abs(report.alpha_K - mine.alpha).max() < 1e-10


def test_weighted_sum_update_is_the_library_s(example, setting):
    model, pairs, rewards, prompt = setting
    example.step_gradient(model, pairs, rewards, prompt, 0, None)
    wanted = gradient(model)
    model.zero_grad()
    library_step(
        Balancer(model, example.REWARDS, method="weighted_sum"), model, pairs, rewards, prompt, 0
    )
    assert relative(gradient(model), wanted) < 1e-10


def test_two_passes_give_the_gradients_of_k_backwards(example, setting):
    model, pairs, rewards, prompt = setting
    r = example.optimality(rewards, prompt).repeat(1, TIMESTEPS)
    valid = ~r.isnan()
    weight = valid / valid.sum(1, keepdim=True).double()
    r = torch.where(valid, r, 0.5)
    got = example.k_gradients(model, pairs, r, weight)
    for k in range(3):
        v, P, N = example.forward(model, pairs)
        cotangent = (weight[k] * r[k])[:, None] * P + (weight[k] * (1 - r[k]))[:, None] * N
        grads = torch.autograd.grad(v, model.lora(), cotangent)
        assert relative(got[k], torch.cat([g.flatten() for g in grads])) < 1e-12


def test_script_runs(tmp_path):
    out = tmp_path / "picture.png"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--steps", "5", "--out", str(out)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert out.read_bytes().startswith(b"\x89PNG")
    lines = done.stdout.splitlines()
    for reward in ("bright", "calm", "text"):
        row = next(line for line in lines if line.startswith(reward))
        assert row.count("→") == 2
    assert "weighted sum" in done.stdout and "MARBLE" in done.stdout


def test_it_stays_short_and_alone():
    source = SCRIPT.read_text()
    assert len(source.splitlines()) < 300
    assert "import marble" not in source and "from marble" not in source
