"""The kernels of a step, in Triton's interpreter, against the plainest PyTorch that says the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import interpreted  # noqa: F401  first: it makes kernels run here
import pytest
import torch
from torch import Tensor

from orpheus_serving.codec import residual_kernel
from orpheus_serving.engines import cuda_kernels, draw_kernel
from orpheus_serving.engines.cuda_kernels import FP8, PAGE, Raw, Rows, attend, gate, last_norm, norm, rotate

KV_HEADS, GROUP, HEAD_DIM, LENGTH = 2, 3, 32, 4 * PAGE
HEADS = KV_HEADS * GROUP
STEP = 2.0**-3 / 2  # largest relative error of rounding to e4m3's three bits


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product(*shape: int, seed: int) -> tuple[Raw, Tensor]:
    """A product with scales of all sizes, and the numbers that it stands for."""
    raw = Raw(
        random(*shape, seed=seed).bfloat16() * 1e5,
        random(shape[0], seed=seed + 100).exp(),
        random(shape[1], seed=200).exp() / 1e5,
    )
    return raw, raw.codes.float() * raw.rows[:, None] * raw.channels


def close_to_fp8(rows: Rows, wanted: Tensor, before: float = 0.0) -> None:
    """FP8 rows stand for `wanted`, within a rounding and an error `before` it, of a row's largest number, which stands at 448."""
    codes, scales = rows
    assert codes.dtype == FP8
    torch.testing.assert_close(scales, wanted.abs().amax(1) / 448, rtol=1e-2, atol=1e-9)
    error = (codes.float() * scales[:, None] - wanted).abs()
    assert bool((error <= STEP * wanted.abs() * 1.05 + scales[:, None] * (2**-9 + before * 448)).all())


class TestNorm:
    def plain(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x.float(), weight.shape, weight.float(), 1e-5)

    @pytest.mark.parametrize("width", [64, 96])
    def test_normalises_the_sum_and_keeps_it(self, width: int) -> None:
        x, (raw, delta) = random(5, width).bfloat16(), product(5, width, seed=1)
        weight = random(width, seed=2).bfloat16()
        total = x.float() + delta
        rows = norm(x, raw, weight, 1e-5)
        close_to_fp8(rows, self.plain(total, weight))
        torch.testing.assert_close(x.float(), total, rtol=2**-8, atol=1e-6)

    def test_without_a_product_the_residual_stays(self) -> None:
        x, weight = random(3, 64).bfloat16(), random(64, seed=2).bfloat16()
        before = x.clone()
        close_to_fp8(norm(x, None, weight, 1e-5), self.plain(before, weight))
        assert torch.equal(x, before)

    def test_the_last_one_is_not_rounded_to_fp8(self) -> None:
        x, (raw, delta) = random(3, 64).bfloat16(), product(3, 64, seed=3)
        weight = random(64, seed=2).bfloat16()
        wanted = self.plain(x.float() + delta, weight)
        torch.testing.assert_close(last_norm(x, raw, weight, 1e-5).float(), wanted, rtol=1e-2, atol=1e-2)

    def test_a_row_of_zeros_is_zeros(self) -> None:
        out, scales = norm(torch.zeros(2, 64).bfloat16(), None, torch.ones(64).bfloat16(), 1e-5)
        assert bool((out.float() == 0).all())
        assert bool((scales > 0).all())


def test_gate() -> None:
    raw, x = product(4, 2 * 96, seed=5)
    close_to_fp8(gate(raw), torch.nn.functional.silu(x[:, :96]) * x[:, 96:])


