"""Compiled blocks: the eager numbers, counted programs, and no silent way back to eager."""

import os

import pytest
import torch
from torch import nn
from torch._dynamo import config as dynamo
from torch._dynamo.utils import counters
from torch.utils.flop_counter import FlopCounterMode

from marble.jacobian import Jacobian
from marble.models import compiling, load, lora
from marble.models.compiling import Compiled
from marble.models.lora_layer import keep_low
from marble.models.merge import merged
from marble.models.pipeline import blocks
from marble.models.sd3 import SD3

pytestmark = pytest.mark.usefixtures("fresh_compiler")


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return torch.sin(x) * self.weight


class Breaking(Doubling):
    def forward(self, x):
        x = x * self.weight
        torch._dynamo.graph_break()
        return x + 1


def compiled(blocks, backend="eager"):
    said = []
    return Compiled(blocks, said.append, backend=backend), said


def test_one_program_serves_all_blocks_of_a_make():
    parts = [Doubling() for _ in range(4)]
    found, said = compiled(parts)
    x = torch.randn(3, 5)
    for block in parts:
        assert torch.equal(block(x), torch.sin(x) * 2)
    assert found.counts == {"compile/graphs": 1, "compile/breaks": 0, "compile/eager": 0}
    found.tell()
    found.tell()
    assert len(said) == 2
    assert "compiling" in said[0] and os.environ["TORCHINDUCTOR_CACHE_DIR"] in said[0]
    assert "1 programs" in said[1]


def test_hooks_stay_outside():
    """Those of FSDP and of checkpointing are on the call of the module."""
    block, calls = Doubling(), []
    block.register_forward_pre_hook(lambda *_: calls.append(counters["stats"]["unique_graphs"]))
    found, _ = compiled([block])
    block(torch.ones(2))
    block(torch.ones(2))
    assert calls == [0, 1] and found.counts["compile/breaks"] == 0


def test_a_block_that_breaks_is_compiled_in_parts_and_said():
    block = Breaking()
    found, said = compiled([block])
    assert torch.equal(block(torch.ones(2)), torch.full((2,), 3.0))
    assert found.mode == "parts" and found.counts["compile/breaks"] > 0
    assert [line for line in said if "in parts" in line]


def test_a_compiler_that_fails_is_said_once_and_counted():
    def failing(graph, inputs):
        raise RuntimeError("no compiler here")

    parts = [Doubling(), Doubling()]
    found, said = compiled(parts, failing)
    for block in (*parts, *parts):
        assert torch.equal(block(torch.ones(2)), torch.sin(torch.ones(2)) * 2)
    assert found.mode == "off" and found.counts["compile/eager"] == 4
    lines = [line for line in said if "without torch.compile" in line]
    assert len(lines) == 1 and "no compiler here" in lines[0] and "\n" not in lines[0]


def test_a_pass_under_a_flop_counter_does_not_keep_later_ones_from_compiling():
    block = Doubling()
    found, _ = compiled([block])
    with FlopCounterMode(display=False):
        block(torch.ones(2))
    assert found.counts == {"compile/graphs": 0, "compile/breaks": 0, "compile/eager": 1}
    assert torch.equal(block(torch.ones(2)), torch.sin(torch.ones(2)) * 2)
    assert found.counts == {"compile/graphs": 1, "compile/breaks": 0, "compile/eager": 1}


def test_errors_of_the_block_itself_are_its_own():
    class Refusing(nn.Module):
        def forward(self, x):
            raise KeyError("wrong input")

    block = Refusing()
    compiled([block])
    with pytest.raises(KeyError, match="wrong input"):
        block(torch.ones(1))


def test_beyond_the_limit_passes_run_eager_and_are_counted(monkeypatch):
    monkeypatch.setattr(compiling, "LIMIT", 1)
    block = Doubling()
    found, said = compiled([block])
    dynamo.recompile_limit = 1
    block(torch.ones(2))
    for _ in range(2):
        with torch.no_grad():  # another kind of pass
            assert torch.equal(block(torch.ones(2)), torch.sin(torch.ones(2)) * 2)
    block(torch.ones(2))
    assert found.counts == {"compile/graphs": 1, "compile/breaks": 0, "compile/eager": 2}
    assert len([line for line in said if "more kinds" in line]) == 1


