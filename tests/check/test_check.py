"""`check`: the repository's own Truss passes, and every way to spoil it is found, with its reason."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from orpheus_serving import check
from orpheus_serving.check import Finding
from orpheus_serving.noise_checkpoint import build_noise_lm

ROOT = Path(__file__).parents[2]

# The facts of Orpheus 3B's config.json that a build depends on.
ORPHEUS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "tie_word_embeddings": True,
    "vocab_size": 156940,
}

Edit = Callable[[dict[str, Any]], None]


@pytest.fixture(autouse=True)
def without_truss(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Its own validation takes seconds and has tests of its own below."""
    if "truss_library" not in request.fixturenames:
        monkeypatch.setattr(check, "_truss_library", lambda folder: [])


@pytest.fixture
def truss_library() -> None:
    """A test that takes it runs the real validation."""


def write(folder: Path, config: dict[str, Any], model: dict[str, Any]) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "config.json").write_text(json.dumps(model))


def findings(tmp_path: Path, edit: Edit | None = None, edit_model: Edit | None = None, **more: Any) -> list[Finding]:
    config, model = yaml.safe_load((ROOT / "config.yaml").read_text()), json.loads(json.dumps(ORPHEUS))
    if edit:
        edit(config)
    if edit_model:
        edit_model(model)
    write(tmp_path, config, model)
    return check.run(tmp_path, tmp_path, **more)


def bad(found: list[Finding]) -> list[tuple[str, str]]:
    return [(f.level, f.topic) for f in found if f.level != "ok"]


def message(found: list[Finding], topic: str) -> str:
    return " ".join(f.message for f in found if f.topic == topic)


def test_the_repositorys_truss_and_orpheus_pass(tmp_path: Path) -> None:
    assert bad(findings(tmp_path)) == []


def put(*path: str, value: Any) -> Edit:
    def edit(config: dict[str, Any]) -> None:
        for key in path[:-1]:
            config = config.setdefault(key, {})
        config[path[-1]] = value

    return edit


BUILD, RUNTIME = ("trt_llm", "build"), ("trt_llm", "runtime")


@pytest.mark.parametrize(
    ("edit", "level", "topic", "reason"),
    [
        (put(*BUILD, "base_model", value="llama"), "error", "base_model", "decoder"),
        (put("resources", "accelerator", value="A100"), "error", "quantization", "no FP8"),
        (put("resources", "accelerator", value=None), "error", "accelerator", "missing"),
        (put("resources", "accelerator", value="H100_40GB:2"), "error", "accelerator", "must be equal"),
        (put(*BUILD, "quantization_type", value="fp4_kv"), "error", "quantization", "no FP4"),
        (put(*BUILD, "quantization_type", value="fp8"), "error", "quantization", "needs an FP8 KV cache"),
        (put(*BUILD, "plugin_configuration", value={}), "warn", "quantization", "16-bit attention"),
        (
            put(*BUILD, "plugin_configuration", "paged_kv_cache", value=False),
            "error",
            "quantization",
            "reserves max_seq_len",
        ),
        (put(*BUILD, "max_seq_len", value=None), "error", "max_seq_len", "131,072"),
        (put(*BUILD, "max_seq_len", value=2048), "error", "max_seq_len", "2153 ids"),
        (put(*BUILD, "max_seq_len", value=65536), "warn", "max_seq_len", "More than any chunk"),
        (put(*BUILD, "max_seq_len", value=262144), "error", "max_seq_len", "max_position_embeddings 131072"),
        (put(*BUILD, "max_num_tokens", value=300), "error", "max_num_tokens", "768"),
        (put(*BUILD, "max_num_tokens", value=65536), "warn", "max_num_tokens", "activation memory"),
        (put(*BUILD, "max_batch_size", value=4), "warn", "max_batch_size", "hundreds"),
        (put(*BUILD, "max_batch_size", value=1024), "warn", "streams", "Lower max_batch_size"),
        (put(*BUILD, "quantization_config", "calib_size", value=1000), "error", "calibration", "multiple of 64"),
        (put(*BUILD, "quantization_config", "calib_size", value=64), "warn", "calibration", "trial"),
        (put(*BUILD, "quantization_config", "calib_max_seq_length", value=16384), "error", "calibration", "over max"),
        (put(*BUILD, "checkpoint_repository", "revision", value="main"), "warn", "revision", "40 hex"),
        (put(*BUILD, "checkpoint_repository", "revision", value=None), "warn", "revision", "main branch"),
        (put("secrets", value={}), "error", "secrets", "hf_access_token: null"),
        (put("model_metadata", "tags", value=[]), "error", "tag", "chat-completion"),
        (put("model_metadata", "tags", value=[check.LEGACY_TAG, check.OPENAI_TAG]), "error", "tag", "keep the first"),
        (put(*RUNTIME, "enable_chunked_context", value=False), "warn", "chunked context", "stops all streams"),
        (put(*RUNTIME, "batch_scheduler_policy", value="guaranteed_no_evict"), "warn", "scheduler", "reserves"),
        (put(*RUNTIME, "kv_cache_free_gpu_mem_fraction", value=1.5), "error", "KV cache", "between 0 and 1"),
        (put(*RUNTIME, "kv_cache_free_gpu_mem_fraction", value=0.95), "warn", "memory", "at most 0.93"),
        (put(*RUNTIME, "kv_cache_free_gpu_mem_fraction", value=0.99), "error", "memory", "leaves the codec"),
        (put("runtime", "predict_concurrency", value=64), "warn", "predict_concurrency", "512"),
        (put("runtime", "health_checks", value={}), "warn", "health checks", "1800"),
        (put("runtime", "health_checks", "startup_threshold_seconds", value=4000), "error", "health checks", "3000"),
        (put("runtime", "health_checks", "startup_threshold_seconds", value=60), "warn", "health checks", "minutes"),
        (put("runtime", "health_checks", "restart_threshold_seconds", value=30), "warn", "health checks", "restarted"),
        (put("python_version", value="py310"), "error", "python_version", "py311"),
    ],
)
def test_a_spoilt_config_yaml(tmp_path: Path, edit: Edit, level: str, topic: str, reason: str) -> None:
    found = findings(tmp_path, edit)
    assert (level, topic) in bad(found)
    assert reason in message(found, topic)


