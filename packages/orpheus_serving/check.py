"""Reads a Truss and its checkpoint's config.json before anything is built, and says what will not work, and why.

    config.yaml --truss library--> is it a Truss?
                --own rules------> is it one that streams speech well?
    config.json (folder or hub) --against both--> vocabulary, RoPE, heads, KV bytes, how many streams fit on the GPU

An engine build takes most of an hour and takes the vocabulary and RoPE scaling from the checkpoint without a word; the
platform checks neither. Every finding carries its reason, and those about memory their arithmetic.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import struct
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import yaml

from orpheus_serving.errors import CheckpointError
from orpheus_serving.tokens import TokenLayout
from orpheus_serving.truss_local import offline_environment

Level = Literal["ok", "warn", "error"]

LEGACY_TAG = "force-legacy-api-non-openai-compatible"
OPENAI_TAG = "openai-compatible"
TRT_LLM_CONCURRENCY = 512  # what Truss sets predict_concurrency to beside an engine
MAX_STARTUP_SECONDS = 3000  # the platform's limit; its default is 1800

IDS_PER_SECOND = 7 * 24_000 / 2_048  # seven ids are a frame of 2,048 samples
PROMPT_IDS = 512  # room for one chunk of text: some 280 characters and the special ids, with a wide margin
CHUNK_SECONDS = 20  # a chunk of 280 characters lasts about 17 s
KV_BLOCK = 64  # ids of one page of the paged KV cache: a stream's cache grows in these steps

GIB = 2**30
CONTEXTS = 1 * GIB  # CUDA contexts and libraries of two processes: the engine's and the codec's
CODEC = 2 * GIB  # codec weights (0.05), its graphs and the workspace of a batch of 64, generously

# GiB that a driver reports, rounded down. An H100_40GB is half an H100.
GPU_GIB = {
    "T4": 14, "V100": 15, "L4": 22, "A10G": 22, "A100_40GB": 39, "H100_40GB": 39, "L40S": 44, "A100": 79, "H100": 79,
    "RTX_PRO_6000": 94, "H200": 139, "B200": 178, "B300": 267, "GB300": 267,
}  # fmt: skip
BLACKWELL = ("B200", "B300", "GB300", "RTX_PRO_6000")
FP8_GPUS = ("L4", "L40S", "H100", "H100_40GB", "H200", *BLACKWELL)


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    topic: str
    message: str  # what, why, and what to do about it


def _ok(topic: str, message: str) -> Finding:
    return Finding("ok", topic, message)


def _warn(topic: str, message: str) -> Finding:
    return Finding("warn", topic, message)


def _error(topic: str, message: str) -> Finding:
    return Finding("error", topic, message)


def run(
    folder: str | Path, checkpoint: str | Path | None = None, gpu: str | None = None, seconds: float = CHUNK_SECONDS
) -> list[Finding]:
    """Everything that can be said about the Truss in `folder` without building it.

    checkpoint: a folder, or a repository name on the hub (of which only config.json is fetched); by default the
    repository that config.yaml names. gpu: judge for this accelerator instead of the configured one. seconds: length of
    the streams in the count of those that fit.
    """
    path = Path(folder) / "config.yaml"
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return [_error("config.yaml", f"{path} does not exist: give the folder of a Truss")]
    except yaml.YAMLError as error:
        return [_error("config.yaml", f"not YAML: {error}")]
    if not isinstance(config, dict):
        return [_error("config.yaml", "holds no mapping: see the Truss documentation")]

    accelerator, count = _accelerator(config, gpu)
    findings = [*_truss_library(Path(folder)), *_server(config)]
    engine = config.get("trt_llm")
    if not engine:
        findings.append(_ok("engine", "no trt_llm section: the embedded engine serves, with the settings' checkpoint"))
    else:
        findings += _engine(config, accelerator)
    if gpu is not None and gpu not in GPU_GIB:
        findings.append(_error("GPU", f"unknown accelerator {gpu}: one of {', '.join(GPU_GIB)}"))

    try:
        model, layout, source = _checkpoint(config, checkpoint)
    except CheckpointError as error:
        findings.append(_warn("checkpoint", f"not checked: {error}. Give --checkpoint with a folder that has config.json"))
        return findings
    findings += _model(model, layout, source, config)
    findings += _weights_on_disk(source, model)
    if engine and accelerator in GPU_GIB and not any(f.topic == "attention heads" and f.level == "error" for f in findings):
        findings += _memory(model, config, accelerator, count, seconds)
    return findings


# --------------------------------------------------------------------------------------------------- config.yaml alone


# Truss looks for unknown keys when it pushes, but not below `trt_llm`, where a misspelt key is a default in silence.
VALIDATE = """
import pathlib, sys
import pydantic
from truss.base.truss_config import TrussConfig

