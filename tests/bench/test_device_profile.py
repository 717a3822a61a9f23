"""Which kernel families a GPU spends its time in."""

from __future__ import annotations

import pytest

from bench.device_profile import device_shares, kernel_family, shares_of


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("plan_rows", "plan_rows"),
        ("branch_attention_3", "branch_attention"),
        ("decode_attention", "decode_attention"),
        ("likeliest_parts", "likeliest"),
        ("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "products"),
        ("gemm_fusion_dot_12", "products"),
        ("void cutlass::Kernel2<cutlass_80_tensorop>", "products"),
        ("void cublasLt::splitKreduce_kernel<32, 16>", "products"),
        ("loop_add_fusion_2", "other"),
        ("input_reduce_gemm", "other"),
        ("MemcpyD2D", "other"),
    ],
)
def test_a_kernel_is_known_by_the_beginning_of_its_name(name, family):
    assert kernel_family(name) == family


def test_shares_are_of_the_whole_busy_time():
    durations = {"nvjet_a": 400.0, "gemm_b": 200.0, "plan_rows": 100.0, "loop_add_fusion": 300.0}
    shares = shares_of(durations)
    assert list(shares.items()) == [("products", 0.6), ("other", 0.3), ("plan_rows", 0.1)]


def test_without_a_gpu_there_is_nothing_to_share():
    ran = []
    assert device_shares(lambda: ran.append(True)) == {}
    assert ran == [True]
