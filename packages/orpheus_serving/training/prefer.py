"""Make a voice unlearn its slips: where it was misheard, prefer the continuation that was understood.

    texts -> the model speaks them -> the recogniser listens -> misheard utterances, cut shortly before the first wrong word
                                        -> spoken on from there, several times -> the recogniser listens
                                        -> pairs (prompt, codes so far; better end; worse end)
    pairs + utterances that were understood -> preference training, held close to the model as it was

A slip is a decision of few codes: a word left out, an end said twice. Two ends of one beginning show which (direct
preference optimisation, Rafailov et al. 2023, arXiv:2305.18290, on the codes after the cut alone). The other utterances,
which were understood, keep the rest of the speech as it was. It needs texts and a recogniser: no recordings, no teacher.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from ..tokens import TokenLayout
from .codec_model import MelCodec, load_codec
from .corpus import SAMPLE_RATE
from .documents import answer_start, documents
from .guide import FRAME_S, SPEAK_BATCH, Reader, batches, distance
from .progress import RunLog
from .recognise import Recogniser, errors, words
from .sample import Spoken, speak_codes
from .store import Prepared, read_prepared, write_prepared
from .voice_folder import VoiceFolder

BACK_S = 0.4  # the cut lies so long before the first wrong word, whose place is only guessed from the letters before it
WINDOW_S = 15.0  # of the recogniser: utterances are shorter, and a quarter of the time is enough


@dataclass(frozen=True, slots=True)
class Attempt:
    """One utterance and how it was understood."""

    row: Prepared
    heard: str
    errors: int
    ended: bool  # it said something, and came to an end


def frames_before(attempt: Attempt) -> int:
    """Frames of an utterance that are kept: up to shortly before its first wrong word, by the share of letters before it."""
    heard = words(attempt.heard)
    right = 0
    for word, wanted in zip(heard, words(attempt.row.text), strict=False):
        if word != wanted:
            break
        right += 1
    letters = [len(word) + 1 for word in heard]
    seconds = len(attempt.row.codes) * FRAME_S * sum(letters[:right]) / max(1, sum(letters))
    return max(0, int((seconds - BACK_S) / FRAME_S))


class Speaker:
    """A model that speaks, and a recogniser that listens to it."""

    def __init__(
        self, model: Any, tokenizer: Any, layout: TokenLayout, codec: MelCodec, recogniser: Recogniser, sampling: dict[str, Any]
    ) -> None:
        self.model, self.tokenizer, self.layout = model, tokenizer, layout
        self.codec, self.recogniser, self.sampling = codec, recogniser, sampling

    @torch.no_grad()
    def judged(self, voice: str, text: str, said: Spoken) -> Attempt:
        row = Prepared(voice, text, len(said.codes) * FRAME_S, said.codes.astype(np.uint16))
        if not said.ended or not len(said.codes):
            return Attempt(row, "", len(words(text)), False)
        wave = self.codec.decode(torch.from_numpy(said.codes)[None].to(next(self.codec.parameters()).device))[0]
        heard = self.recogniser.hear(wave.float().cpu().numpy(), SAMPLE_RATE)
        return Attempt(row, heard, errors(words(text), words(heard)), True)

    def say(self, jobs: Sequence[tuple[str, str]], seed: int, begun: Sequence[np.ndarray] | None = None) -> list[Attempt]:
        """Speaks `jobs` (voice, text), or speaks on from the codes [F, 7] in `begun`; in the order of the jobs."""
        lengths = [len(t) + (len(begun[i]) if begun else 0) for i, (_, t) in enumerate(jobs)]
        order = np.argsort(lengths, kind="stable").tolist()
        size = SPEAK_BATCH[self.model.device.type]
        result: dict[int, Attempt] = {}
        for at in tqdm(range(0, len(order), size), desc="speak and listen"):
            picked = order[at : at + size]
            before = [begun[i] for i in picked] if begun else None
            said = speak_codes(
                self.model, self.tokenizer, self.layout, [jobs[i] for i in picked], seed + at, begun=before, **self.sampling
            )
            for i, spoken in zip(picked, said, strict=True):
                voice, text = jobs[i]
                result[i] = self.judged(voice, text, spoken)
        return [result[i] for i in range(len(jobs))]


def gather(
    speaker: Speaker, jobs: Sequence[tuple[str, str]], tries: int, seed: int
) -> tuple[list[tuple[Prepared, Prepared]], list[Attempt]]:
    """Pairs (better, worse) of one beginning for those of `jobs` (voice, text) that were misheard, and all first attempts."""
    attempts = speaker.say(jobs, seed)
    wrong = [a for a in attempts if a.errors and a.ended]
    again = [a for a in wrong for _ in range(tries)]
    begun = [a.row.codes[: frames_before(a)].astype(np.int64) for a in again]
    others = speaker.say([(a.row.voice, a.row.text) for a in again], seed + 500_000, begun)
    pairs = []
    for i, first in enumerate(wrong):
        group = [first, *(o for o in others[i * tries : (i + 1) * tries] if o.ended)]
        least = min(a.errors for a in group)
        good, bad = [a for a in group if a.errors == least], [a for a in group if a.errors > least]
        if bad:  # each is used
            pairs += [(good[j % len(good)].row, bad[j % len(bad)].row) for j in range(max(len(good), len(bad)))]
    return pairs, attempts


def shared(a: np.ndarray, b: np.ndarray) -> int:
    """Frames that two utterances [F, 7] have in common at their beginning."""
    short = min(len(a), len(b))
    differ = np.flatnonzero((a[:short] != b[:short]).any(1))
    return int(differ[0]) if len(differ) else short


class Scorer:
    """Log probability of utterances, of their codes after a place and of their end."""

    def __init__(self, tokenizer: Any, layout: TokenLayout, template: str) -> None:
        self.tokenizer, self.layout, self.template = tokenizer, layout, template

    def split(self, rows: Sequence[Prepared]) -> tuple[list[list[int]], list[list[int]]]:
        """Rows -> prompts and answers without the end of speech, as ids."""
        docs = [d.tolist() for d in documents(rows, self.tokenizer, self.layout, self.template)]
        starts = [answer_start(np.array(d), self.layout) for d in docs]
        return [d[:s] for d, s in zip(docs, starts, strict=True)], [d[s:-1] for d, s in zip(docs, starts, strict=True)]

    def __call__(self, read: Reader, rows: Sequence[Prepared], after: Sequence[int]) -> torch.Tensor:
        """[len(rows)] nats; `after`: from which frame on."""
        slots = read(*self.split(rows))
        total = torch.zeros(len(rows), device=slots[0].device)
        for slot, table in enumerate(slots):
            ends = slot == 0
            taken = [[*r.codes[:, slot].tolist(), *([self.layout.codes_per_slot] if ends else [])] for r in rows]
            picked = table.gather(1, torch.tensor([c for row in taken for c in row], device=table.device)[:, None])[:, 0]
            parts = picked.split([len(row) for row in taken])
            total = total + torch.stack([p[n:].sum() for p, n in zip(parts, after, strict=True)])
        return total


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    voice = VoiceFolder.open(args.start, args.device)
    model, tokenizer, layout = voice.model, voice.tokenizer, voice.layout
    args.out.mkdir(parents=True, exist_ok=True)

    kept, understood = args.out / "pairs.parquet", args.out / "understood.parquet"
    if not (kept.exists() and understood.exists()):
        sampling = {"temperature": args.temperature, "top_p": args.top_p}
        codec = load_codec(args.start / "codec", device=args.device)
        speaker = Speaker(model, tokenizer, layout, codec, Recogniser(args.recogniser, window_s=WINDOW_S), sampling)
        jobs = voice.jobs(args.texts, args.sentences, args.voices)
        found, attempts = gather(speaker, jobs, args.tries, args.seed)
        write_prepared(understood, [a.row for a in attempts if not a.errors])
        write_prepared(kept, [row for pair in found for row in pair])
    rows = read_prepared([kept])
    pairs = list(zip(rows[::2], rows[1::2], strict=True))
    good = read_prepared([understood])
    rng = np.random.default_rng(args.seed)
    texts = sorted({a.text for a, _ in pairs})
    held = set(rng.permutation(texts)[: args.held_out].tolist())
    dev, pairs = [p for p in pairs if p[0].text in held], [p for p in pairs if p[0].text not in held]
    print(f"{len(pairs)} pairs of {len(texts) - len(held)} texts, {len(dev)} held out, {len(good)} understood", flush=True)

    frozen, read = Reader(copy.deepcopy(model).requires_grad_(False), layout), Reader(model, layout)
    score = Scorer(tokenizer, layout, voice.template)
    adam = torch.optim.AdamW(model.parameters(), lr=args.rate, betas=(0.9, 0.95), weight_decay=0.0)
    a_pass = -(-len(pairs) // args.pairs)
    steps = a_pass * args.epochs
    log = RunLog(args.out, "prefer", steps)
    lengths = [np.zeros(len(r.text) + r.codes.size) for r in good]

    def preference(reader: Reader, batch: Sequence[tuple[Prepared, Prepared]]) -> torch.Tensor:
        """By how much the better end is more probable than the worse one, nats [len(batch)]."""
        after = [shared(a.codes, b.codes) for a, b in batch for _ in "ab"]
        scores = score(reader, [row for pair in batch for row in pair], after)
        return scores[::2] - scores[1::2]

    def all_preferences(reader: Reader, of: Sequence[tuple[Prepared, Prepared]]) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(args.device, torch.bfloat16):
            parts = [preference(reader, of[i : i + args.pairs]) for i in range(0, len(of), args.pairs)]
        return torch.cat(parts) if parts else torch.zeros(0, device=args.device)

    before, before_dev = all_preferences(frozen, pairs), all_preferences(frozen, dev)

    def endless() -> Any:
        while True:
            yield from batches(lengths, args.keep_tokens, rng)

    feed, step = endless(), 0
    for epoch in range(args.epochs):
        order = rng.permutation(len(pairs))
        for at in range(0, len(order), args.pairs):
            rate = args.rate * min(1.0, (step + 1) / args.warmup) * (1 - step / steps)
            for group in adam.param_groups:
                group["lr"] = rate
            with torch.autocast(args.device, torch.bfloat16):
                picked = order[at : at + args.pairs].tolist()
                more = preference(read, [pairs[i] for i in picked]) - before[picked]
                wish = -F.logsigmoid(args.beta * more).mean()
                wish.backward()
                prompts, answers = score.split([good[i] for i in next(feed)])
                with torch.no_grad():
                    goals = [c.exp() for c in frozen(prompts, answers)]
                moved = distance(read, prompts, answers, goals)
                (args.keep * moved).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            adam.zero_grad(set_to_none=True)
            step += 1
            log.log(step, loss=wish.item(), right=(more > 0).float().mean().item(), moved=moved.item())
        now = all_preferences(read, dev) - before_dev
        print(f"pass {epoch + 1}: held-out pairs gain {now.mean():.2f} nats, {(now > 0).float().mean():.0%} right", flush=True)
    log.plot()
    voice.save(args.out / "voice")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--start", type=Path, required=True, help="folder of the voice to begin with, codec/ included")
    parser.add_argument("--texts", type=Path, required=True, help="one sentence a line, as the text front end writes them")
    parser.add_argument("--recogniser", type=Path, help="faster-whisper model folder; not needed where --out holds the pairs")
    parser.add_argument("--out", type=Path, required=True, help="pairs.parquet, understood.parquet, prefer.csv and voice/")
    parser.add_argument("--voices", nargs="*", help="who speaks the texts, in turn; default: all of the checkpoint")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--tries", type=int, default=3, help="how often a misheard utterance is spoken again from the cut")
    parser.add_argument("--temperature", type=float, default=0.7, help="a little above serving: slips are what it looks for")
    parser.add_argument("--top-p", type=float, default=0.8)
    parser.add_argument("--beta", type=float, default=0.1, help="of the preference loss: small moves far")
    parser.add_argument("--keep", type=float, default=1.0, help="weight of the divergence on what was understood")
    parser.add_argument("--keep-tokens", type=int, default=2048, help="of those utterances, a step")
    parser.add_argument("--pairs", type=int, default=8, help="a step")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--held-out", type=int, default=10, help="texts whose pairs are only looked at")
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")


def main(args: argparse.Namespace) -> None:
    train(args)