class Streams:
    """Two places with contexts of two lengths, in pages that are not in order; the other pages hold what nobody may read."""

    def __init__(self) -> None:
        self.lengths = (PAGE + 17, 3 * PAGE)
        self.tables = torch.zeros(4, LENGTH // PAGE, dtype=torch.int32)
        self.tables[0, :2] = torch.tensor([5, 2])
        self.tables[2, :3] = torch.tensor([7, 1, 4])
        self.cache = (random(9, 2, KV_HEADS, PAGE * HEAD_DIM) * 100).to(FP8)  # what others left
        angles = torch.outer(torch.arange(LENGTH), 10000.0 ** -(torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
        self.cos, self.sin = angles.cos().contiguous(), angles.sin().contiguous()
        self.qkv, self.heads = {}, {}
        for place, length in zip((0, 2), self.lengths, strict=True):
            self.qkv[place], heads = product(length, (HEADS + 2 * KV_HEADS) * HEAD_DIM, seed=place)
            self.heads[place] = heads.reshape(length, -1, HEAD_DIM)

    def write(self, rows: list[tuple[int, int]]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotate and store rows of (place, position): queries, places, positions."""
        places, positions = (torch.tensor(x, dtype=torch.int32) for x in zip(*rows, strict=True))
        codes = torch.stack([self.qkv[place].codes[position] for place, position in rows])
        scales = torch.stack([self.qkv[place].rows[position] for place, position in rows])
        channels = self.qkv[rows[0][0]].channels
        qkv = Raw(codes, scales, channels)
        return rotate(qkv, self.cache, self.cos, self.sin, places, positions, self.tables), places, positions

    def turned(self, place: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [T, heads, d] and keys, and values, in fp32."""
        q, k, v = self.heads[place].split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        cos, sin = self.cos[: len(q), None], self.sin[: len(q), None]

        def turn(x: Tensor) -> Tensor:
            low, high = x.chunk(2, dim=-1)
            return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

        return turn(q), turn(k), v

    def attended(self, place: int, position: int) -> Tensor:
        """[heads * d] of one row, with keys and values as FP8 keeps them."""
        q, k, v = self.turned(place)
        k, v = k[: position + 1].to(FP8).float(), v[: position + 1].to(FP8).float()
        k, v = (x.repeat_interleave(GROUP, dim=1) for x in (k, v))
        scores = torch.einsum("hd,thd->ht", q[position], k) * HEAD_DIM**-0.5
        return torch.einsum("ht,thd->hd", scores.softmax(-1), v).flatten()


def test_rotated_queries_come_back_and_keys_and_values_are_in_their_pages() -> None:
    streams = Streams()
    rows = [(2, 0), (0, PAGE + 16), (2, 2 * PAGE + 3), (0, 5)]
    q, _, _ = streams.write(rows)
    factor = HEAD_DIM**-0.5 / torch.log(torch.tensor(2.0))
    for row, (place, position) in enumerate(rows):
        wanted_q, wanted_k, wanted_v = (x[position] for x in streams.turned(place))
        torch.testing.assert_close(q[row].float(), wanted_q * factor, rtol=2e-3, atol=2e-3)
        page, offset = int(streams.tables[place, position // PAGE]), position % PAGE
        keys = streams.cache[page, 0].float().reshape(KV_HEADS, PAGE, HEAD_DIM)[:, offset]
        values = streams.cache[page, 1].float().reshape(KV_HEADS, HEAD_DIM, PAGE)[:, :, offset]
        for kept, wanted in ((keys, wanted_k), (values, wanted_v)):
            assert bool(((kept - wanted).abs() <= STEP * wanted.abs() * 1.01 + 2**-9).all())


@pytest.mark.parametrize("parts", [1, 3, 5])
def test_attention_reads_the_own_context_only_and_all_of_it(parts: int) -> None:
    """Whatever else is in the cache; in one part, or in more parts than there are pages."""
    streams = Streams()
    for place, length in zip((0, 2), streams.lengths, strict=True):
        streams.write([(place, position) for position in range(length)])
    rows = [(0, streams.lengths[0] - 1), (2, 0), (2, PAGE - 1), (2, PAGE), (2, streams.lengths[1] - 1)]
    q, places, positions = streams.write(rows)
    out = attend(q, streams.cache, places, positions, streams.tables, parts=parts)
    close_to_fp8(out, torch.stack([streams.attended(*row) for row in rows]), before=0.01)


def test_the_compiler_for_hopper_takes_every_kernel(tmp_path: Path) -> None:
    """In a process of its own, since here kernels are made for the interpreter."""
    script = Path(__file__).with_name("compile_kernels.py")
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    built = set(done.stdout.split())
    modules = (cuda_kernels, draw_kernel, residual_kernel)
    assert built == {name for module in modules for name in vars(module) if name.endswith("_kernel")}
