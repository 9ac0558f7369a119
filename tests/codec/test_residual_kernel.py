"""The fused residual unit, in Triton's interpreter, inside the decoder: it says what the plain one says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
import interpreted  # noqa: F401  first: it makes kernels run here

# isort: split
import torch

from conftest import Reference
from orpheus_serving.codec.decoder import OPEN_END, StreamingDecoder
from orpheus_serving.codec.noise_codec import TINY


@torch.inference_mode()
def test_the_kernel_decodes_as_the_plain_operations_do() -> None:
    """Three streams that began at different times, one of which ends; and a block whose channels are too few for the kernel."""
    weights = Reference(TINY | {"decoder_dim": 128}).weights
    exact = StreamingDecoder(weights, 3, dtype=torch.float32, kernels=False)
    plain, fused = (StreamingDecoder(weights, 3, dtype=torch.float16, kernels=kernels) for kernels in (False, True))
    assert sum(unit is not None for unit in fused._fused) == 9  # channels 64, 32 and 16; not 8
    generator = torch.Generator().manual_seed(0)
    worst = {"plain": 0.0, "fused": 0.0}
    for step in range(4):
        rows = torch.zeros(3, exact.row_width, dtype=torch.int64)
        rows[:, 0], rows[:, 2], rows[:, 3] = torch.tensor([2, 0, 1]), OPEN_END, torch.tensor([7, 8, 9])
        rows[:, 1] = (step - torch.tensor([0, 1, 2])).clamp(min=0) * weights.latents_per_frame
        rows[:, 4:] = torch.randint(0, weights.codes, (3, weights.slots), generator=generator)
        samples = exact.step(rows)
        for name, decoder in (("plain", plain), ("fused", fused)):
            worst[name] = max(worst[name], float((decoder.step(rows) - samples).abs().max()))
    rows[:, 1] += weights.latents_per_frame
    samples = exact.tail(rows)
    for name, decoder in (("plain", plain), ("fused", fused)):
        worst[name] = max(worst[name], float((decoder.tail(rows) - samples).abs().max()))
    assert exact.state.abs().max() > 1
    assert 0 < worst["fused"] < 1.5 * worst["plain"] < 0.03
    torch.testing.assert_close(fused.state, plain.state, atol=0.03, rtol=0.01)
