"""Utterances as token ids: prompt, codes, end of speech. The one place where training builds what serving asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..tokens import TokenLayout
from .store import Prepared


def read_layout(tokens: dict[str, Any]) -> TokenLayout:
    """The `tokens` object of a checkpoint's `speech.json`."""
    fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in tokens.items()}
    return TokenLayout(**fields)


def documents(
    rows: Sequence[Prepared], tokenizer: Any, layout: TokenLayout, template: str = "{voice}: {text}"
) -> list[np.ndarray]:
    """Token ids [N] int32 of each row; `tokenizer` is a `tokenizers.Tokenizer`."""
    texts = [template.format(voice=r.voice, text=r.text) for r in rows]
    prompts = tokenizer.encode_batch(texts, add_special_tokens=False)
    offset = np.array(layout.firsts)
    result = []
    for prompt, row in zip(prompts, rows, strict=True):
        codes = row.codes.astype(np.int64)
        if codes.max(initial=0) >= layout.codes_per_slot:
            raise ValueError(f"code {codes.max()} in {row.text!r}: the data was prepared with another codec")
        speech = (codes + offset).reshape(-1).tolist()
        result.append(np.array([*layout.prompt_ids(prompt.ids), *speech, layout.end_of_speech], np.int32))
    return result


def joined(
    rows: Sequence[Prepared], share: float, longest_s: float, rng: np.random.Generator
) -> tuple[list[int], list[Prepared]]:
    """One pass over the rows in which a `share` of them are spoken in pairs: indices of the others, and the pairs.

    A pair is one utterance of one voice: texts and codes one after the other, at most `longest_s`. So every pass brings
    contexts that no other had, and silence after a sentence does not mean the end while there is text left to say.
    """
    pairs: list[Prepared] = []
    paired: set[int] = set()
    members: dict[str, list[int]] = {}
    for i in rng.permutation(len(rows))[: int(share * len(rows))].tolist():
        members.setdefault(rows[i].voice, []).append(i)
    for group in members.values():
        for i, j in zip(group[::2], group[1::2], strict=False):
            a, b = rows[i], rows[j]
            if a.text.endswith((".", "?", "!")) and a.seconds + b.seconds <= longest_s:
                pairs.append(Prepared(a.voice, f"{a.text} {b.text}", a.seconds + b.seconds, np.concatenate([a.codes, b.codes])))
                paired |= {i, j}
    return [i for i in range(len(rows)) if i not in paired], pairs


def answer_start(document: np.ndarray, layout: TokenLayout) -> int:
    """Index of the first id that the model has to say: the first code."""
    is_code = (document >= layout.first_code) & (document <= layout.last_code)
    return int(np.argmax(is_code))


def with_noise(ids: torch.Tensor, share: float, layout: TokenLayout) -> torch.Tensor:
    """A `share` of the codes swapped for random ones of the same slot: a model must survive its own slips. Any shape."""
    if share <= 0:
        return ids
    size = layout.codes_per_slot
    slot = (ids - layout.first_code).div(size, rounding_mode="floor")
    other = layout.first_code + slot * size + torch.randint(0, size, ids.shape, device=ids.device)
    is_code = (ids >= layout.first_code) & (ids <= layout.last_code)
    return torch.where(is_code & (torch.rand(ids.shape, device=ids.device) < share), other, ids)