def unknown(value, path):
    if isinstance(value, pydantic.RootModel):
        yield from unknown(value.root, path)
    elif isinstance(value, pydantic.BaseModel):
        yield from (".".join((*path, key)) for key in value.model_extra or {})
        for key in type(value).model_fields:
            yield from unknown(getattr(value, key), (*path, key))

try:
    config = TrussConfig.from_yaml(pathlib.Path(sys.argv[1]))
    config.validate_forbid_extra()
    keys = list(unknown(config, ()))
    if keys:
        raise ValueError("unknown keys: " + ", ".join(keys))
except Exception as error:
    print(error)
    sys.exit(3)
"""


def _truss_library(folder: Path) -> Iterator[Finding]:
    """Truss' own validation, the same that `truss push` runs, in a process of its own.

    That process is told to stay off the network: with transformers installed, the validation would fetch the
    checkpoint's config.json and, without a network, retry for half a minute.
    """
    if find_spec("truss") is None:
        yield _warn(
            "truss library",
            "not installed, so its own validation was left out: pip install -r requirements/truss.txt",
        )
        return
    done = subprocess.run(
        [sys.executable, "-c", VALIDATE, str(folder / "config.yaml")],
        capture_output=True,
        text=True,
        env=offline_environment(),
        timeout=300,
        check=False,
    )
    if done.returncode == 0:
        yield _ok("truss library", "accepts config.yaml, and knows every key in it")
    else:
        said = done.stdout if done.returncode == 3 else done.stderr
        yield _error("truss library", " ".join(said.split()) or f"ended with code {done.returncode}")


def _server(config: Mapping[str, Any]) -> Iterator[Finding]:
    runtime = _section(config, "runtime")
    concurrency = runtime.get("predict_concurrency", 1)
    if config.get("trt_llm"):
        if concurrency != TRT_LLM_CONCURRENCY:
            yield _warn(
                "predict_concurrency",
                f"{concurrency} has no effect: beside an engine Truss sets {TRT_LLM_CONCURRENCY}. Write that, so that "
                "nobody relies on another number; limit streams in the settings",
            )
        else:
            yield _ok("predict_concurrency", f"{concurrency}, which Truss sets itself beside an engine")
    elif concurrency <= 1:
        yield _error(
            "predict_concurrency",
            "1 request at a time: a stream holds its place until its last byte, so a second caller waits for the whole "
            "of the first. Set it to the most streams that should run together",
        )
    else:
        yield _ok("predict_concurrency", f"{concurrency} streams may run together")

    checks = runtime.get("health_checks") or {}
    startup = checks.get("startup_threshold_seconds")
    if startup is None:
        yield _warn(
            "health checks",
            "no startup_threshold_seconds: the platform's 1800 applies. Engine and weights are downloaded, loaded and "
            f"warmed up before the first check passes; say how long that may take (at most {MAX_STARTUP_SECONDS})",
        )
    elif startup > MAX_STARTUP_SECONDS:
        yield _error(
            "health checks",
            f"startup_threshold_seconds {startup} is over the platform's most, {MAX_STARTUP_SECONDS}",
        )
    elif config.get("trt_llm") and startup < 600:
        yield _warn(
            "health checks",
            f"startup_threshold_seconds {startup}: a cold start that downloads the engine takes minutes, and a replica "
            "that is not ready by then is killed and starts over. Use 600 or more",
        )
    else:
        yield _ok("health checks", f"a replica has {startup} s to load")
    stop, restart = checks.get("stop_traffic_threshold_seconds"), checks.get("restart_threshold_seconds")
    if stop is not None and restart is not None and restart < stop:
        yield _warn(
            "health checks",
            f"restart_threshold_seconds {restart} is below stop_traffic_threshold_seconds {stop}: a replica would be "
            "restarted while it still gets calls",
        )

    version = str(config.get("python_version", "py39"))
    match = re.fullmatch(r"py3(\d+)", version)
    if match is None or int(match[1]) < 11:
        yield _error("python_version", f"{version}: packages/ needs py311 or newer")
    else:
        yield _ok("python_version", version)


def _engine(config: Mapping[str, Any], accelerator: str | None) -> Iterator[Finding]:
    build, runtime = _section(config, "trt_llm", "build"), _section(config, "trt_llm", "runtime")
    plugins = build.get("plugin_configuration") or {}
    quantization = str(build.get("quantization_type", "no_quant"))

    tags = _section(config, "model_metadata").get("tags") or []
    if LEGACY_TAG not in tags:
        yield _error(
            "tag",
            f"model_metadata.tags lacks {LEGACY_TAG}: the injected engine then answers with chat-completion "
            f"events, and "
            "model/model.py reads plain text",
        )
    elif OPENAI_TAG in tags:
        yield _error("tag", f"model_metadata.tags has both {LEGACY_TAG} and {OPENAI_TAG}: keep the first")
    else:
        yield _ok("tag", "the engine will stream plain text")

    base = build.get("base_model", "decoder")
    if base == "decoder":
        yield _ok("base_model", "decoder")
    else:
        yield _error("base_model", f"{base}: a speech language model is a decoder; older names are refused")

    yield from _quantization(quantization, plugins, accelerator)
    yield from _lengths(build, runtime, plugins)

    calibration = build.get("quantization_config") or {}
    if quantization.startswith(("fp8", "fp4")):
        wrong = {
            key: value
            for key in ("calib_size", "calib_max_seq_length")
            if (value := calibration.get(key)) is not None and not (64 <= value <= 16384 and value % 64 == 0)
        }
        longest, limit = calibration.get("calib_max_seq_length", 1536), build.get("max_seq_len")
        if wrong:
            said = ", ".join(f"{key} {value}" for key, value in wrong.items())
            yield _error("calibration", f"{said}: must be a multiple of 64 from 64 to 16384")
        elif limit is not None and longest > limit:
            yield _error("calibration", f"calib_max_seq_length {longest} is over max_seq_len {limit}")
        elif calibration.get("calib_size", 1024) < 256:
            yield _warn(
                "calibration",
                f"calib_size {calibration['calib_size']}: FP8 scales from so few texts suit a trial, not a deployment",
            )
        else:
            yield _ok("calibration", f"{calibration.get('calib_size', 1024)} texts of up to {longest} ids")

    repository = build.get("checkpoint_repository") or {}
    revision = repository.get("revision")
    if repository.get("source", "HF") == "HF":
        if revision and re.fullmatch(r"[0-9a-f]{40}", str(revision)):
            yield _ok("revision", f"{repository.get('repo')} is pinned to {revision}")
        else:
            yield _warn(
                "revision",
                f"{repository.get('repo')} is at {revision or 'its main branch'}: the next build may get other "
                f"weights. "
                "Name a commit of 40 hexadecimal digits",
            )
    secret = repository.get("runtime_secret_name", "hf_access_token")
    if secret not in (config.get("secrets") or {}):
        yield _error(
            "secrets",
            f"secrets lacks {secret}, with which the build reads the checkpoint: add `{secret}: null`",
        )


def _quantization(quantization: str, plugins: Mapping[str, Any], accelerator: str | None) -> Iterator[Finding]:
    topic = "quantization"
    if accelerator is None:
        yield _error("accelerator", "resources.accelerator is missing: an engine is built for one kind of GPU")
    elif quantization.startswith("fp8") and accelerator not in FP8_GPUS:
        yield _error(topic, f"{quantization} on {accelerator}, which has no FP8: use one of {', '.join(FP8_GPUS)}")
    elif quantization.startswith("fp4") and accelerator not in BLACKWELL:
        yield _error(topic, f"{quantization} on {accelerator}, which has no FP4: use one of {', '.join(BLACKWELL)}")
    elif quantization == "no_quant" and accelerator in FP8_GPUS:
        yield _warn(
            topic,
            f"no_quant on {accelerator}: 16-bit weights and KV cache take twice the memory and bandwidth of "
            f"fp8_kv, and "
            "decoding is bound by bandwidth",
        )
    else:
        yield _ok(topic, f"{quantization} on {accelerator}")
    eight_bit_cache = quantization.endswith("_kv")
    if plugins.get("use_fp8_context_fmha") and not eight_bit_cache:
        yield _error(topic, f"use_fp8_context_fmha needs an FP8 KV cache, and {quantization} has none: use fp8_kv")
    if eight_bit_cache and not plugins.get("use_fp8_context_fmha"):
        yield _warn(topic, "use_fp8_context_fmha is off: prompts would be computed with 16-bit attention")
    for key in ("paged_kv_cache", "use_paged_context_fmha"):
        if not plugins.get(key, True):
            yield _error(topic, f"{key} is off: without pages every stream reserves max_seq_len from its start")


def _lengths(build: Mapping[str, Any], runtime: Mapping[str, Any], plugins: Mapping[str, Any]) -> Iterator[Finding]:
    length, rows, step = build.get("max_seq_len"), build.get("max_batch_size", 256), build.get("max_num_tokens", 8192)
    chunked = runtime.get("enable_chunked_context", True)
    needed = PROMPT_IDS + CHUNK_SECONDS * IDS_PER_SECOND
    if length is None:
        yield _error(
            "max_seq_len",
            "missing: the build takes the checkpoint's longest (131,072 for Orpheus), and a KV cache that "
            "cannot hold one "
            "such sequence does not start. 8192 holds 94 s of audio",
        )
    elif length < needed:
        yield _error(
            "max_seq_len",
            f"{length} cuts speech off: a chunk of text is a prompt of up to {PROMPT_IDS} ids and, at "
            f"{IDS_PER_SECOND:.2f} ids a second, {CHUNK_SECONDS} s of audio = {needed:.0f} ids",
        )
    else:
        audio = (length - PROMPT_IDS) / IDS_PER_SECOND
        level: Level = "warn" if length > 32768 else "ok"
        advice = ". More than any chunk of text needs" if length > 32768 else ""
        yield Finding(
            level,
            "max_seq_len",
            f"{length} - {PROMPT_IDS} ids of prompt = {audio:.0f} s of audio in one chunk, at {IDS_PER_SECOND:.2f} ids/s{advice}",
        )

    if step < rows + PROMPT_IDS:
        yield _error(
            "max_num_tokens",
            f"{step}: one step over {rows} rows takes {rows} ids and a new prompt up to {PROMPT_IDS}; with less than "
            f"{rows + PROMPT_IDS} a full batch never admits a new stream in one step",
        )
    elif not chunked and length is not None and step < length:
        yield _warn(
            "max_num_tokens",
            f"{step} is under max_seq_len {length} without chunked context: longer prompts are refused",
        )
    elif step > 32768:
        yield _warn("max_num_tokens", f"{step} reserves activation memory that the KV cache could use: 8192 will do")
    else:
        yield _ok("max_num_tokens", f"{step}: {rows} decoding rows and {step - rows} ids of new prompts in one step")

    if rows < 8:
        yield _warn("max_batch_size", f"{rows} streams at most on a GPU that decodes hundreds together")
    else:
        yield _ok("max_batch_size", f"{rows} streams in one step")
    if not chunked:
        yield _warn("chunked context", "off: one long prompt stops all streams for as long as it takes")
    if runtime.get("batch_scheduler_policy", "guaranteed_no_evict") != "max_utilization":
        yield _warn(
            "scheduler",
            "guaranteed_no_evict reserves each request's max_tokens, of which speech seldom uses a third: use max_utilization",
        )
    fraction = runtime.get("kv_cache_free_gpu_mem_fraction", 0.9)
    if not 0 < fraction < 1:
        yield _error("KV cache", f"kv_cache_free_gpu_mem_fraction {fraction}: must be between 0 and 1")


# ---------------------------------------------------------------------------------------------------- the checkpoint


def _checkpoint(config: Mapping[str, Any], checkpoint: str | Path | None) -> tuple[dict[str, Any], TokenLayout, Path | str]:
    """config.json, the layout (speech.json beside it, else Orpheus') and where they are from. "
    "Raises CheckpointError."""
    if checkpoint is not None and (Path(checkpoint).exists() or str(checkpoint).startswith((".", "/", "~"))):
        folder = Path(checkpoint).expanduser()
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"{folder} has no config.json")
        layout = TokenLayout()
        if (folder / "speech.json").is_file():
            speech = _json((folder / "speech.json").read_text(encoding="utf-8"), folder / "speech.json")
            fields: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in speech.get("tokens", {}).items()}
            try:
                layout = TokenLayout(**fields)
            except (TypeError, ValueError) as error:
                raise CheckpointError(f"{folder / 'speech.json'}: {error}") from error
        return _json((folder / "config.json").read_text(encoding="utf-8"), folder / "config.json"), layout, folder
    repository = _section(config, "trt_llm", "build").get("checkpoint_repository") or {}
    repo, revision = repository.get("repo"), repository.get("revision")
    if checkpoint is not None:
        repo, _, revision = str(checkpoint).partition("@")
    if not repo or (checkpoint is None and repository.get("source", "HF") != "HF"):
        raise CheckpointError("config.yaml names no repository on the hub")
    return _from_hub(repo, revision or None), TokenLayout(), f"{repo}@{revision or 'main'}"


