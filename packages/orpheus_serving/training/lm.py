"""Train the small language model on prepared data: one GPU, time-boxed, resumable.

    parquet (voice, text, codes) -> documents -> packed rows [B, T] -> SmallLM, Muon + AdamW -> checkpoints -> export

Losses mislead here: the rate of misheard words goes on falling when validation loss rises. So weights are kept along the
way, dev sentences are spoken at each (`dev_NAME.npz`), and `evaluate --speech` tells which is understood best.
"""

from __future__ import annotations

import argparse
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .documents import answer_start, documents, joined, with_noise
from .progress import RunLog, TimeBox, load, save
from .sample import speak_codes
from .small_lm import LAYOUT, PAD, SAMPLING, Shape, SmallLM, export, make_tokenizer, to_hf
from .speech import Said, write_speech
from .store import read_prepared

NOISE = 0.03  # share of input codes replaced at random in training
LONGEST_S = 11.0  # of two utterances joined to one


def packed(docs: Sequence[np.ndarray], order: Sequence[int], batch: int, length: int) -> Iterator[list[torch.Tensor]]:
    """Batches of rows filled with whole documents: ids, document number (-1 is padding), position, target (-100: no
    loss).

    Loss is on speech alone: the prompt is given. Documents longer than a row are left out.
    """
    rows: list[tuple[np.ndarray, ...]] = []
    current: list[np.ndarray] = []
    used = 0

    def emit() -> None:
        ids, number = np.full(length, PAD, np.int64), np.full(length, -1, np.int64)
        position, target = np.zeros(length, np.int64), np.full(length, -100, np.int64)
        at = 0
        for j, doc in enumerate(current):
            span = slice(at, at + len(doc) - 1)
            ids[span], number[span], position[span] = doc[:-1], j, np.arange(len(doc) - 1)
            goal = doc[1:].astype(np.int64)
            goal[: answer_start(doc, LAYOUT) - 1] = -100
            target[span] = goal
            at += len(doc) - 1
        rows.append((ids, number, position, target))

    for i in order:
        need = len(docs[i]) - 1
        if need > length:
            continue
        if used + need > length:
            emit()
            current, used = [], 0
        current.append(docs[i])
        used += need
        if len(rows) == batch:
            yield [torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True)]
            rows = []


class Muon:
    """Momentum whose matrix updates are made orthogonal (Newton-Schulz), same-shaped matrices in one batch."""

    def __init__(self, params: Sequence[nn.Parameter], momentum: float = 0.95, decay: float = 0.01) -> None:
        self.groups: dict[torch.Size, list[nn.Parameter]] = {}
        for p in params:
            self.groups.setdefault(p.shape, []).append(p)
        self.buffers = {s: torch.zeros(len(g), *s, device=g[0].device) for s, g in self.groups.items()}
        self.momentum, self.decay = momentum, decay

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {str(tuple(s)): b for s, b in self.buffers.items()}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        for s, b in self.buffers.items():
            b.copy_(state[str(tuple(s))])

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            gradient = torch.stack([p.grad for p in group if p.grad is not None])
            buffer = self.buffers[shape].lerp_(gradient, 1 - self.momentum)
            update = orthogonal(gradient.lerp(buffer, self.momentum)) * max(1, shape[0] / shape[1]) ** 0.5
            weights: list[torch.Tensor] = list(group)
            torch._foreach_mul_(weights, 1 - rate * self.decay)
            torch._foreach_add_(weights, list(update.unbind(0)), alpha=-rate)


def orthogonal(g: torch.Tensor) -> torch.Tensor:
    """The nearest matrices with singular values about 1 (five steps of the quintic iteration). g [N, a, b]."""
    x = g.bfloat16() if g.is_cuda else g
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).float()


