"""From settings to a synthesizer: which checkpoint, which engine, which codec.

checkpoint   the one that is named, else data/demo_voice, else random weights (noise)
engine       the injected one where there is one, else the one of the settings on the checkpoint's weights
codec        the one that is named, else the checkpoint's
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint
from .codec import load_codec
from .engines.base import Engine
from .settings import Settings, SettingsError
from .synthesizer import Synthesizer

log = logging.getLogger(__name__)

GPU_STREAMS = 512  # streams of an engine made for GPUs, where the settings name none
DATA = Path(__file__).parents[2] / "data"  # of a checkout; an installed copy of the package alone has none


def build(
    settings: Settings, data: Path = DATA, trt_llm: Mapping[str, Any] | None = None, trt_llm_length: int | None = None
) -> Synthesizer:
    """A synthesizer that wants to be started. `trt_llm` is what Baseten's server injects, {"engine": ...}.

    trt_llm_length: the ids of a request, prompt and speech, that the injected engine was built for; None where nobody said.

    Raises CheckpointError, CodecError or SettingsError with what to change.
    """
    import torch

    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        torch.set_num_threads(settings.threads or 1)
    checkpoint = Checkpoint(settings.checkpoint or default_checkpoint(data), settings.checkpoint_revision)
    engine: Engine
    if trt_llm is not None:
        from .engines.briton import BritonEngine

        engine = BritonEngine(trt_llm["engine"], checkpoint.layout, checkpoint.prompt_text, max_length=trt_llm_length)
        slots = settings.codec_streams or (GPU_STREAMS if device == "cuda" else 16)
    else:
        kind = settings.engine if settings.engine != "auto" else _engine_of(device)
        if kind != "embedded" and "max_streams" not in settings.model_fields_set:
            settings = settings.model_copy(update={"max_streams": GPU_STREAMS})
        engine = _load_engine(kind, checkpoint, settings, device)
        slots = settings.codec_streams or 2 * settings.max_streams
    codec = load_codec(
        settings.codec or checkpoint.codec,
        revision=settings.codec_revision,
        device=device,
        max_streams=slots,
        compile=device == "cuda" if settings.compile_codec is None else settings.compile_codec,
    )
    return Synthesizer(checkpoint, engine, codec, settings)


def build_truss(
    config: Mapping[str, Any], data: Path, secrets: Any = None, trt_llm: Mapping[str, Any] | None = None
) -> Synthesizer:
    """The same from what Baseten's server hands to a Truss's class: settings are `model_metadata.orpheus` of config.yaml.

    With an injected engine and no checkpoint in the settings, tokenizer and layout are those of what the engine was built from.
    Raises SettingsError for an engine that cannot run in a Truss.
    """
    with contextlib.suppress(Exception):  # the server raises for a secret that is not set; public checkpoints need none
        os.environ.setdefault("HF_TOKEN", secrets["hf_access_token"])  # what huggingface-hub reads
    settings = Settings.load((config.get("model_metadata") or {}).get("orpheus"))
    if trt_llm is None:
        if settings.engine == "vllm":  # the task that reads its process' answers lives and dies with the loop of `load`
            raise SettingsError(
                "settings: engine: vllm does not run in a Truss, which loads on another event loop than it serves on; "
                "use auto, or a server of your own (orpheus-serving serve)"
            )
        return build(settings, data)
    built = (config.get("trt_llm") or {}).get("build") or {}
    if settings.checkpoint is None:
        source = built["checkpoint_repository"]
        settings = settings.model_copy(update={"checkpoint": source["repo"], "checkpoint_revision": source.get("revision")})
    return build(settings, data, trt_llm, built.get("max_seq_len"))


def _engine_of(device: str) -> str:
    import torch

    has_fp8 = device == "cuda" and torch.cuda.get_device_capability() >= (8, 9)
    return "cuda" if has_fp8 and importlib.util.find_spec("triton") else "embedded"


def _load_engine(kind: str, checkpoint: Checkpoint, settings: Settings, device: str) -> Engine:
    if kind == "cuda":
        from .engines.cuda import CudaEngine

        return CudaEngine(
            checkpoint.source,
            checkpoint.layout,
            max_streams=settings.max_streams,
            max_length=settings.max_length,
            revision=settings.checkpoint_revision,
        )
    if kind == "vllm":
        from .engines.vllm import VllmEngine

        return VllmEngine(
            checkpoint.source,
            checkpoint.layout,
            max_streams=settings.max_streams,
            max_length=settings.max_length,
            constrained=settings.constrained,
            revision=settings.checkpoint_revision,
        )
    if kind == "tensorrt_llm":
        from .engines.tensorrt_llm import TensorRtLlmEngine

        return TensorRtLlmEngine(
            checkpoint.source,
            checkpoint.layout,
            max_streams=settings.max_streams,
            max_length=settings.max_length,
            revision=settings.checkpoint_revision,
        )
    from .engines.transformers import TransformersEngine

    return TransformersEngine(
        checkpoint.source,
        checkpoint.layout,
        device=device,
        dtype=settings.dtype,
        max_streams=settings.max_streams,
        max_length=settings.max_length,
        constrained=settings.constrained,
        revision=settings.checkpoint_revision,
    )


def default_checkpoint(data: Path) -> Path:
    """The demo voice where it is there; otherwise a checkpoint of noise, built in a second, with a warning."""
    demo = data / "demo_voice"
    if (demo / "config.json").is_file():
        return demo
    log.warning("no checkpoint is named and %s is not there: speaking NOISE from random weights", demo)
    return noise_checkpoint()


def noise_checkpoint() -> Path:
    """A checkpoint and codec of random weights, built once per user and version of its recipe."""
    from .codec.noise_codec import build_noise_codec
    from .noise_checkpoint import build_noise_lm

    folder = Path(tempfile.gettempdir()) / f"orpheus-serving-noise-1-{os.getuid() if hasattr(os, 'getuid') else ''}"
    if not (folder / "complete").exists():
        build_noise_lm(folder)
        build_noise_codec(folder / "codec")
        (folder / "complete").touch()
    return folder