def _from_hub(repo: str, revision: str | None) -> dict[str, Any]:
    """config.json of a repository: one file, one attempt (the hub library's own download retries for half a minute)."""
    from huggingface_hub import constants, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.utils import build_hf_headers, get_session

    cached = try_to_load_from_cache(repo, "config.json", revision=revision)
    if isinstance(cached, str):
        return _json(Path(cached).read_text(encoding="utf-8"), cached)
    if constants.HF_HUB_OFFLINE:
        raise CheckpointError(f"{repo}: config.json is not in the hub cache, and HF_HUB_OFFLINE is set")
    try:
        url = hf_hub_url(repo, "config.json", revision=revision)
        response = get_session().get(url, headers=build_hf_headers(), timeout=10, follow_redirects=True)
        response.raise_for_status()
    except Exception as error:
        raise CheckpointError(f"{repo}: config.json could not be fetched from the hub ({error})") from error
    return _json(response.text, repo)


def _model(model: Mapping[str, Any], layout: TokenLayout, source: Path | str, config: Mapping[str, Any]) -> Iterator[Finding]:
    names = model.get("architectures") or ["none"]
    if any("ForCausalLM" in name for name in names):
        yield _ok("checkpoint", f"{source}: {', '.join(names)}")
    else:
        yield _error("checkpoint", f"{source}: {', '.join(names)} is no causal language model")

    vocabulary = model.get("vocab_size", 0)
    if vocabulary <= layout.last_code:
        yield _error(
            "vocabulary",
            f"vocab_size {vocabulary}, but the last audio code is id {layout.last_code}: the head cannot say "
            f"it. This is "
            "not a speech checkpoint, or its layout is another",
        )
    else:
        yield _ok(
            "vocabulary",
            f"{vocabulary} ids hold {layout.slots} slots of {layout.codes_per_slot} codes, "
            f"{layout.first_code} to {layout.last_code}",
        )

    yield from _rope(model, _section(config, "trt_llm", "build").get("max_seq_len"))

    hidden, heads = model.get("hidden_size", 0), model.get("num_attention_heads", 0)
    kv_heads = model.get("num_key_value_heads") or heads
    parallel = _section(config, "trt_llm", "build").get("tensor_parallel_count", 1)
    head = _head_size(model)
    if not heads or not head or heads % kv_heads:
        yield _error("attention heads", f"{heads} heads over {kv_heads} KV heads of size {head}: not a shape")
    elif kv_heads % parallel:
        yield _error("attention heads", f"{kv_heads} KV heads do not divide over {parallel} GPUs")
    elif config.get("trt_llm") and head not in (64, 128, 256):
        yield _warn("attention heads", f"head size {head}: the fast attention kernels are for 64, 128 and 256")
    else:
        yield _ok("attention heads", f"{heads} heads, {kv_heads} KV heads, size {head}, hidden {hidden}")
    tied = model.get("tie_word_embeddings", False)
    yield _ok(
        "embeddings",
        "tied: one table in the checkpoint, two in an engine" if tied else "not tied: lm_head of its own",
    )


