"""Codes in, samples out: SNAC as an exact, batched stream. Start with `decoder.py`, then `batcher.py`."""

from __future__ import annotations

from pathlib import Path

import torch

from .batcher import Codec, CodecStream
from .decoder import StreamingDecoder
from .precision import gpu_dtype
from .weights import DecoderWeights, fold, load_snac

__all__ = ["Codec", "CodecStream", "DecoderWeights", "StreamingDecoder", "fold", "load_codec", "load_snac"]


def load_codec(
    source: str | Path,
    *,
    revision: str | None = None,
    device: str = "cpu",
    max_streams: int = 16,
    compile: bool = False,
) -> Codec:
    """A codec from a local SNAC folder or a hub repository, ready for `start`. Raises CodecError."""
    weights = fold(load_snac(source, revision))
    dtype = gpu_dtype(weights, device) if device == "cuda" else torch.float32
    return Codec(StreamingDecoder(weights, max_streams, device, dtype), compile=compile)
