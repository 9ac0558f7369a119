"""Makes `OrpheusForCausalLM` known to vLLM, in the server's process and in the engine's.

The server calls `register`. The engine's process imports `Registered`, which is named as vLLM's `worker_extension_cls`, before
it builds the model; so nothing has to be installed as a plugin. The model itself is named, not imported: that would start CUDA.
"""

from __future__ import annotations


def register() -> None:
    from vllm import ModelRegistry

    if "OrpheusForCausalLM" not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model("OrpheusForCausalLM", "orpheus_serving.engines.vllm_model:OrpheusForCausalLM")


class Registered:
    """Mixed into vLLM's worker, with nothing in it: what counts is that this module was imported."""


register()