def _rope(model: Mapping[str, Any], length: int | None) -> Iterator[Finding]:
    scaling = model.get("rope_scaling") or model.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type"))
    positions = model.get("max_position_embeddings", 0)
    missing = [
        k for k in ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings") if k not in scaling
    ]
    if kind != "llama3":
        yield _error(
            "RoPE",
            f"rope_scaling is {kind or 'missing'}: Orpheus was trained with llama3 scaling, which changes "
            f"every position, "
            "and the build believes config.json without a word. Copy rope_scaling from the base model's config.json",
        )
    elif missing:
        yield _error("RoPE", f"rope_scaling lacks {', '.join(missing)}")
    elif not model.get("rope_scaling"):
        yield _warn(
            "RoPE",
            "only rope_parameters, as newer transformers writes it: an engine builder that reads "
            "rope_scaling would build "
            "without scaling. Write rope_scaling as well",
        )
    else:
        yield _ok("RoPE", f"llama3, factor {scaling['factor']:g}, from {scaling['original_max_position_embeddings']}")
    theta = scaling.get("rope_theta", model.get("rope_theta"))
    if theta is None:
        yield _error("RoPE", "rope_theta is missing: builders assume 10000, Llama 3 has 500000")
    if length is not None and positions and length > positions:
        yield _error("max_seq_len", f"{length} is over the checkpoint's max_position_embeddings {positions}")