@pytest.mark.parametrize(
    ("edit", "level", "topic", "reason"),
    [
        (put("vocab_size", value=128256), "error", "vocabulary", "156937"),
        (put("rope_scaling", value=None), "error", "RoPE", "missing"),
        (put("rope_scaling", "rope_type", value="linear"), "error", "RoPE", "linear"),
        (put("rope_scaling", value={"rope_type": "llama3", "factor": 32.0}), "error", "RoPE", "low_freq_factor"),
        (put("rope_theta", value=None), "error", "RoPE", "500000"),
        (put("num_key_value_heads", value=7), "error", "attention heads", "not a shape"),
        (put("num_attention_heads", value=None), "error", "attention heads", "not a shape"),
        (put("head_dim", value=96), "warn", "attention heads", "kernels"),
        (put("architectures", value=["BertModel"]), "error", "checkpoint", "no causal"),
        (put("architectures", value=None), "error", "checkpoint", "none"),
    ],
)
def test_a_spoilt_config_json(tmp_path: Path, edit: Edit, level: str, topic: str, reason: str) -> None:
    found = findings(tmp_path, None, edit)
    assert (level, topic) in bad(found)
    assert reason in message(found, topic)


def test_newer_transformers_writes_rope_parameters_only(tmp_path: Path) -> None:
    def edit(model: dict[str, Any]) -> None:
        model["rope_parameters"] = {**model.pop("rope_scaling"), "rope_theta": model.pop("rope_theta")}

    found = findings(tmp_path, None, edit)
    assert bad(found) == [("warn", "RoPE")]


def test_the_arithmetic_of_the_kv_cache(tmp_path: Path) -> None:
    found = findings(tmp_path)
    assert "2 (K and V) x 28 layers x 8 heads x 128 x 1 B = 56 KiB" in message(found, "KV per id")
    # 128 ids of prompt and 20 s x 82.03 ids = 1,769 ids = 28 pages of 64, of 56 KiB an id
    assert "28 pages x 64 ids x 56 KiB = 98 MiB" in message(found, "streams")
    twice = findings(tmp_path, lambda c: c["trt_llm"]["build"].update(quantization_type="no_quant"))
    assert "112 KiB" in message(twice, "KV per id")


def streams(found: list[Finding]) -> int:
    return int(message(found, "streams").split(" streams of")[0].rsplit(" ", 1)[1])


