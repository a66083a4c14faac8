"""Which number format a recipe's `train.precision` means on a machine."""

import pytest
import torch

from marble.models import precision
from marble.models.precision import computing_dtype

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("asked", "dtype", "device", "capable", "expected"),
    [
        (None, "fp32", CPU, True, torch.float32),
        ("fp32", "bf16", CPU, True, torch.float32),
        ("auto", "fp32", CPU, True, torch.bfloat16),
        ("auto", "fp32", CPU, False, torch.float32),
        ("auto", "fp32", GPU, True, torch.float32),
        ("auto", "bf16", GPU, False, torch.bfloat16),
        ("fp16", "fp32", GPU, False, torch.float16),
    ],
)
def test_computing_dtype(monkeypatch, asked, dtype, device, capable, expected):
    monkeypatch.setattr(precision, "fast_bf16_on_cpu", lambda: capable)
    assert computing_dtype(asked, dtype, device) is expected


def test_a_torch_that_cannot_tell_computes_in_fp32(monkeypatch):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert precision.fast_bf16_on_cpu() is False


@pytest.fixture
def as_it_was():
    before = torch.backends.cuda.matmul.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize(
    ("asked", "dtype", "device", "tf32"),
    [
        ("auto", "fp32", GPU, True),
        ("fp32", "fp32", GPU, False),
        (None, "fp32", GPU, False),
        ("auto", "bf16", GPU, False),
        ("auto", "fp32", CPU, False),
    ],
)
def test_products_are_in_tf32_under_auto_alone(as_it_was, asked, dtype, device, tf32):
    torch.backends.cuda.matmul.allow_tf32 = device is GPU and not tf32  # of a model before
    assert precision.products_in_tf32(asked, dtype, device) is tf32
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
