"""Does the constrained vLLM engine say the same greedy ids as the plain model? On a GPU with vLLM; about a minute a start of it.

    python3 benchmarks/gpu/greedy_vllm.py --out benchmarks/results/greedy_vllm.json --commit C

A small checkpoint is made: Orpheus' vocabulary, random weights in bf16, every utterance valid frames and then the end
(`synth_checkpoint.py`). vLLM speaks PROMPTS greedily, weights and KV cache in bf16: with our model and sampler ("constrained"),
then, while a good half of --limit is left, as it comes ("stock"). The reference is `engines/llama.py` in float32 on the CPU, over
the whole vocabulary. It is asked after every id that an engine has said, so that one difference does not make all that follow
differ.

bf16 cannot tell two logits apart that lie closer than its errors. How large these are is measured: `noise` is the most that the
lead of the best over the second changes from the reference in float32 to the reference in bf16. A place is *decided* where that
lead is more than twice the noise. What has to hold, and is the exit status: every id of a decided place is the reference's, all
frames are valid and every utterance ends. Where an engine differs is listed, with the lead of float32's best over what was said.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from orpheus_serving.bench.result import write_result
from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.engines.base import Engine, Sampling
from orpheus_serving.engines.config import read_config
from orpheus_serving.engines.llama import LlamaDecoder, Weights
from orpheus_serving.synth_checkpoint import Shape, build_synth_lm

# vLLM's attention kernels for Hopper have no heads smaller than 64; Orpheus' own have 128.
SMALL = Shape(hidden=512, layers=4, heads=4, kv_heads=2, mlp=1024)
PROMPTS = 16
SECONDS = 3.0  # of an utterance: 35 frames
MOST = 400  # ids, should an end be missing
LISTED = 20  # differences that are listed of an engine


@dataclass(frozen=True)
class Place:
    """One id of an utterance, as the reference sees it."""

    best: int
    best_in_bf16: int
    lead: float  # of its logit over the second's
    lead_in_bf16: float  # of the same two
    lost: float  # its logit less that of the id that was said; 0 if they are the same


class Reference:
    """The plain model on the CPU, after each id of `speeches`."""

    def __init__(self, folder: Path, prompts: Sequence[list[int]], speeches: Sequence[list[int]], dtype: torch.dtype) -> None:
        length = max(len(prompt) + len(speech) for prompt, speech in zip(prompts, speeches, strict=True))
        with Weights(folder) as weights:
            decoder = LlamaDecoder(
                read_config(folder),
                weights,
                rows=len(prompts),
                length=length,
                device=torch.device("cpu"),
                dtype=dtype,
                exact=False,
            )
        self._head = decoder.head
        self._states = [[decoder.prefill(row, prompt)] for row, prompt in enumerate(prompts)]
        for step in range(max(map(len, speeches)) - 1):
            rows = [row for row, speech in enumerate(speeches) if step < len(speech) - 1]
            lengths = [len(prompts[row]) + step + 1 for row in rows]
            states = decoder.decode(rows, [speeches[row][step] for row in rows], lengths)
            for row, state in zip(rows, states.split(1), strict=True):
                self._states[row].append(state)

    def logits(self, number: int) -> Tensor:
        """[ids, vocabulary] in float32, before each id of a speech."""
        return F.linear(torch.cat(self._states[number]), self._head).float()


def places(exact: Tensor, rough: Tensor, speech: Sequence[int]) -> list[Place]:
    """From logits [ids, vocabulary] of the reference in float32 and in bf16."""
    top, index = exact.topk(2, dim=-1)
    roughly = rough.gather(1, index)
    lost = top[:, 0] - exact.gather(1, torch.tensor(speech)[:, None])[:, 0]
    columns = index[:, 0], rough.argmax(1), top[:, 0] - top[:, 1], roughly[:, 0] - roughly[:, 1], lost
    return [Place(*place) for place in zip(*(column.tolist() for column in columns), strict=True)]


def compare(folder: Path, engine: str, prompts: Sequence[list[int]], speeches: Sequence[list[int]]) -> dict[str, Any]:
    """One row of the result: how an engine's utterances compare with the reference after the same ids."""
    layout = Checkpoint(str(folder)).layout
    exact, rough = (Reference(folder, prompts, speeches, dtype) for dtype in (torch.float32, torch.bfloat16))
    seen = [places(exact.logits(number), rough.logits(number), speech) for number, speech in enumerate(speeches)]
    noise = max(abs(place.lead - place.lead_in_bf16) for row in seen for place in row[:-1])  # the end has a lead of another kind
    equal = decided = decided_equal = 0
    differences = []
    for number, (row, speech) in enumerate(zip(seen, speeches, strict=True)):
        for index, (place, said) in enumerate(zip(row, speech, strict=True)):
            same = place.best == said
            clear = place.lead > 2 * noise
            equal += same
            decided += clear
            decided_equal += same and clear
            if not same:
                differences.append({"prompt": number, "at": index, "said": said, "reference": place.best, "lost_by": place.lost})
    tokens = sum(map(len, speeches))
    codes = [(index, token) for speech in speeches for index, token in enumerate(speech[:-1])]
    return {
        "engine": engine,
        "utterances": len(speeches),
        "ended": sum(speech[-1] == layout.end_of_speech for speech in speeches),
        "valid_frames": all(layout.is_code(token) and layout.slot(token) == index % layout.slots for index, token in codes),
        "tokens": tokens,
        "equal": equal,
        "equal_of_the_reference_in_bf16": sum(place.best == place.best_in_bf16 for row in seen for place in row),
        "noise": noise,
        "decided": decided,
        "decided_equal": decided_equal,
        "same_as_the_reference": decided_equal == decided,
        "first_difference": min(differences, key=lambda d: d["at"], default=None),
        "differences": sorted(differences, key=lambda d: -d["lost_by"])[:LISTED],
    }