def _weights_on_disk(source: Path | str, model: Mapping[str, Any]) -> Iterator[Finding]:
    """Rows of the embedding table and the head in a folder's safetensors files, whose headers are read and no more."""
    if not isinstance(source, Path):
        return
    rows: dict[str, int] = {}
    for file in sorted(source.glob("*.safetensors")):
        with file.open("rb") as handle:
            header = json.loads(handle.read(struct.unpack("<Q", handle.read(8))[0]))
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if name in header:
                rows[name] = header[name]["shape"][0]
    vocabulary = model.get("vocab_size")
    for name, count in rows.items():
        if count != vocabulary:
            yield _error("weights", f"{name} has {count} rows, config.json says vocab_size {vocabulary}")
    if rows and "lm_head.weight" not in rows and not model.get("tie_word_embeddings", False):
        yield _error("weights", "lm_head.weight is missing, and tie_word_embeddings is not true: no head to build")
    elif rows and all(count == vocabulary for count in rows.values()):
        yield _ok("weights", f"{' and '.join(rows)}: {vocabulary} rows, as config.json says")


# ------------------------------------------------------------------------------------------------------------ memory


def _memory(
    model: Mapping[str, Any], config: Mapping[str, Any], accelerator: str, count: int, seconds: float
) -> Iterator[Finding]:
    build, runtime = _section(config, "trt_llm", "build"), _section(config, "trt_llm", "runtime")
    quantization = str(build.get("quantization_type", "no_quant"))
    parallel = build.get("tensor_parallel_count", 1)
    rows, step = build.get("max_batch_size", 256), build.get("max_num_tokens", 8192)
    layers, kv_heads = model["num_hidden_layers"], model.get("num_key_value_heads") or model["num_attention_heads"]
    head, hidden, mlp, vocabulary = (
        _head_size(model),
        model["hidden_size"],
        model["intermediate_size"],
        model["vocab_size"],
    )

    cache_bytes = 1 if quantization.endswith("_kv") else 2
    per_id = 2 * layers * kv_heads * head * cache_bytes
    yield _ok(
        "KV per id",
        f"2 (K and V) x {layers} layers x {kv_heads} heads x {head} x {cache_bytes} B = {per_id / 1024:g} KiB; "
        f"{IDS_PER_SECOND:.2f} ids/s make that {per_id * IDS_PER_SECOND / 2**20:.1f} MiB a second of speech and stream",
    )

    attention = hidden * head * (2 * model["num_attention_heads"] + 2 * kv_heads)
    attention_bytes, mlp_bytes = _weight_bytes(quantization)
    matrices = layers * (attention * attention_bytes + 3 * hidden * mlp * mlp_bytes)
    tables = 2 * vocabulary * hidden * 2  # embedding and head, 16 bit; an engine keeps both even where they are tied
    weights = (matrices + tables) / parallel
    # Residual stream, attention and MLP of one step at 16 bit, and three copies of the logits at 32: a rule of thumb.
    activations = step * (6 * hidden + 3 * mlp) * 2 / parallel + 3 * rows * vocabulary * 4
    total = GPU_GIB[accelerator] * GIB
    free = total - CONTEXTS - weights - activations
    fraction = runtime.get("kv_cache_free_gpu_mem_fraction", 0.9)
    sum_ = (
        f"{GPU_GIB[accelerator]} GiB ({accelerator}) - {CONTEXTS / GIB:.1f} CUDA contexts - "
        f"{weights / GIB:.1f} weights - "
        f"{activations / GIB:.1f} activations = {free / GIB:.1f} GiB free"
    )
    if free <= 0:
        yield _error("memory", f"{sum_}: the engine does not fit. Take a larger GPU, or fp8_kv")
        return
    left = free * (1 - fraction)
    if left < CODEC:
        highest = max(0, int(100 * (1 - CODEC / free))) / 100
        yield Finding(
            "error" if left < CODEC / 2 else "warn",
            "memory",
            f"{sum_}; a kv_cache_free_gpu_mem_fraction of {fraction:g} leaves the codec {left / GIB:.1f} GiB of the "
            f"{CODEC / GIB:.1f} it may need: at most {highest:.2f} here",
        )
    else:
        yield _ok("memory", f"{sum_}; {left / GIB:.1f} of them stay for the codec ({CODEC / GIB:.1f} reserved)")

    ids = PROMPT_IDS // 4 + seconds * IDS_PER_SECOND  # a usual prompt, not the longest
    pages = -(-ids // KV_BLOCK)
    stream = pages * KV_BLOCK * per_id / parallel
    streams = int(free * fraction // stream)
    arithmetic = (
        f"{free * fraction / GIB:.1f} GiB of KV cache / ({pages:.0f} pages x {KV_BLOCK} ids x {per_id / 1024:g} KiB"
        f"{f' / {parallel} GPUs' if parallel > 1 else ''} = {stream / 2**20:.0f} MiB) = {streams} "
        f"streams of {seconds:g} s, "
        "all at their end at once"
    )
    if streams < 1:
        yield _error("streams", f"{arithmetic}: not one fits")
    elif streams < rows:
        yield _warn(
            "streams",
            f"{arithmetic}: fewer than max_batch_size {rows}, so the cache is full before the batch is, and "
            f"max_utilization "
            "pauses streams. Lower max_batch_size or take a larger GPU",
        )
    else:
        yield _ok("streams", f"{arithmetic}; the batch of {rows} is full first")
    if count != parallel:
        yield _error("accelerator", f"{count} GPUs for tensor_parallel_count {parallel}: they must be equal")


def _weight_bytes(quantization: str) -> tuple[float, float]:
    """Bytes of a weight in attention and in the MLP. FP4 has a scale byte for every 16 weights."""
    few = {"fp8": 1.0, "fp4": 0.5 + 1 / 16}.get(quantization[:3], 2.0)
    return (2.0, few) if quantization.endswith("mlp_only") else (few, few)


# ----------------------------------------------------------------------------------------------------------- helpers


def _section(config: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """A nested mapping of config.yaml, empty where it is missing or of another type (the truss library says so)."""
    here: Any = config
    for key in path:
        here = here.get(key) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) else {}


def _accelerator(config: Mapping[str, Any], override: str | None) -> tuple[str | None, int]:
    name, _, count = str(_section(config, "resources").get("accelerator") or "").partition(":")
    return override or name or None, int(count) if count.isdigit() else 1


def _head_size(model: Mapping[str, Any]) -> int:
    heads = model.get("num_attention_heads") or 0
    return model.get("head_dim") or (model.get("hidden_size", 0) // heads if heads else 0)


def _json(text: str, source: object) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{source} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{source} holds no JSON object")
    return content


# ------------------------------------------------------------------------------------------------------ command line


def table(findings: list[Finding], width: int) -> str:
    """Findings as text of `width` columns: level, topic, and the message wrapped beside them."""
    topics = max((len(f.topic) for f in findings), default=0)
    lines: list[str] = []
    for finding in findings:
        lead = f"{finding.level:<5}  {finding.topic:<{topics}}  "
        lines += textwrap.wrap(
            finding.message,
            max(width, len(lead) + 30),
            initial_indent=lead,
            subsequent_indent=" " * len(lead),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", default=".", help="folder of the Truss (default: here)")
    parser.add_argument("--checkpoint", help="folder, or repository[@revision]; default: what config.yaml names")
    parser.add_argument("--gpu", choices=sorted(GPU_GIB), help="judge for this accelerator instead of the configured one")
    parser.add_argument(
        "--seconds", type=float, default=CHUNK_SECONDS, help="length of the streams in the count (default: %(default)s)"
    )


def main(args: argparse.Namespace) -> int:
    """Print the findings; 1 if one of them is an error, else 0."""
    findings = run(args.folder, args.checkpoint, args.gpu, args.seconds)
    print(table(findings, shutil.get_terminal_size().columns))
    errors, warnings = (sum(f.level == level for f in findings) for level in ("error", "warn"))
    print(f"\n{errors} errors, {warnings} warnings")
    return 1 if errors else 0
