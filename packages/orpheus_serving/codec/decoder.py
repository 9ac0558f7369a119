"""The exact streaming SNAC decoder: one frame of codes in, one frame of samples out, for any set of streams at a time.

    rows [B, 4 + codes] (slot, position, end, seed, codes)
        -> latents -> for each operation: left context from the state, new positions, mask -> samples [B, frame_samples]

Each convolution keeps the positions to its left that it will need again, per stream, in one row of one packed state
tensor `[slots + 1, floats]`. A step gathers the rows of its streams, runs, and scatters them back: that is continuous
batching, since a stream may join or leave between any two steps. The last row belongs to the padding of a batch.

A convolution also looks to its right, so its output lags by half its reach. The lags add up to `delay` samples: after
N frames exactly `N * frame_samples - delay` samples are final. `tail` computes the rest as if the stream ended now; at the end of
a stream that is the exact ending, before it a provisional one (nothing is committed).

Two masks make the result equal to an offline decode: positions before the start and past the end are zero *at every
operation*, as a padded convolution sees them.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from ..compiled import has_numba
from ..products import Product, product
from .noise import noise_at
from .weights import (
    SINE,
    TAPS,
    Attention,
    Convolution,
    DecoderWeights,
    Noise,
    Operation,
    Output,
    Pointwise,
    Residual,
    Snake,
    Upsample,
)

if TYPE_CHECKING:
    from .residual_kernel import FusedResidual

SLOT, POSITION, END, SEED, CODES = 0, 1, 2, 3, 4  # columns of a row
OPEN_END = 1 << 40  # latents; an end that is never reached
LOOP = 192  # numbers that the compiled snake takes in one inner loop, at least: a dozen vector registers


@dataclass(frozen=True, slots=True)
class Stage:
    """What an operation needs to know about its place: all counts in positions of its own output rate."""

    context: int  # input positions kept from the step before
    channels: int  # of the input
    rate: int  # output positions a latent
    lag: int  # output positions still missing when all latents so far are in
    start: int  # of its context in a row of the state, in floats


def plan(operations: Sequence[Operation], latent_channels: int) -> tuple[list[Stage], int]:
    """The stages of the operations and the floats of state a stream needs."""
    stages, rate, lag, channels, floats = [], 1, 0, latent_channels, 0
    for op in operations:
        context, inputs = 0, channels
        match op:
            case Convolution():
                context = (TAPS - 1) * op.dilation
                channels = op.bias.shape[0]
                lag += context // 2
            case Pointwise():
                channels = op.bias.shape[0]
            case Attention():  # a window may begin as long before an output, and end as long after it
                context = 2 * (op.window - 1)
                lag += op.window - 1
            case Upsample():
                context = 1
                channels = op.bias.shape[0] // op.stride
                lag, rate = lag * op.stride + op.padding, rate * op.stride
            case Residual():
                context = (TAPS - 1) * op.convolution.dilation
                lag += context // 2
            case Output():
                context = TAPS - 1
                lag += context // 2
        stages.append(Stage(context, inputs, rate, lag, floats))
        floats += context * inputs
    return stages, floats


class StreamingDecoder:
    """The state of up to `slots` streams and the arithmetic on it.

    Not thread-safe: one thread calls `step` and `tail`. `dtype` is that of weights and state: float16, float32 or float64. Snakes
    and the last sum are in float32 at least, and so are the samples. `kernels`: with kernels of our own where there are any (see
    `residual_kernel.py`, which is imported only then); None: on a GPU.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        slots: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        kernels: bool | None = None,
    ) -> None:
        self.weights = weights.to(device, dtype)
        self.slots = slots
        self.device = torch.device(device)
        self.dtype = dtype
        self._samples = torch.promote_types(dtype, torch.float32)
        self.stages, floats = plan(weights.operations, weights.codebooks[0].table.shape[1])
        self.state = torch.zeros(slots + 1, floats, dtype=dtype, device=device)
        self.delay = self.stages[-1].lag  # samples
        self.tail_frames = -(-self.delay // weights.frame_samples)
        self._maps = [_maps(op) for op in self.weights.operations]
        if kernels is None:
            kernels = self.device.type == "cuda" and importlib.util.find_spec("triton") is not None
        self._fused = _fused(self.weights.operations, dtype) if kernels else [None] * len(self._maps)
        self._slots_of = [torch.tensor(book.slots, device=device) for book in weights.codebooks]

    @property
    def row_width(self) -> int:
        return CODES + self.weights.slots

    def step(self, rows: Tensor) -> Tensor:
        """Take one frame a row: int64 [B, row_width] -> samples [B, frame_samples].

        Row: slot, latents taken so far, total latents (OPEN_END while unknown), noise seed, codes of the frame. Sample `j`
        of the answer is sample `latents * hop - delay + j` of the stream, with `latents` as in the row; negative ones are void.
        A stream whose position is 0 needs no preparation: whatever its slot held is ignored.
        """
        slot = rows[:, SLOT]
        samples, state = self._run(self._latents(rows[:, None, CODES:]), rows, self.state[slot])
        self.state[slot] = state
        return samples

    def tail(self, rows: Tensor) -> Tensor:
        """The `delay` samples that are not final yet, were position the end: int64 [B, row_width] -> [B, delay].

        Codes and end of the rows are ignored; nothing is committed. Sample `j` is sample `latents * hop - delay + j`.
        """
        count = self.tail_frames * self.weights.latents_per_frame
        channels = self.weights.codebooks[0].table.shape[1]
        nothing = torch.zeros(rows.shape[0], count, channels, dtype=self.dtype, device=self.device)
        rows = torch.cat([rows[:, :END], rows[:, POSITION : POSITION + 1], rows[:, SEED:]], 1)
        samples, _ = self._run(nothing, rows, self.state[rows[:, SLOT]])
        return samples[:, : self.delay]

    def _latents(self, codes: Tensor) -> Tensor:
        """codes [B, F, slots] -> latents [B, F * latents_per_frame, C]"""
        total: Tensor | None = None
        for book, slots in zip(self.weights.codebooks, self._slots_of, strict=True):
            part = F.embedding(codes[:, :, slots].flatten(1), book.table).repeat_interleave(book.stride, dim=1)
            total = part if total is None else total + part
        assert total is not None
        return total

    def _run(self, x: Tensor, rows: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """latents [B, T, C] and state [B, floats] -> samples [B, T * hop] and the new state; shapes static given B, T"""
        position, end, seed = rows[:, POSITION].contiguous(), rows[:, END].contiguous(), rows[:, SEED]
        batch = x.shape[0]
        state = torch.where((position > 0)[:, None], state, 0)  # a fresh stream: silence on its left
        kept: list[Tensor] = []
        x = x * self._inside(position, end, 1, 0, x.shape[1])[1]
        curved: Tensor | None = None  # the snake of x, where the last operation made it; x has its left context already then
        for n, (op, stage, maps, fused) in enumerate(
            zip(self.weights.operations, self.stages, self._maps, self._fused, strict=True)
        ):
            new = x.shape[1] - (0 if curved is None else stage.context)
            if stage.context:
                if curved is None:
                    x = torch.cat([_left(state, stage), x], 1)
                kept.append(x[:, new:].reshape(batch, stage.context * stage.channels))
            if fused:
                y = maps[0](x) if curved is None else curved
                left = _left(state, self.stages[n + 1]).contiguous()
                x, curved = fused(x, y, left, position, end, stage.rate, stage.lag)
                continue
            where, inside = self._inside(position, end, stage.rate, stage.lag, new * getattr(op, "stride", 1))
            match op:
                case Convolution():
                    x = maps[0](x) * inside
                case Pointwise():
                    x = maps[0](x) * inside
                case Attention():
                    x = attend(x, op, where, end, *maps) * inside
                case Upsample():
                    curve, mix = maps
                    x = curve(x) if curved is None else curved
                    x = mix(torch.cat([x[:, :-1], x[:, 1:]], 2))
                    x = x.reshape(batch, new * op.stride, -1) * inside
                case Noise():
                    x = x + noise_at(seed, op.layer, where).to(x.dtype)[..., None] * maps[0](x)
                case Residual():
                    half = stage.context // 2
                    before, convolve, after, mix = maps
                    x = (x[:, half:-half] + mix(after(convolve(before(x))))) * inside
                case Output():
                    curve, mix = maps
                    taps = mix(curve(x) if curved is None else curved).to(self._samples)
                    x = op.bias.to(self._samples) + sum(taps[:, k : k + new, k] for k in range(TAPS))
            curved = None
        return torch.tanh(x), torch.cat(kept, 1)

    def _inside(self, position: Tensor, end: Tensor, rate: int, lag: int, count: int) -> tuple[Tensor, Tensor]:
        """Absolute positions [B, count] of a stage's new outputs, and 1 or 0 [B, count, 1]: is it in the stream."""
        where = position[:, None] * rate - lag + torch.arange(count, device=self.device)
        inside = (where >= 0) & (where < end[:, None] * rate)
        return where, inside[..., None].to(self.dtype)


def _left(state: Tensor, stage: Stage) -> Tensor:
    """What a stage keeps of the step before, [B, context, channels]"""
    size = stage.context * stage.channels
    return state[:, stage.start : stage.start + size].view(-1, stage.context, stage.channels)


def _fused(operations: Sequence[Operation], dtype: torch.dtype) -> list[FusedResidual | None]:
    """For each operation the kernel that does it and the next one's snake, if there is one."""
    from .residual_kernel import FusedResidual, fits

    fused: list[FusedResidual | None] = []
    for op, after in zip(operations, [*operations[1:], None], strict=True):
        following = after.before if isinstance(after, Residual) else getattr(after, "snake", None)
        if isinstance(op, Residual) and isinstance(following, Snake) and fits(op, dtype):
            fused.append(FusedResidual.of(op, following))
        else:
            fused.append(None)
    return fused


def snake(s: Snake) -> Product:
    """x [B, T, C] -> the same shape"""

    turns = s.alpha / math.pi

    def plain(x: Tensor) -> Tensor:
        wide = x.to(s.alpha.dtype)
        if torch.compiler.is_compiling():
            return (wide + sine_square(wide * turns) * s.inverse).to(x.dtype)
        return torch.addcmul(wide, (s.alpha * wide).sin_().square_(), s.inverse).to(x.dtype)

    if s.alpha.device.type != "cpu" or s.alpha.dtype != torch.float32 or not has_numba():
        return plain
    from .cpu_snake import snake as compiled

    times = -(-LOOP // len(s.alpha))
    all_turns, inverse = turns.repeat(times).numpy(), s.inverse.repeat(times).numpy()

    def curve(x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return plain(x)
        wide = x.to(s.alpha.dtype).reshape(-1)
        return torch.from_numpy(compiled(wide.numpy(), all_turns, inverse)).view(x.shape).to(x.dtype)

    return curve


def sine_square(turns: Tensor) -> Tensor:
    """sin(pi turns)^2, as `cpu_snake.py` has it: it repeats with every whole turn, so a rounding and a polynomial are enough.

    A GPU's sine, which has to be right for any angle, takes several times as long.
    """
    rest = turns - torch.round(turns)
    square = rest * rest
    sum_: Tensor | float = 0.0
    for c in reversed(SINE):
        sum_ = c + square * sum_
    return (rest * sum_).square()


def attend(x: Tensor, op: Attention, where: Tensor, end: Tensor, qkv: Product, out: Product) -> Tensor:
    """x [B, N, C], of which the T positions `where` [B, T] get their window's attention -> [B, T, C]

    N = T + 2 (window - 1): as many positions before and after. Keys outside of the stream are not seen.
    """
    reach, count = op.window - 1, where.shape[1]
    keys = where[:, :1] - reach + torch.arange(x.shape[1], device=x.device)
    heads = qkv(F.layer_norm(x, op.norm.shape, op.norm, op.norm_bias)).unflatten(2, (3, op.heads, -1))
    cos, sin = (table[keys % op.window][:, :, None, None] for table in (op.cos, op.sin))
    first, second = heads[:, :, :2].chunk(2, -1)
    turned = heads[:, :, :2] * cos + torch.cat([-second, first], -1) * sin
    q, k, v = (part.transpose(1, 2) for part in (turned[:, reach : reach + count, 0], turned[:, :, 1], heads[:, :, 2]))
    seen = (where[:, :, None] // op.window == keys[:, None] // op.window) & ((keys >= 0) & (keys < end[:, None]))[:, None]
    seen = seen | (where[:, :, None] == keys[:, None])  # an output outside of the stream sees itself, rather than nothing
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen[:, None])
    return x[:, reach : reach + count] + out(attended.transpose(1, 2).flatten(2))


def _maps(op: Operation) -> tuple[Product, ...]:
    """The snakes and linear maps of an operation in its order, [B, T, Cin] -> [B, T', Cout] each."""
    match op:
        case Convolution():
            return (_convolution(op),)
        case Pointwise():
            return (matrix(op.weight, op.bias),)
        case Attention():
            return matrix(op.qkv), matrix(op.out)
        case Upsample():
            return snake(op.snake), matrix(op.weight.t().contiguous(), op.bias)
        case Noise():
            return (matrix(op.weight),)
        case Residual():
            return snake(op.before), _convolution(op.convolution), snake(op.after), matrix(op.mix.weight, op.mix.bias)
        case Output():
            return snake(op.snake), matrix(op.taps)


def matrix(weight: Tensor, bias: Tensor | None = None) -> Product:
    """A product that torch.compile can see through: its own compiler wants the plain one."""
    packed = product(weight, bias)
    return lambda x: F.linear(x, weight, bias) if torch.compiler.is_compiling() else packed(x)


def _convolution(op: Convolution) -> Product:
    """[B, T + 6 dilation, Cin] -> [B, T, Cout]"""

    def shifted(x: Tensor) -> list[Tensor]:
        count = x.shape[1] - (TAPS - 1) * op.dilation
        if torch.compiler.is_compiling():
            # torch.compile would compute x, values of a snake, anew for each tap; a strided view is one of what is in memory.
            x, (batch, _, channels) = x.contiguous(), x.shape
            step = op.dilation * channels
            return [torch.as_strided(x, (batch, count, channels), x.stride(), k * step) for k in range(TAPS)]
        return [x[:, k * op.dilation : k * op.dilation + count] for k in range(TAPS)]

    def depthwise(x: Tensor) -> Tensor:
        first, *others = shifted(x)
        y = torch.addcmul(op.bias, first, op.taps[0])
        for part, taps in zip(others, op.taps[1:], strict=True):
            y = y.addcmul_(part, taps)
        return y

    if op.taps.dim() == 2:
        return depthwise
    mix = matrix(op.taps.flatten(0, 1).t().contiguous(), op.bias)
    return lambda x: mix(torch.cat(shifted(x), 2))
