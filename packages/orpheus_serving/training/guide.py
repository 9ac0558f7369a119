"""Make a voice listen harder to its text: guidance, learnt once, so that speaking costs no more than before.

    texts -> the model speaks them -> contexts (prompt, codes so far)
                                        |-> frozen model, with the text:    c  [F, 7, N] log probabilities of a slot's codes
                                        |-> frozen model, without the text: u  [F, 7, N]
                                        `-> trained model, with the text   -> cross entropy with softmax(c + w (c - u))

A speech model that has seen few hours drops and blurs words, the last ones most of all: its next code follows from the
sound so far more than from the text. Guidance (Ho & Salimans 2022, arXiv:2207.12598; for language models Sanchez et al.
2023, arXiv:2306.17806) sharpens what the text changes, but takes two passes a token. Here one model learns to say by
itself what the pair would say (distillation: Meng et al. 2022, arXiv:2210.03142), in the contexts that its own speech leads
to. It needs texts alone: no recordings, no teacher. `--strength` is w above.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from ..tokens import TokenLayout
from .documents import answer_start, documents
from .progress import RunLog, TimeBox
from .sample import speak_codes
from .store import Prepared, read_prepared, write_prepared
from .voice_folder import VoiceFolder

FRAME_S = 2048 / 24000
SPEAK_BATCH = {"cpu": 64, "cuda": 512}  # a GPU takes as long for few as for many


def contexts(
    model: Any, tokenizer: Any, layout: TokenLayout, jobs: Sequence[tuple[str, str]], seed: int, sampling: dict[str, Any]
) -> list[Prepared]:
    """What the model says to `jobs` (voice, text), as rows for `documents`. Endless speech is cut off, and kept."""
    rows, size = [], SPEAK_BATCH[model.device.type]
    jobs = sorted(jobs, key=lambda job: len(job[1]))  # those of one length end together
    for at in tqdm(range(0, len(jobs), size), desc="speak"):
        batch = jobs[at : at + size]
        for (voice, text), said in zip(batch, speak_codes(model, tokenizer, layout, batch, seed + at, **sampling), strict=True):
            if len(said.codes):
                rows.append(Prepared(voice, text, len(said.codes) * FRAME_S, said.codes.astype(np.uint16)))
    return rows


class Reader:
    """Log probabilities of each next code, normalised over the codes of its slot (and the end of speech at slot 0)."""

    def __init__(self, model: Any, layout: TokenLayout) -> None:
        self.model, self.layout = model, layout
        codes = torch.arange(layout.codes_per_slot)
        self.choices = [layout.first_code + slot * layout.codes_per_slot + codes for slot in range(layout.slots)]
        self.choices[0] = torch.cat([self.choices[0], torch.tensor([layout.end_of_speech])])

    def __call__(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """Prompts and the codes after them -> for each slot [R, N or N + 1], document by document.

        R counts frames; slot 0 has one place more a document, where its speech ends.
        """
        device, slots = self.model.device, self.layout.slots
        rows = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        # Padded on the right, where a causal model never looks: no mask, so no place that may look at nothing, whose
        # gradient is no number in some of a GPU's attention kernels.
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state.flatten(0, 1)
        table = self.model.get_output_embeddings().weight
        begins = [n * width + len(prompt) - 1 for n, prompt in enumerate(prompts)]  # what is there says the first code
        result = []
        for slot, choices in enumerate(self.choices):
            lengths = [len(answer) + (slot == 0) for answer in answers]
            places = [at + n for at, length in zip(begins, lengths, strict=True) for n in range(slot, length, slots)]
            said = F.linear(hidden[torch.tensor(places, device=device)], table[choices.to(device)])
            result.append(said.float().log_softmax(-1))
        return result


@torch.no_grad()
def guided(
    read: Reader, prompts: list[list[int]], bare: list[list[int]], answers: list[list[int]], strength: float
) -> list[torch.Tensor]:
    """Probabilities that guidance gives, for each slot [R, N or N + 1]; `bare` are the prompts without their texts."""
    pairs = zip(read(prompts, answers), read(bare, answers), strict=True)
    return [(c + strength * (c - u)).softmax(-1) for c, u in pairs]


def distance(read: Reader, prompts: list[list[int]], answers: list[list[int]], goals: list[torch.Tensor]) -> torch.Tensor:
    """Mean divergence of the model from `goals`, nats a code."""
    said = read(prompts, answers)
    total = sum(F.kl_div(s, g, reduction="sum") for s, g in zip(said, goals, strict=True))
    return torch.as_tensor(total) / sum(len(s) for s in said)


def batches(docs: Sequence[np.ndarray], tokens: int, rng: np.random.Generator) -> Iterator[list[int]]:
    """Indices of documents of about one length, `tokens` a batch with padding; the batches in random order."""
    order = np.argsort([len(d) for d in docs], kind="stable").tolist()
    groups: list[list[int]] = [[]]
    for i in order:
        if groups[-1] and (len(groups[-1]) + 1) * len(docs[i]) > tokens:
            groups.append([])
        groups[-1].append(i)
    for at in rng.permutation(len(groups)).tolist():
        yield groups[at]


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    voice = VoiceFolder.open(args.start, args.device)
    model, tokenizer, layout, template = voice.model, voice.tokenizer, voice.layout, voice.template
    args.out.mkdir(parents=True, exist_ok=True)

    kept = args.out / "contexts.parquet"
    if kept.exists():
        rows = read_prepared([kept])
    else:
        jobs = voice.jobs(args.texts, args.sentences, args.voices)
        rows = contexts(model, tokenizer, layout, jobs, args.seed, voice.speech["sampling"] | {"max_frames": args.frames})
        write_prepared(kept, rows)
    docs = documents(rows, tokenizer, layout, template)
    empty = {r.voice: layout.prompt_ids(tokenizer.encode(template.format(voice=r.voice, text="")).ids) for r in rows}
    print(f"{len(docs)} utterances, {sum(r.seconds for r in rows) / 3600:.2f} h", flush=True)

    frozen = Reader(copy.deepcopy(model).requires_grad_(False).bfloat16(), layout)
    read = Reader(model, layout)
    adam = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    rng = np.random.default_rng(args.seed)
    size = args.batch * args.accumulate
    steps = max(1, int(args.epochs * sum(len(d) for d in docs) / size))
    box, log = TimeBox(args.seconds, steps), RunLog(args.out, "guide", steps)
    autocast = torch.autocast(args.device, torch.bfloat16)

    def endless() -> Iterator[list[int]]:
        while True:
            yield from batches(docs, args.batch, rng)

    feed = endless()
    while box.fraction < 1:
        rate = args.rate * min(1.0, (box.step + 1) / args.warmup) * (1 - box.fraction)
        for group in adam.param_groups:
            group["lr"] = rate
        losses = []
        for _ in range(args.accumulate):
            picked = next(feed)
            chosen = [docs[i].tolist() for i in picked]
            starts = [answer_start(docs[i], layout) for i in picked]
            prompts = [d[:s] for d, s in zip(chosen, starts, strict=True)]
            answers = [d[s:-1] for d, s in zip(chosen, starts, strict=True)]
            with autocast:
                goals = guided(frozen, prompts, [empty[rows[i].voice] for i in picked], answers, args.strength)
                loss = distance(read, prompts, answers, goals)
            (loss / args.accumulate).backward()
            losses.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)
        box.step += 1
        log.log(box.step, distance=sum(losses) / len(losses))
    log.plot()
    voice.save(args.out / "voice")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--start", type=Path, required=True, help="folder of the voice to begin with")
    parser.add_argument("--texts", type=Path, required=True, help="one sentence a line, as the text front end writes them")
    parser.add_argument("--out", type=Path, required=True, help="contexts.parquet, guide.csv and the folder voice/")
    parser.add_argument("--voices", nargs="*", help="who speaks the texts, in turn; default: all of the checkpoint")
    parser.add_argument("--sentences", type=int, default=4000)
    parser.add_argument("--frames", type=int, default=180, help="an utterance is at most so long")
    parser.add_argument("--strength", type=float, default=1.0, help="0 changes nothing, 1 doubles what the text changes")
    parser.add_argument("--seconds", type=float, default=3600, help="at most so long, speaking aside")
    parser.add_argument("--epochs", type=float, default=2)
    parser.add_argument("--batch", type=int, default=4096, help="tokens at once, prompts and padding included")
    parser.add_argument("--accumulate", type=int, default=2, help="batches a step")
    parser.add_argument("--rate", type=float, default=2e-4)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def main(args: argparse.Namespace) -> None:
    train(args)
