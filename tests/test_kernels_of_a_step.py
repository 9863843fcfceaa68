"""benchmarks/kernels.py, with a step that is known."""

import runpy
from pathlib import Path

import pytest
import torch

from nofe.training.runtime import make_runtime

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "kernels.py"


def test_kernels_are_those_of_one_step_the_longest_first() -> None:
    script = runpy.run_path(str(SCRIPT), run_name="kernels")
    matrix, small = torch.randn(400, 400), torch.randn(4)

    def step() -> None:
        (matrix @ matrix) @ matrix
        torch.relu(small)

    kernels = script["kernels_of"](step, make_runtime("cpu"))
    launches = {each["kernel"]: each["launches"] for each in kernels}
    assert launches["aten::mm"] == 2
    assert launches["aten::clamp_min"] == 1
    assert kernels[0]["kernel"] == "aten::mm"
    assert kernels[0]["kind"] == "products"
    times = [each["microseconds"] for each in kernels]
    assert times == sorted(times, reverse=True)
    assert sum(script["by_kind"](kernels).values()) == pytest.approx(sum(times))


def test_kernels_of_a_gpu_are_told_apart_by_their_names() -> None:
    kind_of = runpy.run_path(str(SCRIPT), run_name="kernels")["kind_of"]
    names = {
        "_step_of_a_piece": "weights",
        "triton_poi_fused__native_batch_norm_relu_3": "compiled",
        "sm90_xmma_fprop_implicit_gemm_bf16bf16_bf16f32": "convolutions",
        "nvjet_tst_128x256_64x4_1x2_h_bz_NNT": "products",
        "Memcpy DtoD (Device -> Device)": "copies",
        "void at::native::reduce_kernel": "others",
    }
    assert {name: kind_of(name) for name in names} == names