async def speak(engine: Engine, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Greedy utterances, all at once. A penalty would have to be in the reference too, so there is none."""

    async def one(number: int, prompt: list[int]) -> list[int]:
        sampling = Sampling(MOST, temperature=0, top_p=1.0, repetition_penalty=1.0)
        return [token async for ids in engine.generate(prompt, sampling, str(number)) for token in ids]

    await engine.start()
    try:
        return await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
    finally:
        await engine.stop()


def vllm_engine(checkpoint: Checkpoint, kind: str) -> Engine:
    from orpheus_serving.engines.vllm import VllmEngine

    return VllmEngine(
        checkpoint.source,
        checkpoint.layout,
        max_streams=PROMPTS,
        max_length=1024,
        constrained=kind == "constrained",
        weights="bf16",
        kv_cache="bf16",
        memory=16 << 30,
        eager=True,
    )


async def run(
    folder: Path,
    out: Path,
    *,
    limit: float,
    commit: str | None = None,
    make: Callable[[Checkpoint, str], Engine] = vllm_engine,
    shape: Shape = SMALL,
) -> bool:
    """Whether all engines that ran say what the reference says. The result is written after each."""
    began = time.monotonic()
    build_synth_lm(folder, shape, seconds=SECONDS, codec=False)
    checkpoint = Checkpoint(str(folder))
    prompts = [checkpoint.prompt(f"Sentence number {n}. " * (1 + n % 5), None) for n in range(PROMPTS)]
    rows: list[dict[str, Any]] = []
    said: dict[str, list[list[int]]] = {}
    for kind in ("constrained", "stock"):
        used = time.monotonic() - began
        if rows and used > limit / 2 - 15:
            print(f"{kind}: left out, {used:.0f} s are gone", flush=True)
            break
        said[kind] = await speak(make(checkpoint, kind), prompts)
        spoke = time.monotonic() - began - used
        rows.append(compare(folder, kind, prompts, said[kind]) | {"seconds_speaking": spoke})
        if kind == "stock":
            pairs = zip(said["constrained"], said["stock"], strict=True)
            rows[-1]["utterances_as_constrained"] = sum(a == b for a, b in pairs)
        print(*(f"{name}: {value}" for name, value in rows[-1].items()), sep="\n  ", flush=True)
        settings = {"shape": f"{shape.layers} layers, hidden {shape.hidden}", "prompts": PROMPTS, "seconds": SECONDS}
        write_result(out, "greedy vllm", rows, settings=settings, commit=commit)
    print(f"{time.monotonic() - began:.0f} s in all", flush=True)
    return all(row["same_as_the_reference"] and row["ended"] == row["utterances"] and row["valid_frames"] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commit")
    parser.add_argument("--limit", type=float, default=150.0, help="seconds in all; decides whether stock vLLM is asked too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        good = asyncio.run(run(Path(folder), args.out, limit=args.limit, commit=args.commit))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
