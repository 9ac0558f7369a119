"""Make a voice stop where it has said all: one row of its weights, learnt from what it half believes.

    texts -> the model speaks them -> where a frame begins: state h [n, hidden], log odds of the end of speech z [n]
          -> the first place of each utterance where the end has --belief or more: here it should end (1), before it not (0)
          -> change d [hidden] of the head's row of the end of speech: logistic regression of z + h d

A small voice now and then misses its end: there the end has a few per cent, something else is drawn, and the last words are said
once again. It thinks of the end nowhere else. In 320 utterances of the demo voice the end had more than 0.3 % at 9 places that
were not the last three frames, each in an utterance that went on saying too much, and none in the others. So no recogniser is
needed to tell where an utterance should have ended, and a linear rule tells those places from all others.

The logits of all codes stay as they are. Where head and embedding are one table, the row is an embedding as well, but the end
of speech is never read: it must not be in the prompt.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from ..tokens import TokenLayout
from .documents import answer_start, documents
from .guide import contexts
from .store import Prepared, read_prepared, write_prepared
from .voice_folder import VoiceFolder

LAST_FRAMES = 3  # an end so near to the real one is that one: a voice closes with a little silence


@dataclass(frozen=True, slots=True)
class Places:
    """Where the frames of an utterance begin, up to and with the one at which it should have ended."""

    states: Tensor  # [n, hidden]
    odds: Tensor  # [n], log odds of the end of speech against all codes of the slot
    missed: bool  # it went on all the same

    @property
    def ends(self) -> Tensor:
        """[n] 1 where it should end, else 0"""
        return F.one_hot(torch.tensor(len(self.odds) - 1), len(self.odds)).float()


def places(states: Tensor, odds: Tensor, belief: float) -> Places | None:
    """Of all frames of an utterance, its end included; None for one that never thinks of its end."""
    believed = (odds.sigmoid() >= belief).nonzero()[:, 0]
    if not len(believed):
        return None
    count = int(believed[0]) + 1
    return Places(states[:count], odds[:count], missed=len(odds) - count > LAST_FRAMES)


@torch.no_grad()
def look(model: Any, layout: TokenLayout, doc: np.ndarray) -> tuple[Tensor, Tensor]:
    """An utterance as ids (prompt, codes, end of speech) -> states [frames + 1, hidden] and log odds of the end [frames + 1]."""
    start = answer_start(doc, layout)
    ids = torch.from_numpy(doc[None, :-1].astype(np.int64)).to(model.device)
    states = model.model(input_ids=ids, use_cache=False).last_hidden_state[0, start - 1 :: layout.slots].float()
    table = model.get_output_embeddings().weight.float()
    codes = states @ table[layout.first_code : layout.first_code + layout.codes_per_slot].T
    return states.cpu(), (states @ table[layout.end_of_speech] - codes.logsumexp(1)).cpu()


def fit(utterances: Sequence[Places], hold: float) -> Tensor:
    """The change [hidden] of the row of the end of speech. hold: weight of the mean square of what it does to the odds."""
    states = torch.cat([u.states for u in utterances])
    odds, ends = torch.cat([u.odds for u in utterances]), torch.cat([u.ends for u in utterances])
    change = torch.zeros(states.shape[1], requires_grad=True)
    search = torch.optim.LBFGS([change], max_iter=300, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        search.zero_grad()
        more = states @ change
        wrong = F.binary_cross_entropy_with_logits(odds + more, ends, reduction="sum") / len(utterances)
        total = wrong + hold * more.square().mean()
        total.backward()
        return total

    search.step(loss)
    return change.detach()


def told(utterances: Sequence[Places], change: Tensor) -> str:
    """What a change of the row does, for people."""
    missed = [u for u in utterances if u.missed]
    before = [float(u.odds[-1].sigmoid()) for u in missed]
    after = [float((u.odds[-1] + u.states[-1] @ change).sigmoid()) for u in missed]
    early = [float((u.odds[:-1] + u.states[:-1] @ change).sigmoid().max()) for u in utterances if len(u.odds) > 1]
    text = f"{len(utterances)} utterances, {len(missed)} missed their end"
    if missed:
        text += f", which had {np.median(before):.0%} (median) there and has {np.median(after):.0%} now"
    return text + f"; {sum(p >= 0.1 for p in early)} would rather end earlier"


def train(args: argparse.Namespace) -> None:
    voice = VoiceFolder.open(args.start, args.device)
    model, tokenizer, layout = voice.model, voice.tokenizer, voice.layout
    if layout.end_of_speech in (*layout.prompt_before, *layout.prompt_after):
        raise ValueError(f"{args.start}/speech.json: the end of speech is in the prompt too, which would change with its row")
    args.out.mkdir(parents=True, exist_ok=True)

    kept = args.out / "contexts.parquet"
    if not kept.exists():
        jobs, sampling = (
            voice.jobs(args.texts, args.sentences, args.voices),
            voice.speech["sampling"] | {"max_frames": args.frames},
        )
        write_prepared(kept, contexts(model, tokenizer, layout, jobs, args.seed, sampling))
    rows: list[Prepared] = [row for row in read_prepared([kept]) if len(row.codes) < args.frames]  # those have an end
    docs = documents(rows, tokenizer, layout, voice.template)
    seen = [places(*look(model, layout, doc), args.belief) for doc in tqdm(docs, desc="look")]
    utterances = [u for u in seen if u is not None]
    if not utterances:
        raise ValueError(f"--belief {args.belief:g}: in {len(docs)} utterances the end of speech never has that much; give less")
    held = len(utterances) // 10
    order = np.random.default_rng(args.seed).permutation(len(utterances)).tolist()
    dev, learnt = [utterances[i] for i in order[:held]], [utterances[i] for i in order[held:]]
    change = fit(learnt, args.hold)
    print(f"learnt from: {told(learnt, change)}\nheld out: {told(dev, change)}", flush=True)

    with torch.no_grad():
        model.get_output_embeddings().weight[layout.end_of_speech] += change.to(args.device)
    voice.save(args.out / "voice")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--start", type=Path, required=True, help="folder of the voice to begin with")
    parser.add_argument("--texts", type=Path, required=True, help="one sentence a line, as the text front end writes them")
    parser.add_argument("--out", type=Path, required=True, help="contexts.parquet and the folder voice/")
    parser.add_argument("--voices", nargs="*", help="who speaks the texts, in turn; default: all of the checkpoint")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--frames", type=int, default=180, help="an utterance is at most so long")
    parser.add_argument("--belief", type=float, default=0.005, help="probability of the end that is taken for the end")
    parser.add_argument("--hold", type=float, default=1e-3, help="how strongly the row is held to what it was")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def main(args: argparse.Namespace) -> None:
    train(args)