def test_more_streams_fit_on_a_larger_gpu_and_fewer_when_they_are_longer(tmp_path: Path) -> None:
    here = streams(findings(tmp_path))
    assert streams(findings(tmp_path, gpu="H100")) > 2 * here
    assert streams(findings(tmp_path, gpu="L4")) < here
    assert streams(findings(tmp_path, seconds=40)) == pytest.approx(here / 2, rel=0.1)


def test_a_gpu_that_is_too_small_for_the_weights(tmp_path: Path) -> None:
    def large(model: dict[str, Any]) -> None:
        model["num_hidden_layers"] = 400

    assert ("error", "memory") in bad(findings(tmp_path, None, large, gpu="L4"))


def test_a_noise_checkpoint_with_a_layout_of_its_own(tmp_path: Path) -> None:
    folder = build_noise_lm(tmp_path / "noise")
    found = check.run(ROOT, folder)
    assert "1024 codes" in message(found, "vocabulary")
    assert "rows, as config.json says" in message(found, "weights")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": config["vocab_size"] + 8}))
    assert ("error", "weights") in bad(check.run(ROOT, folder))
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    assert "no head" in message(check.run(ROOT, folder), "weights")


def test_without_an_engine_the_server_rules_remain(tmp_path: Path) -> None:
    def embedded(config: dict[str, Any]) -> None:
        del config["trt_llm"]
        config["runtime"]["predict_concurrency"] = 1

    found = findings(tmp_path, embedded)
    assert ("error", "predict_concurrency") in bad(found)
    assert "embedded engine" in message(found, "engine")
    assert message(found, "streams") == ""


def test_a_checkpoint_that_cannot_be_had_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "config.json is not in the hub cache" in message(check.run(ROOT), "checkpoint")
    assert bad(check.run(ROOT)) == [("warn", "checkpoint")]
    assert "has no config.json" in message(check.run(ROOT, ROOT / "tests"), "checkpoint")


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "does not exist"), ("a: [", "not YAML"), ("- a", "no mapping"), ("", "no mapping")]
)
def test_what_is_no_config_yaml(tmp_path: Path, text: str | None, reason: str) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    (finding,) = check.run(tmp_path)
    assert finding.level == "error"
    assert reason in finding.message


@pytest.mark.parametrize("junk", ["text", 7, [1], {"build": "x"}, {"build": {"quantization_config": None}}])
def test_sections_of_a_wrong_type_never_raise(tmp_path: Path, junk: Any) -> None:
    for section in ("trt_llm", "runtime", "model_metadata", "resources"):
        findings(tmp_path, put(section, value=junk))


def test_the_command_prints_a_table_and_fails_on_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    check.add_arguments(parser)
    findings(tmp_path)
    arguments = [str(tmp_path), "--checkpoint", str(tmp_path)]
    assert check.main(parser.parse_args(arguments)) == 0
    good = capsys.readouterr().out
    assert check.main(parser.parse_args([*arguments, "--gpu", "A100"])) == 1
    out = capsys.readouterr().out
    assert "error  quantization" in out
    assert "1 errors" in out
    assert "0 errors" in good


def test_a_table_keeps_to_its_width() -> None:
    text = check.table([Finding("warn", "topic", "word " * 60), Finding("ok", "t", "short")], 80)
    assert max(map(len, text.splitlines())) <= 80
    assert text.splitlines()[1].startswith(" " * len("warn   topic  "))


@pytest.mark.usefixtures("truss_library")
def test_truss_own_validation_accepts_the_repositorys_config(tmp_path: Path) -> None:
    (finding,) = check._truss_library(ROOT)
    assert finding.level == "ok"


@pytest.mark.usefixtures("truss_library")
def test_truss_own_validation_names_an_unknown_key(tmp_path: Path) -> None:
    config = yaml.safe_load((ROOT / "config.yaml").read_text())
    config["trt_llm"]["build"]["max_sequence"] = 1
    write(tmp_path, config, {})
    (finding,) = check._truss_library(tmp_path)
    assert finding.level == "error"
    assert "max_sequence" in finding.message


@pytest.mark.usefixtures("truss_library")
def test_a_missing_truss_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "find_spec", lambda name: None)
    (finding,) = check._truss_library(ROOT)
    assert finding.level == "warn"
    assert "requirements/truss.txt" in finding.message
