"""Compile the engine's and the codec's kernels for Hopper, on any machine: `python compile_kernels.py`. Prints each one's name.

The interpreter forgives what the compiler does not, types above all.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from orpheus_serving.codec import residual_kernel
from orpheus_serving.engines import cuda_kernels, draw_kernel

F32, BF16, F16, FP8, I32, I64, I8 = "*fp32", "*bf16", "*fp16", "*fp8e4nv", "*i32", "*i64", "*i8"
WHERE = {"places_ptr": I32, "positions_ptr": I32, "tables_ptr": I32, "table_width": "i32"}
NORM = {
    "x_ptr": BF16,
    "raw_ptr": BF16,
    "raw_scale_ptr": F32,
    "channel_ptr": F32,
    "weight_ptr": BF16,
    "width": "i32",
    "eps": "fp32",
}
QKV = {"qkv_ptr": BF16, "scale_ptr": F32, "channel_ptr": F32, "q_ptr": F16, "cache_ptr": FP8, "cos_ptr": F32, "sin_ptr": F32}
SUMS = {"best_ptr": F32, "mass_ptr": F32}
HEADS = {"GROUP": 3, "KV_HEADS": 8, "HEAD_DIM": 128, "PAGE": cuda_kernels.PAGE}
DRAW = {
    "ids_ptr": I64, "sampled_ptr": I32, "logits_ptr": BF16, "logits_stride": "i32", "seen_ptr": I8, "seen_stride": "i32",
    "request_ptr": I32, "length_ptr": I32, "prompt_ptr": I32, "prefill_ptr": I32, "temperature_ptr": F32, "top_p_ptr": F32,
    "top_k_ptr": I32, "penalty_ptr": F32, "seed_ptr": I64, "first_code": "i32", "end_of_speech": "i32",
}  # fmt: skip
UNIT = {f"{name}_ptr": F16 for name in ("x", "y", "left", "out_x", "out_y", "taps", "bias", "weight", "mix_bias")} | {
    "position_ptr": I64, "end_ptr": I64, "turns_ptr": F32, "inverse_ptr": F32, "next_turns_ptr": F32, "next_inverse_ptr": F32,
}  # fmt: skip


def build(kernel: Any, signature: dict[str, str], constants: dict[str, Any], warps: int, stages: int = 3) -> None:
    names = kernel.arg_names
    types = {name: signature.get(name, "constexpr") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name, kind in signature.items() if kind.startswith("*")}
    source = ASTSource(kernel, types, {(names.index(name),): value for name, value in constants.items()}, aligned)
    triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": warps, "num_stages": stages})
    print(kernel.__name__)


def main() -> None:
    kernels = cuda_kernels
    for add, fp8 in ((False, True), (True, True), (True, False)):
        out = {"out_ptr": FP8, "scale_ptr": F32} if fp8 else {"out_ptr": BF16, "scale_ptr": BF16}
        build(kernels._norm_kernel, NORM | out, {"ADD": add, "FP8_OUT": fp8, "BLOCK": 4096}, 8)
    build(kernels._rotate_kernel, QKV | WHERE | {"q_factor": "fp32"}, HEADS | {"HEADS_BLOCK": 8}, 2)
    attend = {"q_ptr": F16, "cache_ptr": FP8, "out_ptr": F32} | SUMS | WHERE
    combine = {"partial_ptr": F32, "out_ptr": FP8, "scale_ptr": F32} | SUMS
    for parts in (1, 16):
        constants = HEADS | {"GROUP_BLOCK": 16, "PARTS": parts}
        build(kernels._attend_kernel, attend, constants, kernels.ATTEND_WARPS, kernels.ATTEND_STAGES)
        build(kernels._combine_kernel, combine, {"HEADS": 24, "HEADS_BLOCK": 32, "HEAD_DIM": 128, "PARTS": parts}, 8)
    gate = {"gate_up_ptr": BF16, "gate_up_scale_ptr": F32, "channel_ptr": F32, "out_ptr": FP8, "scale_ptr": F32, "width": "i32"}
    build(kernels._gate_kernel, gate, {"BLOCK": 8192}, 8)
    build(draw_kernel._draw_kernel, DRAW, {"SLOTS": 7, "CODES": 4096, "BLOCK": 4096}, 8)
    for channels, count in ((512, 32), (256, 256), (128, 1024), (64, 2048)):
        where = {"RATE": 8, "LAG": 31, "COUNT": count, "NEXT": 54, "C": channels, "DILATION": 3}
        for shared in (0, 227 * 1024):
            tile, part, warps, stages = residual_kernel.sizes(channels, count, shared)
            build(residual_kernel._unit_kernel, UNIT, where | {"TILE": tile, "PART": part}, warps, stages)


if __name__ == "__main__":
    main()
