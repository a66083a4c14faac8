"""The benchmark of single kernels runs in its small form, and knows what a kernel's name means."""

import json
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import model_kernels

    return model_kernels


def test_every_part(script, tmp_path):
    out = tmp_path / "kernels.json"
    result = script.main(["--tiny", "--device", "cpu", "--seconds", "3600", "--out", str(out)])
    assert result == json.loads(out.read_text())
    errors = {k: v["error"] for k, v in result.items() if k.endswith("as torch chooses")}
    assert len(errors) == 2  # with the prompt's tokens, and without
    assert all(0 < error < 0.02 for error in errors.values())  # bf16, by fp32
    assert "failed" in next(v for k, v in result.items() if k.endswith("cudnn"))  # a CPU has none
    products = {k: v for k, v in result.items() if k.startswith("products")}
    assert len(products) == 8 and all(v["tflops"] > 0 for v in products.values())
    assert result["decode, fp16, channels_last, as it is"]["within_one_level"] > 0.99
    for part in ("v_old", "v_θ", "backward", "forward pass of a rollout"):
        found = result[part]
        assert found["kinds"]["products"] > 0
        assert found["kinds"]["attention"] > 0
        assert sum(ms for _, ms, _ in found["longest"]) <= 1.01 * sum(found["kinds"].values())


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTT", "products"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16>", "products"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7", "attention"),
        ("triton_red_fused_native_layer_norm_3", "generated"),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void at::native::vectorized_elementwise_kernel<4>", "rest"),
    ],
)
def test_kinds(script, kernel, kind):
    assert script.kind_of(kernel) == kind


def test_an_unknown_part_is_refused(script, tmp_path, capsys):
    with pytest.raises(SystemExit):
        script.main(["--tiny", "--only", "attention,vae", "--out", str(tmp_path / "k.json")])
    assert "there is no part vae" in capsys.readouterr().err
