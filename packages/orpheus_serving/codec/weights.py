"""A SNAC decoder as a flat list of plain operations.

    folder or hub repository -> snac.SNAC -> weight norm folded -> Codebooks + [Operation] (NLC, ready for GEMMs)

The `snac` package stays the definition of the network; this module only reads a loaded model. Each operation is a small
frozen dataclass with its folded weights, so that the streaming decoder is one loop over them.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CodecError

# sin(pi r) = r (c0 + c1 r^2 + ...), the series of the sine, for snakes; the next term is below 6e-8 for |r| <= 1/2.
SINE = [(-1) ** n * math.pi ** (2 * n + 1) / math.factorial(2 * n + 1) for n in range(6)]
TAPS = 7  # kernel of every SNAC convolution that is neither pointwise nor upsampling


@dataclass(frozen=True, slots=True)
class Convolution:
    """A 7-tap convolution, optionally behind a snake: taps [7, C] (depthwise) or [7, Cin, Cout]; `dilation` in positions."""

    taps: Tensor
    bias: Tensor
    dilation: int = 1


@dataclass(frozen=True, slots=True)
class Pointwise:
    weight: Tensor  # [Cout, Cin]
    bias: Tensor  # [Cout]


@dataclass(frozen=True, slots=True)
class Attention:
    """x + attention(layer norm(x)) among the positions of one window, in heads; turned by the position in the window."""

    norm: Tensor  # [C]
    norm_bias: Tensor  # [C]
    qkv: Tensor  # [3 C, C]
    out: Tensor  # [C, C]
    cos: Tensor  # [window, head size]
    sin: Tensor  # [window, head size]
    heads: int

    @property
    def window(self) -> int:
        return len(self.cos)


@dataclass(frozen=True, slots=True)
class Snake:
    """x + sin(alpha x)^2 / (alpha + 1e-9); `inverse` holds the reciprocal, computed in float32 once."""

    alpha: Tensor  # [C]
    inverse: Tensor  # [C]


@dataclass(frozen=True, slots=True)
class Upsample:
    """Snake, then a transposed convolution of kernel 2s and stride s as one GEMM over (previous, current) positions."""

    snake: Snake
    weight: Tensor  # [2 Cin, s Cout]; rows: previous, current; columns: (phase, Cout)
    bias: Tensor  # [s Cout]
    stride: int
    padding: int


@dataclass(frozen=True, slots=True)
class Noise:
    weight: Tensor  # [C, C]
    layer: int  # number of the decoder block: part of the noise's key


@dataclass(frozen=True, slots=True)
class Residual:
    """x + pointwise(snake(convolution(snake(x))))."""

    before: Snake
    convolution: Convolution
    after: Snake
    mix: Pointwise


@dataclass(frozen=True, slots=True)
class Output:
    """Snake, a 7-tap convolution to one channel, tanh."""

    snake: Snake
    taps: Tensor  # [7, C]
    bias: Tensor  # [1]


Operation = Convolution | Pointwise | Attention | Upsample | Noise | Residual | Output


@dataclass(frozen=True, slots=True)
class Codebook:
    table: Tensor  # [codes, latent dim]: codebook and output projection folded into one look-up
    stride: int  # latents that one code covers
    slots: tuple[int, ...]  # slots of a frame that this codebook fills, in time order


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    sample_rate: int  # Hz
    latents_per_frame: int
    hop: int  # samples a latent
    codes: int  # codes of each codebook
    codebooks: tuple[Codebook, ...]
    operations: tuple[Operation, ...]

    @property
    def slots(self) -> int:
        """Codes a frame."""
        return sum(len(book.slots) for book in self.codebooks)

    @property
    def frame_samples(self) -> int:
        return self.latents_per_frame * self.hop

    def to(self, device: torch.device | str, dtype: torch.dtype) -> DecoderWeights:
        return _moved(self, device, dtype)


def frame_slots(strides: list[int]) -> list[tuple[int, ...]]:
    """Which slots of a frame each codebook fills.

    A frame is written coarse to fine, depth first: a code, then under it its finer codes in time order. For strides
    [4, 2, 1] that is Orpheus' order: (0,), (1, 4), (2, 3, 5, 6). Raises CodecError where a stride does not divide the one
    before.
    """
    for coarse, fine in pairwise(strides):
        if coarse % fine:
            raise CodecError(f"codec config: vq_strides {strides} do not nest: {coarse} is no multiple of {fine}")
    slots: list[list[int]] = [[] for _ in strides]
    count = 0

    def visit(level: int) -> None:
        nonlocal count
        slots[level].append(count)
        count += 1
        if level + 1 < len(strides):
            for _ in range(strides[level] // strides[level + 1]):
                visit(level + 1)

    visit(0)
    if strides[-1] != 1:
        raise CodecError(f"codec config: the finest of vq_strides {strides} must be 1")
    return [tuple(s) for s in slots]


def load_snac(source: str | Path, revision: str | None = None) -> Any:
    """A `snac.SNAC` from a local folder or a hub repository: `config.json` with `model.safetensors` or `pytorch_model.bin`.

    Raises CodecError where something is missing or does not fit.
    """
    from snac import SNAC

    folder = Path(source)
    if not folder.is_dir():
        folder = _fetch(str(source), revision)
    config = folder / "config.json"
    if not config.is_file():
        raise CodecError(f"codec {source}: no config.json there; expected a SNAC folder")
    try:
        model = SNAC(**json.loads(config.read_text("utf-8")))
    except Exception as error:  # of the values there, as deep in the package as they get
        raise CodecError(f"{config}: not the configuration of a SNAC that this version understands: {_said(error)}") from error
    state = _state(folder)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise CodecError(f"codec {source}: its weights are not of the SNAC that config.json describes: {error}") from error
    return model.eval()


def _state(folder: Path) -> dict[str, Tensor]:
    """The tensors of a SNAC folder in float32, by name."""
    path = folder / "model.safetensors"
    if not path.is_file():
        path = folder / "pytorch_model.bin"
    if not path.is_file():
        raise CodecError(f"codec {folder}: neither model.safetensors nor pytorch_model.bin there; expected a SNAC folder")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        return {name: tensor.float() for name, tensor in state.items()}
    except Exception as error:  # safetensors, zip files and pickles have each their own
        raise CodecError(
            f"{path}: cannot be read: {_said(error)}. If it is damaged, or only a pointer of Git LFS, fetch it again"
        ) from error


def _said(error: Exception) -> str:
    """What went wrong, in a line: PyTorch goes on for a page."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _fetch(repository: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        patterns = ["config.json", "model.safetensors", "pytorch_model.bin"]
        return Path(snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except Exception as error:
        raise CodecError(
            f"codec {repository}: no such folder, and the hub did not give it ({error}). Name a local SNAC folder."
        ) from error


@torch.no_grad()
def fold(model: Any, dtype: torch.dtype = torch.float32) -> DecoderWeights:
    """The decoding half of a `snac.SNAC`, weight norm folded, in `dtype`. Raises CodecError for another structure."""
    strides = [int(s) for s in model.vq_strides]
    codebooks = []
    for quantizer, slots in zip(model.quantizer.quantizers, frame_slots(strides), strict=True):
        weight, bias = _weights(quantizer.out_proj)
        table = quantizer.codebook.weight.to(weight) @ weight[:, :, 0].T + bias
        codebooks.append(Codebook(table, quantizer.stride, slots))

    operations: list[Operation] = []
    layers = list(model.decoder.model)
    blocks = [m for m in layers if type(m).__name__ == "DecoderBlock"]
    for module in layers[: layers.index(blocks[0])]:
        if type(module).__name__ == "LocalMHA":
            operations.append(_attention(module))
        else:
            operations.append(_pointwise(module) if module.kernel_size == (1,) else _convolution(module))
    for number, block in enumerate(blocks):
        operations.extend(_block(block, number))
    snake, convolution = layers[layers.index(blocks[-1]) + 1 :][:2]
    weight, bias = _weights(convolution)
    operations.append(Output(_snake(snake), weight[0].T.contiguous(), bias))

    weights = DecoderWeights(
        sample_rate=int(model.sampling_rate),
        latents_per_frame=strides[0],
        hop=math.prod(model.decoder_rates),
        codes=int(model.codebook_size),
        codebooks=tuple(codebooks),
        operations=tuple(operations),
    )
    return weights.to("cpu", dtype)


def _block(block: Any, number: int) -> list[Operation]:
    operations: list[Operation] = []
    snake, transposed, *rest = block.block
    weight, bias = _weights(transposed)  # [Cin, Cout, 2s]
    stride = transposed.stride[0]
    current, previous = weight[:, :, :stride], weight[:, :, stride:]
    gemm = torch.cat([previous, current]).permute(0, 2, 1).reshape(2 * weight.shape[0], -1).contiguous()
    operations.append(Upsample(_snake(snake), gemm, bias.repeat(stride), stride, transposed.padding[0]))
    for module in rest:
        if type(module).__name__ == "NoiseBlock":
            operations.append(Noise(_weights(module.linear)[0][:, :, 0].contiguous(), number))
        else:
            before, convolution, after, mix = module.block
            operations.append(Residual(_snake(before), _convolution(convolution), _snake(after), _pointwise(mix)))
    return operations


def _weights(module: Any) -> tuple[Tensor, Tensor]:
    weight = module.weight.detach().clone()
    if module.bias is None:
        return weight, weight.new_zeros(weight.shape[0])
    return weight, module.bias.detach().clone()


def _convolution(module: Any) -> Convolution:
    weight, bias = _weights(module)  # [Cout, Cin / groups, 7]
    if weight.shape[-1] != TAPS:
        raise CodecError(f"codec: a convolution with {weight.shape[-1]} taps; SNAC decoders have {TAPS}")
    taps = weight[:, 0].T if module.groups > 1 else weight.permute(2, 1, 0)
    return Convolution(taps.contiguous(), bias, module.dilation[0])


def _pointwise(module: Any) -> Pointwise:
    weight, bias = _weights(module)
    return Pointwise(weight[:, :, 0].contiguous(), bias)


def _attention(module: Any) -> Attention:
    size = module.to_qkv.weight.shape[1] // module.heads
    angles, _ = module.rel_pos(torch.zeros(module.window_size, size))
    return Attention(
        module.norm.weight.detach().clone(),
        module.norm.bias.detach().clone(),
        module.to_qkv.weight.detach().clone(),
        module.to_out.weight.detach().clone(),
        angles.cos(),
        angles.sin(),
        module.heads,
    )


def _snake(module: Any) -> Snake:
    alpha = module.alpha.detach().reshape(-1).clone()
    return Snake(alpha, 1 / (alpha + 1e-9))


def _moved(value: Any, device: torch.device | str, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(device=device, dtype=dtype)
    if isinstance(value, tuple):
        return tuple(_moved(v, device, dtype) for v in value)
    if isinstance(value, Snake):  # 1 / alpha may be beyond float16
        dtype = torch.promote_types(dtype, torch.float32)
    if hasattr(value, "__dataclass_fields__"):
        return type(value)(**{name: _moved(getattr(value, name), device, dtype) for name in value.__dataclass_fields__})
    return value
