import pytest

from marble.models import load
from marble.models.sd3 import SD3


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A tiny pipeline without T5, as many run SD3."""
    return SD3.tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def folder_t5(tmp_path_factory):
    return SD3.tiny(tmp_path_factory.mktemp("tiny-t5"), t5=True, seed=1)


@pytest.fixture
def adapter(folder):
    adapter = load(str(folder))
    adapter.add_lora(rank=4, alpha=8, seed=3)
    return adapter


@pytest.fixture
def randomise():
    """Gives the trained LoRA weights that do something (B starts at zero)."""
    import torch

    def apply(adapter, seed=0, name="default", scale=0.1):
        generator = torch.Generator().manual_seed(seed)
        for parameter in adapter.lora_parameters(name).values():
            parameter.data.normal_(std=scale, generator=generator)

    return apply


@pytest.fixture
def fresh_compiler(monkeypatch, tmp_path):
    """Nothing compiled before, nothing kept."""
    import torch
    from torch._dynamo import config as dynamo
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch.compiler.reset()
    counters.clear()
    with dynamo.patch(recompile_limit=dynamo.recompile_limit):
        yield
    torch.compiler.reset()