def train(args: argparse.Namespace) -> None:
    device = args.device
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = True
    shape = Shape(args.hidden, args.layers, args.heads, args.mlp)
    net = SmallLM(shape, args.dropout).to(device)
    matrices = [p for n, p in net.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in net.named_parameters() if p.ndim != 2 or "embed" in n]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda")
    if args.compile:  # layer by layer: one compilation serves them all
        for layer in net.model.layers:
            layer.compile()
        net.loss = torch.compile(net.loss)  # type: ignore[method-assign]

    rows = read_prepared(args.data)
    tokenizer = make_tokenizer()
    docs = documents(rows, tokenizer, LAYOUT)
    held = [d for i, d in enumerate(docs) if i % args.hold_every == 0]
    kept = [d for i, d in enumerate(docs) if i % args.hold_every]
    sources = [r for i, r in enumerate(rows) if i % args.hold_every]
    tokens = sum(len(d) for d in kept)
    print(f"{len(kept)} documents, {tokens / 1e6:.1f} M tokens, {len(held)} held out, "
          f"{sum(p.numel() for p in net.parameters()) / 1e6:.1f} M parameters", flush=True)  # fmt: skip

    path = args.out / "lm.pt"
    done = load(path, device)
    epoch = 0
    if done:
        net.load_state_dict(done["lm"])
        muon.load_state_dict(done["muon"])
        adam.load_state_dict(done["adam"])
        epoch = int(done["epoch"])
    elif args.start:
        from safetensors.torch import load_file

        net.load_state_dict({k: v.float() for k, v in load_file(args.start / "model.safetensors").items()})
    rng = np.random.default_rng(args.seed + epoch)
    feed: queue.Queue[list[torch.Tensor] | None] = queue.Queue(12)
    passes = [epoch]

    def fill() -> None:
        while passes[0] < args.epochs:
            single, pairs = joined(sources, args.join, LONGEST_S, rng)
            mixed = [kept[i] for i in single] + documents(pairs, tokenizer, LAYOUT)
            for batch in packed(mixed, rng.permutation(len(mixed)).tolist(), args.batch, args.length):
                feed.put([x.pin_memory() if device == "cuda" else x for x in batch])
            passes[0] += 1
        feed.put(None)

    threading.Thread(target=fill, daemon=True).start()
    validation = list(packed(held, range(len(held)), args.batch, args.length))[:4]

    @torch.no_grad()
    def check() -> float | None:
        if not validation:  # fewer utterances held out than fill a batch
            return None
        net.eval()
        losses = [net(*(x.to(device) for x in batch)).item() for batch in validation]
        net.train()
        return sum(losses) / len(losses)

    steps = min(args.steps, max(1, int(args.epochs * tokens / (args.batch * args.length * 0.93))))
    if args.compile:  # warm up before the clock starts, then undo it
        saved = {k: v.clone() for k, v in net.state_dict().items()}
        example = [
            x.to(device) for x in (validation[0] if validation else next(packed(kept, range(len(kept)), args.batch, args.length)))
        ]
        for _ in range(2):
            net(*example).backward()
        net.zero_grad(set_to_none=True)
        net.load_state_dict(saved)
        check()
    box = TimeBox(args.seconds, steps, *((done["spent"], done["step"]) if done else ()))
    log = RunLog(args.out, "lm", steps)
    dev = args.dev.read_text(encoding="utf-8").splitlines() if args.dev else []

    def checkpoint(target: Path) -> None:
        save(target, {
            "lm": net.state_dict(), "muon": muon.state_dict(), "adam": adam.state_dict(), "epoch": passes[0],
            "spent": box.spent, "step": box.step,
        })  # fmt: skip

    def snapshot(name: str) -> None:
        """Weights alone, and the dev sentences as this checkpoint speaks them."""
        save(args.out / f"lm_{name}.pt", {"lm": {k: v.half() for k, v in net.state_dict().items()}})
        if dev:
            jobs: list[tuple[str | None, str]] = [(v, s) for v in args.voices for s in dev]
            model = to_hf(net.state_dict(), shape).to(device)
            spoken = speak_codes(model, make_tokenizer(), LAYOUT, jobs, 0, **SAMPLING)  # type: ignore[arg-type]
            said = [Said(str(v), 0, t, s.codes, s.ended) for (v, t), s in zip(jobs, spoken, strict=True)]
            write_speech(args.out / f"dev_{name}.npz", said)

    marks = [m for m in args.snapshots if m > box.fraction]
    recent: list[torch.Tensor] = []
    while box.fraction < 1 and (batch := feed.get()) is not None:
        rate = box.rate(args.warmup, args.hold, 0.0)
        ids, number, position, target = (x.to(device, non_blocking=True) for x in batch)
        loss = net(with_noise(ids, NOISE, LAYOUT), number, position, target)
        loss.backward()
        nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(args.rate * rate)
        for group in adam.param_groups:
            group["lr"] = 2e-3 * rate
        adam.step()
        net.zero_grad(set_to_none=True)
        recent.append(loss.detach())
        box.step += 1
        if box.step % args.report == 0:
            held_loss = check() if box.step % (5 * args.report) == 0 else None
            log.log(box.step, loss=torch.stack(recent).mean().item(), held_out=held_loss, epoch=passes[0])
            recent = []
        if box.step % (20 * args.report) == 0:
            checkpoint(path)
        while marks and box.fraction >= marks[0]:
            snapshot(f"{int(100 * marks.pop(0))}")
    checkpoint(path)
    snapshot("last")
    log.log(box.step, loss=None, held_out=check(), epoch=passes[0])
    log.plot()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, nargs="+", help="parquet files of `prepare`")
    parser.add_argument("--out", type=Path, required=True, help="run folder: checkpoints, CSV, plots, dev speech")
    parser.add_argument("--start", type=Path, help="checkpoint folder whose weights to begin with")
    parser.add_argument("--dev", type=Path, help="sentences that each snapshot speaks")
    parser.add_argument("--seconds", type=float, default=400, help="time box")
    parser.add_argument("--steps", type=int, default=1_000_000, help="step limit")
    parser.add_argument("--epochs", type=int, default=12, help="passes over the data at most")
    parser.add_argument("--batch", type=int, default=40, help="rows a step")
    parser.add_argument("--length", type=int, default=1024, help="tokens a row; longer utterances are left out")
    parser.add_argument("--rate", type=float, default=0.015, help="learning rate of the matrices (Muon)")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--hold", type=float, default=0.35, help="share of the run at full rate before the linear decay")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--join", type=float, default=0.3, help="share of utterances that are joined in pairs, anew in each pass")
    parser.add_argument("--hidden", type=int, default=Shape.hidden)
    parser.add_argument("--layers", type=int, default=Shape.layers)
    parser.add_argument("--heads", type=int, default=Shape.heads)
    parser.add_argument("--mlp", type=int, default=Shape.mlp)
    parser.add_argument("--hold-every", type=int, default=200, help="every n-th utterance is for validation")
    parser.add_argument("--snapshots", type=float, nargs="*", default=[0.85], help="shares of the run to keep weights at")
    parser.add_argument("--report", type=int, default=50, help="steps between CSV lines")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--export", type=Path, help="no training: write the checkpoint --weights to this folder")
    parser.add_argument("--weights", default="lm_last.pt", help="which file of --out to export")
    parser.add_argument("--name", default="demo-voice")
    parser.add_argument("--voices", nargs="*", default=["ava", "ben"], help="those that snapshots speak and --export names")


def main(args: argparse.Namespace) -> None:
    if args.export:
        state = load(args.out / args.weights, "cpu")
        if state is None:
            raise FileNotFoundError(args.out / args.weights)
        export(state["lm"], Shape(args.hidden, args.layers, args.heads, args.mlp), args.export, args.name, args.voices)
    else:
        train(args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    main(parser.parse_args())