def test_auto_is_for_large_models_on_a_gpu_with_triton(monkeypatch):
    from torch.utils import _triton

    said = []
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    large, small = 2 * compiling.SMALL, compiling.SMALL // 2
    monkeypatch.setattr(_triton, "has_triton", lambda: True)
    assert compiling.wanted("auto", cuda, large, said.append)
    assert not compiling.wanted("auto", cpu, large, said.append)
    assert not compiling.wanted("auto", cuda, small, said.append)
    assert compiling.wanted(True, cpu, small, said.append)
    assert not compiling.wanted(False, cuda, large, said.append)
    assert not said
    monkeypatch.setattr(_triton, "has_triton", lambda: False)
    assert not compiling.wanted("auto", cuda, large, said.append)
    assert len(said) == 1 and "Triton" in said[0]


def test_the_cache_outlives_the_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", compiling._torch_s_choice())
    compiled([])
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "marble" / "compiled")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/mine")
    compiled([])
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/mine"


def results(adapter, jacobian, batch, few=False):
    """Velocities and gradients of all kinds of passes that training has, or of a `few`."""
    cond, x = adapter.encode([f"a {i}" for i in range(batch)]), adapter.noise(range(batch))
    sigmas = torch.linspace(0.2, 0.8, batch)
    found = []
    with torch.no_grad():
        with merged(adapter.transformer, "old"):
            found.append(adapter.velocity(x, sigmas, cond))
        with adapter.using("base"):
            found.append(adapter.velocity(x, sigmas, cond))
        if not few:
            with adapter.using("old"):
                found.append(adapter.velocity(x, sigmas, cond))
    cotangent = torch.sin(torch.arange(x.numel()).view_as(x) * 1.0)
    if not few:
        v = adapter.velocity(x, sigmas, cond)
        v.backward(cotangent)
        found.append(torch.cat([p.grad.flatten() for p in adapter.lora_parameters().values()]))
        for parameter in adapter.lora_parameters().values():
            parameter.grad = None
    jacobian.zero()
    with jacobian.recording(batch):
        v = adapter.velocity(x, sigmas, cond)
    weights = torch.randn(3, batch, generator=torch.Generator().manual_seed(1))
    jacobian.backward(v, [(cotangent, weights), (cotangent.flip(0), 2 * weights)])
    found.append(jacobian.rows.data.clone())
    return found


def check_passes(
    folder, randomise, batches, expected, *, few=False, backend="eager", dtype="fp32", **more
):
    runs = []
    for compile_it in (False, True):
        adapter = load(str(folder), dtype=dtype, **more)
        adapter.add_lora(4, 8)
        if dtype == "bf16":
            layers = [layer for _, layer in lora.lora_layers(adapter.transformer)]
            keep_low(adapter.transformer, layers, torch.bfloat16)
        randomise(adapter, seed=1)
        randomise(adapter, seed=2, name="old")
        if more:
            adapter.transformer.train()
        if compile_it:
            adapter.compiled, _ = compiled(blocks(adapter.transformer), backend)
        jacobian = Jacobian(adapter.transformer, 3)
        runs.append([one for n in batches for one in results(adapter, jacobian, n, few)])
    for eager, found in zip(*runs):
        assert torch.allclose(found, eager, rtol=1e-3, atol=1e-3 * float(eager.abs().max()))
    counts = adapter.compiled.counts
    assert counts == {"compile/graphs": expected, "compile/breaks": 0, "compile/eager": 0}


def test_merged_and_base_share_a_program_and_recording_is_another(tmp_path, randomise):
    folder = SD3.tiny(tmp_path / "tiny", layers=1)
    check_passes(folder, randomise, [2], 2, few=True)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "checkpointed"])
def test_batch_sizes_and_makes_of_block(tmp_path, randomise, how):
    """Three makes of block, four kinds of pass, a first batch size and any other."""
    folder = SD3.tiny(tmp_path / "tiny", layers=3)
    more = {"gradient_checkpointing": True} if how == "checkpointed" else {}
    check_passes(folder, randomise, [4, 3, 5], 24, backend="aot_eager", dtype="bf16", **more)
