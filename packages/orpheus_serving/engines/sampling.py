"""From hidden states to the next ids: which ids may follow, their logits, and the draw.

    hidden [n, hidden] --Candidates.logits--> [n, width] --draw--> columns [n] --Candidates.token--> ids

A frame's slots come in order, so only the `codes_per_slot` ids of one slot can follow, and the end of speech only where
a frame begins. `Candidates` computes the logits of those alone: a matrix product with a slice of the head instead of
all of it, and a sort of four thousand numbers instead of 157 thousand. Unconstrained, the one set is the vocabulary.

The draw inverts the cumulative distribution at one uniform number a row, which the request's own generator supplies.
So a seeded request draws the same ids in any company.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from orpheus_serving.engines.base import Sampling
from orpheus_serving.products import Product, product
from orpheus_serving.tokens import TokenLayout

# Below this, a temperature is greedy: dividing by it could overflow, and nothing but the best id is ever drawn.
GREEDY_BELOW = 1e-4


class Candidates:
    """The sets of ids that can follow, one a slot, and a logits matrix of one width for all of them.

    Constrained: `groups` is `layout.slots`; column c of group s stands for code c of slot s, and the last column for
    the end of speech (minus infinity but in group 0). Unconstrained: one group, and a column is an id.
    """

    def __init__(
        self, head: Tensor, layout: TokenLayout, constrained: bool, product: Callable[[Tensor], Product] = product
    ) -> None:
        """`head` [vocabulary, hidden]; `product` makes a product of a part of it."""
        self._layout = layout
        self._constrained = constrained
        if constrained:
            slots = [head[layout.token(slot, 0) : layout.token(slot, 0) + layout.codes_per_slot] for slot in range(layout.slots)]
            end = head[layout.end_of_speech : layout.end_of_speech + 1]
            parts = [torch.cat([slots[0], end]), *slots[1:]]
        else:
            parts = [head]
        self._products = [product(part) for part in parts]
        self.groups = len(parts)
        self.width = len(parts[0])

    def group(self, generated: int) -> int:
        """The group that can follow `generated` ids."""
        return generated % self.groups

    def logits(self, hidden: Tensor, groups: Sequence[int]) -> Tensor:
        """fp32 logits [n, width] of hidden [n, hidden], row i over group `groups[i]`."""
        if len(set(groups)) == 1:
            return self._padded(self._products[groups[0]](hidden).float())
        out = hidden.new_empty((len(groups), self.width), dtype=torch.float32)
        for group in set(groups):
            rows = [row for row, other in enumerate(groups) if other == group]
            out[rows] = self._padded(self._products[group](hidden[rows]).float())
        return out

    def _padded(self, logits: Tensor) -> Tensor:
        missing = self.width - logits.shape[1]
        return F.pad(logits, (0, missing), value=float("-inf")) if missing else logits

    def token(self, group: int, column: int) -> int:
        if not self._constrained:
            return column
        if column == self._layout.codes_per_slot:
            return self._layout.end_of_speech
        return self._layout.token(group, column)

    def place(self, token: int) -> tuple[int, int] | None:
        """The (group, column) of an id, None for one that can never follow."""
        if not self._constrained:
            return 0, token
        if token == self._layout.end_of_speech:
            return 0, self._layout.codes_per_slot
        if not self._layout.is_code(token):
            return None
        return self._layout.slot(token), self._layout.code(token)


def draw(logits: Tensor, seen: Tensor | None, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> list[int]:
    """One column a row.

    `logits` [n, width] fp32 (minus infinity: cannot be drawn), `seen` [n, width] bool: columns whose ids the row has
    had already (None where no row penalises them), `uniforms`: a number in [0, 1) a row. Each row by its own `Sampling`, in
    the usual order: repetition penalty, temperature, top-k, top-p. Top-k keeps exactly k (the lower column first among
    equals); top-p the shortest run of best ids whose probabilities reach it.

    On a CPU each row is drawn by numpy: the same rule, in a third of the calls and a fifth of their cost.
    """
    if logits.device.type == "cpu":
        marks = [None] * len(samplings) if seen is None else seen.numpy()
        return [_drawn(*row) for row in zip(logits.numpy(), marks, samplings, uniforms, strict=True)]
    return _drawn_together(logits, seen, samplings, uniforms)


def _drawn(logits: NDArray[np.float32], seen: NDArray[np.bool_] | None, sampling: Sampling, uniform: float) -> int:
    """The column of one row."""
    if seen is not None:
        penalty = np.float32(sampling.repetition_penalty)
        logits = np.where(seen, np.where(logits < 0, logits * penalty, logits / penalty), logits)
    if sampling.temperature < GREEDY_BELOW:
        return int(logits.argmax())
    columns = np.argsort(-logits, kind="stable")[: sampling.top_k or None]
    ranked = logits[columns].astype(np.float64)
    reached = np.exp((ranked - ranked[0]) / sampling.temperature).cumsum()
    kept = reached.searchsorted(sampling.top_p * reached[-1]) + 1
    rank = reached[:kept].searchsorted(uniform * reached[kept - 1], side="right")
    return int(columns[min(rank, kept - 1)])


def _drawn_together(logits: Tensor, seen: Tensor | None, samplings: Sequence[Sampling], uniforms: Sequence[float]) -> list[int]:
    """The columns of all rows, where they are: on a GPU."""
    greedy = [s.temperature < GREEDY_BELOW for s in samplings]
    settings = torch.tensor(
        [
            (
                s.repetition_penalty,
                1.0 if best else s.temperature,
                s.top_p,
                1 if best else s.top_k or logits.shape[1],
                u,
            )
            for s, best, u in zip(samplings, greedy, uniforms, strict=True)
        ],
        dtype=torch.float32,
    ).to(logits.device)
    penalty, temperature, top_p, top_k, uniform = settings[:, :, None].unbind(1)

    if seen is not None:
        penalised = torch.where(logits < 0, logits * penalty, logits / penalty)
        logits = torch.where(seen, penalised, logits)
    ranked, columns = torch.sort(logits / temperature, descending=True, stable=True)
    ranks = torch.arange(ranked.shape[1], device=ranked.device)
    probabilities = ranked.masked_fill(ranks >= top_k, float("-inf")).softmax(-1)
    reached = probabilities.cumsum(-1)
    # A rank stays if what comes before it has not reached top_p yet: the first always does.
    kept = ((reached - probabilities < top_p) & (probabilities > 0)).sum(-1, keepdim=True).clamp_(min=1)
    total = reached.gather(1, kept - 1)
    rank = (reached <= uniform * total).sum(-1, keepdim=True).minimum(kept - 1)
    drawn: list[int] = columns.gather(1, rank)[:, 0].tolist()
    return drawn
