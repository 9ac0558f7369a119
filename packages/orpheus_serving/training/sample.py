"""Speak many sentences at once with a transformers model: the batch form of what a serving engine does.

Sampling is constrained as in serving: at each step only the codes of the slot that comes next, and the end of speech
only where
a frame may begin. Rows are left-padded, so all prompts end at the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..tokens import TokenLayout


@dataclass(frozen=True, slots=True)
class Spoken:
    codes: np.ndarray  # [F, 7]
    ended: bool  # the model said end of speech before the limit


@torch.no_grad()
def speak_codes(
    model: Any,
    tokenizer: Any,
    layout: TokenLayout,
    jobs: Sequence[tuple[str | None, str]],
    seed: int,
    temperature: float = 0.6,
    top_p: float = 0.9,
    repetition_penalty: float = 1.0,
    max_frames: int = 180,
    begun: Sequence[np.ndarray] | None = None,
) -> list[Spoken]:
    """`jobs` are (voice or None, text). The same seed and jobs give the same codes on one device.

    `begun` are codes [F, 7] that each utterance begins with; they are part of what is returned, and `max_frames` counts
    the frames after them. ValueError: the model's logits are not finite.
    """
    from transformers import DynamicCache

    device = model.device
    prompts = [layout.prompt_ids(tokenizer.encode(f"{v}: {t}" if v else t, add_special_tokens=False).ids) for v, t in jobs]
    if begun:
        prompts = [[*p, *(codes + np.array(layout.firsts)).reshape(-1).tolist()] for p, codes in zip(prompts, begun, strict=True)]
    width = max(len(p) for p in prompts)
    ids = torch.full((len(jobs), width), layout.end_of_speech, dtype=torch.long)
    mask = torch.zeros(len(jobs), width, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    ids, mask = ids.to(device), mask.to(device)
    position = (mask.cumsum(1) - 1).clamp(min=0)
    generator = torch.Generator(device).manual_seed(seed)
    cache = DynamicCache()
    alive = torch.arange(len(jobs), device=device)
    length = torch.zeros(len(jobs), dtype=torch.long, device=device)
    ended = torch.zeros(len(jobs), dtype=torch.bool, device=device)
    out = torch.zeros(len(jobs), max_frames * layout.slots, dtype=torch.long, device=device)
    inputs, last = ids, position[:, -1:]
    for step in range(max_frames * layout.slots + 1):
        logits = model(
            input_ids=inputs, attention_mask=mask[alive], position_ids=position if step == 0 else last,
            past_key_values=cache, use_cache=True, logits_to_keep=1,
        ).logits[:, -1].float()  # fmt: skip
        if step == 0 and not bool(logits.isfinite().all()):
            raise ValueError("the model says no numbers: its weights are damaged, or its training ran away")
        slot = step % layout.slots
        first = layout.first_code + slot * layout.codes_per_slot
        choices = logits[:, first : first + layout.codes_per_slot]
        if repetition_penalty != 1.0 and step:
            used = torch.zeros_like(choices, dtype=torch.bool)
            used.scatter_(1, out[alive, slot : step : layout.slots], True) if step > slot else None
            choices = torch.where(
                used, torch.where(choices > 0, choices / repetition_penalty, choices * repetition_penalty), choices
            )
        if slot == 0:
            choices = torch.cat([choices, logits[:, layout.end_of_speech, None]], 1)
        if step == max_frames * layout.slots:
            ended[alive] |= choices.argmax(1) == layout.codes_per_slot
            break
        pick = draw(choices, temperature, top_p, generator)
        stop = pick == layout.codes_per_slot
        if slot == 0 and bool(stop.any()):
            ended[alive[stop]] = True
            keep = ~stop
            alive, pick, last = alive[keep], pick[keep], last[keep]
            if not len(alive):
                break
            cache.batch_select_indices(keep.nonzero()[:, 0])
        out[alive, step] = pick
        length[alive] = step + 1
        mask = torch.cat([mask, torch.ones(len(jobs), 1, dtype=mask.dtype, device=device)], 1)
        inputs, last = (pick + first)[:, None], last + 1
    codes, counts = out.cpu().numpy(), (length // layout.slots).tolist()
    said = [codes[i, : n * layout.slots].reshape(n, layout.slots) for i, n in enumerate(counts)]
    if begun:
        said = [np.concatenate([before, after]) for before, after in zip(begun, said, strict=True)]
    return [Spoken(c, e) for c, e in zip(said, ended.tolist(), strict=True)]


def draw(logits: torch.Tensor, temperature: float, top_p: float, generator: torch.Generator) -> torch.Tensor:
    """One index a row of logits [B, N]; temperature 0 is greedy, top-p keeps the smallest set that reaches it."""
    if temperature == 0:
        return logits.argmax(1)
    probabilities, order = (logits / temperature).softmax(1).sort(1, descending=True)
    probabilities[probabilities.cumsum(1) - probabilities > top_p] = 0
    return order.gather(1, torch.multinomial(probabilities, 1, generator=generator))[:, 0]
