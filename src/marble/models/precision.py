"""Number formats of the computation, and which one suits a machine."""

from __future__ import annotations

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def computing_dtype(precision: str | None, dtype: str, device: torch.device) -> torch.dtype:
    """The format that `train.precision` asks for; None: the weights' own.

    `auto` is bf16 on a CPU with instructions for it (half as fast again: `cpu`), else the weights'
    own, with matrix products of fp32 in TF32 (`products_in_tf32`).
    """
    if precision == "auto":
        precision = "bf16" if device.type == "cpu" and fast_bf16_on_cpu() else None
    return DTYPES[precision or dtype]


def fast_bf16_on_cpu() -> bool:
    """Whether this CPU multiplies bf16 matrices itself rather than through fp32."""
    known: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(known.get("avx512_bf16") or known.get("amx_bf16"))


def products_in_tf32(precision: str | None, dtype: str, device: torch.device) -> bool:
    """Sets how this process multiplies fp32 matrices on a GPU, and says whether that is in TF32.

    `auto` takes TF32: factors are rounded to 10 bits, sums stay in fp32. It is set for the whole
    process, because rewards are scored in other threads while the model draws.
    """
    low = precision == "auto" and dtype == "fp32" and device.type == "cuda"
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = low
    return low
