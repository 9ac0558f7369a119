"""Teach a voice to a model that exists: LoRA or full fine-tuning on prepared data, merged and exported.

    checkpoint + parquet of the new voice (+ parquet of the old ones, rehearsed) -> training -> merged checkpoint,
    ready to serve

The same code serves the demo voice and an Orpheus 3B checkpoint: layout, prompt and voices come from the folder's
`speech.json`, or are Orpheus' own where there is none. The new voice is a name in the prompt, so nothing else changes.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ..tokens import TokenLayout
from .documents import answer_start, documents, read_layout, with_noise
from .progress import RunLog, load, save
from .store import Prepared, read_prepared

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def read_speech(folder: Path) -> tuple[TokenLayout, str, dict[str, Any] | None]:
    """Layout, prompt template and the whole of `speech.json` (None where the folder has none: Orpheus' defaults)."""
    path = folder / "speech.json"
    if not path.exists():
        return TokenLayout(), "{voice}: {text}", None
    speech = json.loads(path.read_text(encoding="utf-8"))
    layout = read_layout(speech["tokens"])
    return layout, speech["prompt"]["with_voice"], speech


def batches(
    docs: Sequence[np.ndarray], layout: TokenLayout, tokens: int, rng: np.random.Generator
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(ids, targets) [B, T], right-padded, of like lengths, about `tokens` ids each; -100 where there is no loss.

    Right padding needs no mask: attention is causal, and nothing is asked at the padding.
    """
    jittered = sorted(range(len(docs)), key=lambda i: len(docs[i]) * (1 + 0.1 * rng.random()))
    groups: list[list[int]] = [[]]
    for i in jittered:
        if groups[-1] and (len(groups[-1]) + 1) * len(docs[i]) > tokens:
            groups.append([])
        groups[-1].append(i)
    for g in rng.permutation(len(groups)):
        width = max(len(docs[i]) for i in groups[g])
        ids = np.full((len(groups[g]), width), layout.end_of_speech, np.int64)
        target = np.full((len(groups[g]), width), -100, np.int64)
        for row, i in enumerate(groups[g]):
            ids[row, : len(docs[i])] = docs[i]
            start = answer_start(docs[i], layout)
            target[row, start : len(docs[i])] = docs[i][start:]
        yield torch.from_numpy(ids[:, :-1]), torch.from_numpy(target[:, 1:])


def with_lora(model: Any, rank: int, alpha: float, dropout: float) -> Any:
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=rank,
        lora_alpha=alpha,
        lora_dropout=dropout,
        target_modules=PROJECTIONS,
        task_type="CAUSAL_LM",
        use_rslora=True,
    )
    return get_peft_model(model, config)


def shuffled(rows: Sequence[Prepared], seed: int) -> list[Prepared]:
    """Prepared data comes in order of length, and neither validation nor rehearsal is about the short ones alone."""
    return [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]


def rehearsal(paths: Sequence[Path], hours: float, seed: int) -> list[Prepared]:
    """Utterances of the voices that the model knows already, so that it goes on knowing them."""
    if not paths or hours <= 0:
        return []
    rows = shuffled(read_prepared(paths), seed)
    seconds = np.cumsum([r.seconds for r in rows])
    return rows[: int(np.searchsorted(seconds, hours * 3600)) + 1]


def stored_dtype(folder: Path) -> torch.dtype:
    """The precision that a checkpoint's weights are kept in; float16 where its config does not say."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    dtype: torch.dtype = getattr(torch, config.get("dtype") or config.get("torch_dtype") or "float16")
    return dtype


def train(args: argparse.Namespace) -> None:
    from tokenizers import Tokenizer
    from transformers import AutoModelForCausalLM

    torch.manual_seed(args.seed)
    layout, template, _ = read_speech(args.checkpoint)
    tokenizer = Tokenizer.from_file(str(args.checkpoint / "tokenizer.json"))
    rows = [r for r in read_prepared(args.data) if args.voice is None or r.voice == args.voice]
    if not rows:
        raise ValueError(f"--data holds no utterance of voice {args.voice!r}")
    rows = shuffled(rows, args.seed)
    docs = documents(rows + rehearsal(args.rehearse, args.rehearse_hours, args.seed), tokenizer, layout, template)
    docs = [d for d in docs if len(d) <= args.length]
    held, kept = docs[: args.held_out], docs[args.held_out :]
    if not kept:
        raise ValueError(
            f"--data: {len(docs)} utterances, and --held-out keeps {args.held_out} of them: give more, or hold out fewer"
        )
    print(f"{len(kept)} utterances, {sum(r.seconds for r in rows) / 60:.1f} min of the new voice, {len(held)} held out")

    # LoRA leaves bfloat16 weights as they are; others become float32, which neither rounds nor overflows.
    frozen = args.mode == "lora" and stored_dtype(args.checkpoint) == torch.bfloat16
    dtype = torch.bfloat16 if frozen else torch.float32
    model = AutoModelForCausalLM.from_pretrained(args.checkpoint, dtype=dtype).to(args.device)
    if args.mode == "lora":
        model = with_lora(model, args.rank, args.alpha, args.dropout)
        for p in model.parameters():
            p.data = p.data.float() if p.requires_grad else p.data
    params = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(params, lr=args.rate, betas=(0.9, 0.95), weight_decay=args.decay)
    state_path = args.out / "finetune.pt"
    done = load(state_path, args.device)
    first_epoch, step = 0, 0
    if done:
        for p, value in zip(params, done["params"], strict=True):
            p.data.copy_(value)
        optimiser.load_state_dict(done["optimiser"])
        first_epoch, step = done["epoch"], done["step"]
    a_pass = sum(1 for _ in batches(kept, layout, args.tokens, np.random.default_rng(0)))
    total = a_pass * args.epochs
    log = RunLog(args.out, "finetune", total)

    def loss_of(ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.autocast(args.device, torch.bfloat16):
            logits = model(input_ids=ids.to(args.device)).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), target.to(args.device).flatten(), ignore_index=-100)

    @torch.no_grad()
    def check() -> float:
        model.eval()
        losses = [loss_of(*b).item() for b in batches(held, layout, args.tokens, np.random.default_rng(0))]
        model.train()
        return sum(losses) / max(1, len(losses))

    model.train()
    for epoch in range(first_epoch, args.epochs):
        for ids, target in batches(kept, layout, args.tokens, np.random.default_rng(args.seed + epoch)):
            warm = min(1.0, (step + 1) / max(1, args.warmup))
            for group in optimiser.param_groups:
                group["lr"] = args.rate * warm * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1, step / total))))
            loss = loss_of(with_noise(ids, args.noise, layout), target)
            loss.backward()
            nn.utils.clip_grad_norm_(params, 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            step += 1
            if step % args.report == 0:
                log.log(step, loss=loss.item(), held_out=None, epoch=epoch)
        log.log(step, loss=loss.item(), held_out=check(), epoch=epoch + 1)
        save(state_path, {
            "params": [p.data for p in params], "optimiser": optimiser.state_dict(), "epoch": epoch + 1, "step": step,
        })  # fmt: skip
    log.plot()
    if args.mode == "lora":
        model.save_pretrained(args.out / "adapter")
        model = model.merge_and_unload()
    export(model, args, sorted({r.voice for r in rows}))


def export(model: Any, args: argparse.Namespace, voices: Sequence[str]) -> None:
    """A folder that serves: merged weights in the source's precision, tokenizer, codec, `speech.json` with the names."""
    target = args.out / "checkpoint"
    target.mkdir(parents=True, exist_ok=True)
    model.to(stored_dtype(args.checkpoint)).save_pretrained(target)
    (target / "generation_config.json").unlink(missing_ok=True)
    _, _, speech = read_speech(args.checkpoint)
    names = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "mel_encoder.safetensors", "LICENSE"]
    for name in names:
        if (args.checkpoint / name).exists():
            shutil.copy(args.checkpoint / name, target / name)
    if (args.checkpoint / "codec").is_dir():
        shutil.copytree(args.checkpoint / "codec", target / "codec", dirs_exist_ok=True)
    if speech is not None:
        speech["voices"] |= {voice: speech["voices"].get(voice, {}) for voice in voices}
        (target / "speech.json").write_text(json.dumps(speech, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {target}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", type=Path, required=True, help="folder of the model to start from")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="parquet of the new voice (see prepare)")
    parser.add_argument("--voice", help="the new voice's name in the prompt; default: every voice in --data")
    parser.add_argument("--rehearse", type=Path, nargs="*", default=[], help="parquet of voices the model should keep")
    parser.add_argument("--rehearse-hours", type=float, default=0.25)
    parser.add_argument("--out", type=Path, required=True, help="run folder; the result is OUT/checkpoint")
    parser.add_argument("--mode", choices=["lora", "full"], default="lora")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--alpha", type=float, default=32)
    parser.add_argument("--dropout", type=float, default=0.05)
    parser.add_argument("--rate", type=float, default=5e-4, help="peak learning rate (full: try 5e-5)")
    parser.add_argument("--decay", type=float, default=0.0, help="weight decay")
    parser.add_argument("--noise", type=float, default=0.03, help="share of codes replaced at random in training")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=8192, help="ids in a batch")
    parser.add_argument("--length", type=int, default=2048, help="longer utterances are left out")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--held-out", type=int, default=16, help="utterances of the new voice kept for validation")
    parser.add_argument("--report", type=int, default=10, help="steps between CSV lines")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)


def main(args: argparse.Namespace) -> None:
    train(args)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    main(parser.parse_args())
