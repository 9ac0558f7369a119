"""Train the codec: codes first, then the decoder, then an adversarial polish. One GPU, time-boxed, resumable.

quantiser   mel -> MelEncoder -> residual VQ -> MelDecoder -> mel, L1; codebooks by moving averages; then frozen
wave        SNAC's waveform encoder, taught to give the mel encoder's latents (optional: serving and preparing do not
need it)
decoder     wave -> frozen codes -> SNAC decoder -> wave; multi-scale mel and magnitude losses, and for the second
            half discriminators on spectra and periods as well
export      codec/config.json + pytorch_model.bin (SNAC's format) and mel_encoder.safetensors
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from .codec_model import FRAME, SNAC_CONFIG, MelCodec, MelDecoder, log_mel, mel_filters, quantise, spectrum
from .corpus import read_audio
from .progress import RunLog, TimeBox, load, save

SCALES = [(2048, 150), (1024, 100), (512, 64), (256, 32), (128, 16)]  # (FFT size, mel bands) of the decoder's loss
MARGIN = 3  # frames of context on each side when a segment is encoded: the mel encoder sees 2.6


class Segments:
    """Random stretches of a corpus, kept whole on the device."""

    def __init__(self, folders: list[Path], device: str) -> None:
        self.audio = torch.cat([torch.from_numpy(np.array(read_audio(folder))).to(device) for folder in folders])

    def draw(self, batch: int, samples: int) -> torch.Tensor:
        """[batch, samples] float32 in -1 .. 1."""
        start = torch.randint(0, len(self.audio) - samples, (batch, 1), device=self.audio.device)
        picked = self.audio[start + torch.arange(samples, device=self.audio.device)]
        return picked.float() / 32768


class Codebook:
    """One level's codebook, learned by moving averages on the unit sphere; `warm`: latents pass unquantised."""

    def __init__(self, level: Any) -> None:
        self.level = level
        self.size, self.dim = level.codebook.weight.shape
        level.codebook.weight.requires_grad_(False)
        device = level.codebook.weight.device
        self.uses = torch.zeros(self.size, device=device)
        self.sums = torch.zeros(self.size, self.dim, device=device)
        self.warm = True

    def state(self) -> dict[str, Any]:
        return {"uses": self.uses, "sums": self.sums, "warm": self.warm}

    def restore(self, state: dict[str, Any]) -> None:
        self.uses, self.sums, self.warm = state["uses"], state["sums"], state["warm"]

    def quantise(self, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """residual [B, C, N] -> the part this level explains [B, C, N], codes, unit latents [M, D], commitment loss."""
        level = self.level
        z = F.avg_pool1d(residual, level.stride, level.stride) if level.stride > 1 else residual
        unit = F.normalize(level.in_proj(z), dim=1)
        flat = unit.transpose(1, 2).reshape(-1, self.dim)
        with torch.no_grad():
            codes = (flat @ level.codebook.weight.T).argmax(1)
            chosen = level.codebook.weight[codes].view(len(z), -1, self.dim).transpose(1, 2)
        commitment = F.mse_loss(unit, chosen) * self.dim
        through = unit if self.warm else unit + (chosen - unit).detach()
        out = level.out_proj(through)
        return out.repeat_interleave(level.stride, -1), codes, flat.detach(), commitment

    @torch.no_grad()
    def start(self, samples: torch.Tensor) -> None:
        """k-means on samples [M, D], then quantise from now on."""
        pick = torch.randint(0, len(samples), (self.size,), device=samples.device)
        centres = samples[pick].clone()
        for _ in range(10):
            nearest = (samples @ centres.T).argmax(1)
            sums = torch.zeros_like(centres).index_add_(0, nearest, samples)
            count = torch.bincount(nearest, minlength=self.size).float()[:, None]
            spare = samples[torch.randint(0, len(samples), (self.size,), device=samples.device)]
            centres = F.normalize(torch.where(count > 0, sums, spare))
        self.level.codebook.weight.copy_(centres)
        self.uses.fill_(10.0)
        self.sums.copy_(centres * 10)
        self.warm = False

    @torch.no_grad()
    def update(self, samples: torch.Tensor, codes: torch.Tensor, revive: bool, decay: float = 0.98) -> None:
        count = torch.bincount(codes, minlength=self.size).float()
        self.uses.mul_(decay).add_(count, alpha=1 - decay)
        self.sums.mul_(decay).index_add_(0, codes, samples, alpha=1 - decay)
        self.level.codebook.weight.copy_(F.normalize(self.sums))
        if revive:  # codes that almost nothing uses start again at a random sample
            mean = self.uses.mean()
            dead = self.uses < 0.03 * mean
            fresh = samples[torch.randint(0, len(samples), (self.size,), device=samples.device)]
            self.level.codebook.weight.copy_(torch.where(dead[:, None], fresh, self.level.codebook.weight))
            self.sums.copy_(torch.where(dead[:, None], fresh * mean, self.sums))
            self.uses.copy_(torch.where(dead, mean, self.uses))

    def perplexity(self) -> float:
        p = self.uses / self.uses.sum().clamp(min=1e-6)
        return float(torch.exp(-(p * (p + 1e-9).log()).sum()))


def train_quantiser(args: argparse.Namespace) -> None:
    device = args.device
    torch.manual_seed(args.seed)
    segments = Segments(args.corpus, device)
    codec, mel_decoder = MelCodec(SNAC_CONFIG).to(device), MelDecoder().to(device)
    books = [Codebook(level) for level in codec.snac.quantizer.quantizers]
    modules: list[nn.Module] = [codec.mel_encoder, codec.snac.quantizer, mel_decoder]
    params = [p for m in modules for p in m.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.98), weight_decay=1e-3)
    path = args.out / "quantiser.pt"
    done = load(path, device)
    if done:
        codec.load_state_dict(done["codec"])
        mel_decoder.load_state_dict(done["mel_decoder"])
        optimiser.load_state_dict(done["optimiser"])
        for book, state in zip(books, done["books"], strict=True):
            book.restore(state)
    box = TimeBox(args.seconds, args.steps, *((done["spent"], done["step"]) if done else ()))
    log = RunLog(args.out, "quantiser", args.steps)

    def checkpoint() -> None:
        save(path, {
            "codec": codec.state_dict(), "mel_decoder": mel_decoder.state_dict(), "optimiser": optimiser.state_dict(),
            "books": [b.state() for b in books], "spent": box.spent, "step": box.step,
        })  # fmt: skip

    warm = min(300, args.steps // 4)
    while box.fraction < 1:
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * box.rate(100, 0.4, 0.05)
        mel = log_mel(segments.draw(args.batch, 16 * FRAME))
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            latents = codec.mel_encoder(mel)
        residual = latents.float()
        total, commitment, seen = torch.zeros_like(residual), torch.zeros((), device=device), []
        for book in books:
            part, codes, samples, commit = book.quantise(residual)
            total, residual = total + part, residual - part
            seen.append((samples, codes))
            if not book.warm:
                commitment = commitment + commit
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            rebuilt = mel_decoder(total)
        error = F.l1_loss(rebuilt.float(), mel)
        optimiser.zero_grad(set_to_none=True)
        (error + 0.05 * commitment).backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimiser.step()
        for k, (book, (samples, codes)) in enumerate(zip(books, seen, strict=True)):
            if not book.warm:
                book.update(samples, codes, revive=box.step % 20 == 10 and box.fraction < 0.7)
            elif box.step >= warm + 2 * k:  # one level after another, each on what the levels before it leave
                book.start(samples)
        box.step += 1
        if box.step % args.report == 0:
            uses = {f"perplexity_{k}": book.perplexity() for k, book in enumerate(books)}
            log.log(box.step, mel_l1=error.item(), commitment=float(commitment), **uses)
        if box.step % (20 * args.report) == 0:
            checkpoint()
    checkpoint()
    log.plot()


def spectral_loss(fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """L1 of log mels plus a tenth of L1 of magnitudes, over five resolutions; waves [B, T]."""
    loss = torch.zeros((), device=fake.device)
    for n_fft, mels in SCALES:
        filters = mel_filters(n_fft, mels, str(fake.device))
        a, b = (spectrum(w, n_fft, n_fft // 4).abs().clamp(1e-5) for w in (fake, real))
        loss = loss + F.l1_loss((filters @ a).clamp(1e-5).log10(), (filters @ b).clamp(1e-5).log10())
        loss = loss + 0.1 * F.l1_loss(a, b)
    return loss


class SpectrumJudge(nn.Module):
    """Sees the complex spectrum as an image: [B, T] -> score map and the layers' outputs."""

    def __init__(self, n_fft: int, width: int = 32) -> None:
        super().__init__()
        self.n_fft = n_fft
        self.layers = nn.ModuleList(
            [nn.Conv2d(2, width, (7, 5), (2, 1), (3, 2))]
            + [nn.Conv2d(width, width, (5, 3), (2, 1), (2, d), (1, d)) for d in (1, 2, 4)]
            + [nn.Conv2d(width, width, 3, 1, 1)]
        )
        self.score = nn.Conv2d(width, 1, 3, 1, 1)

    def forward(self, wave: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        s = spectrum(wave, self.n_fft, self.n_fft // 4) * self.n_fft**-0.5
        return judge_through(torch.stack([s.real, s.imag], 1), self.layers, self.score)


class PeriodJudge(nn.Module):
    """Sees every p-th sample side by side: [B, T] -> score map and the layers' outputs."""

    def __init__(self, period: int) -> None:
        super().__init__()
        self.period = period
        widths = [1, 16, 64, 128, 256]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, (5, 1), (3, 1), (2, 0)) for a, b in pairwise(widths))
        self.score = nn.Conv2d(widths[-1], 1, (3, 1), 1, (1, 0))

    def forward(self, wave: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        usable = wave[:, : wave.shape[1] // self.period * self.period]
        return judge_through(usable.unflatten(1, (-1, self.period))[:, None], self.layers, self.score)


def judge_through(x: torch.Tensor, layers: nn.ModuleList, score: nn.Module) -> tuple[torch.Tensor, list[torch.Tensor]]:
    seen = []
    for layer in layers:
        x = F.leaky_relu(layer(x), 0.1)
        seen.append(x)
    return score(x), seen


def make_judges() -> nn.ModuleList:
    judges: list[nn.Module] = [SpectrumJudge(n) for n in (2048, 1024, 512)]
    return nn.ModuleList(judges + [PeriodJudge(p) for p in (2, 3, 5, 7, 11)])


def train_decoder(args: argparse.Namespace) -> None:
    device = args.device
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    segments = Segments(args.corpus, device)
    codec, judges = MelCodec(SNAC_CONFIG).to(device), make_judges().to(device)
    quantiser = load(args.out / "quantiser.pt", device)
    if quantiser is None:
        raise FileNotFoundError(f"{args.out}/quantiser.pt: train the quantiser stage first")
    codec.load_state_dict(quantiser["codec"])
    codec.requires_grad_(False)  # codes must not move any more: language models are trained on them
    decoder = codec.snac.decoder.requires_grad_(True)
    params = list(decoder.parameters())
    optimiser = torch.optim.AdamW(params, lr=1e-3, betas=(0.8, 0.99), weight_decay=1e-3, fused=device == "cuda")
    judge_opt = torch.optim.AdamW(judges.parameters(), lr=2e-4, betas=(0.8, 0.99), fused=device == "cuda")
    path = args.out / "decoder.pt"
    done = load(path, device)
    if done:
        decoder.load_state_dict(done["decoder"])
        judges.load_state_dict(done["judges"])
        optimiser.load_state_dict(done["optimiser"])
        judge_opt.load_state_dict(done["judge_opt"])
    box = TimeBox(args.seconds, args.steps, *((done["spent"], done["step"]) if done else ()))
    log = RunLog(args.out, "decoder", args.steps)

    def checkpoint(target: Path) -> None:
        save(target, {
            "decoder": decoder.state_dict(), "judges": judges.state_dict(), "optimiser": optimiser.state_dict(),
            "judge_opt": judge_opt.state_dict(), "spent": box.spent, "step": box.step,
        })  # fmt: skip

    inner, edge = args.frames * FRAME, MARGIN * FRAME
    polishing = bool(done) and box.fraction >= args.polish_from
    while box.fraction < 1:
        if not polishing and box.fraction >= args.polish_from:
            polishing = True
            checkpoint(args.out / "decoder_unpolished.pt")
        f, start = box.fraction, args.polish_from
        rate = 1e-3 * (1 if f < 0.6 * start else max(0.25, 1 - (f - 0.6 * start) / (0.4 * start) * 0.75))
        if polishing:
            rate = 2.5e-4 * max(0.05, (1 - f) / max(1e-6, 1 - start))
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1, (box.step + 1) / 200)
        wave = segments.draw(args.batch, inner + 2 * edge)
        frames = codec.encode(wave)
        # one frame of context on each side: the loss looks at samples that a long stream would have
        fake = codec.decode(frames[:, MARGIN - 1 : 1 - MARGIN])[:, FRAME:-FRAME]
        real = wave[:, edge:-edge]
        values: dict[str, float] = {}
        if polishing:
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                on_real, on_fake = [j(real) for j in judges], [j(fake.detach()) for j in judges]
            judge_loss = torch.stack([
                (F.relu(1 - r.float()).mean() + F.relu(1 + g.float()).mean())
                for (r, _), (g, _) in zip(on_real, on_fake, strict=True)
            ]).mean()  # fmt: skip
            judge_opt.zero_grad(set_to_none=True)
            judge_loss.backward()
            judge_opt.step()
        spectral = spectral_loss(fake, real)
        loss = spectral
        if polishing:
            judges.requires_grad_(False)
            with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
                on_fake = [j(fake) for j in judges]
            judges.requires_grad_(True)
            fooled = torch.stack([-g.float().mean() for g, _ in on_fake]).mean()
            matched = torch.stack([
                F.l1_loss(a.float(), b.detach().float()) / b.detach().float().abs().mean().clamp(min=1e-3)
                for (_, fakes), (_, reals) in zip(on_fake, on_real, strict=True)
                for a, b in zip(fakes, reals, strict=True)
            ]).mean()  # fmt: skip
            loss = 15 * spectral + fooled + 2 * matched
            if box.step % args.report == 0:
                values = {"judges": judge_loss.item(), "fooled": fooled.item(), "matched": matched.item()}
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 10.0 if polishing else 1.0)
        optimiser.step()
        if box.step % args.report == 0:
            blank = dict.fromkeys(("judges", "fooled", "matched"))
            log.log(box.step, spectral=spectral.item(), **(blank | values))
        box.step += 1
        if box.step % (20 * args.report) == 0:
            checkpoint(path)
    checkpoint(path)
    log.plot()


def train_wave(args: argparse.Namespace) -> None:
    device = args.device
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    segments = Segments(args.corpus, device)
    codec = load_trained(args.out, device).requires_grad_(False)
    encoder = codec.snac.encoder.requires_grad_(True).train()
    params = list(encoder.parameters())
    optimiser = torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.98), fused=device == "cuda")
    path = args.out / "wave.pt"
    done = load(path, device)
    if done:
        encoder.load_state_dict(done["encoder"])
        optimiser.load_state_dict(done["optimiser"])
    box = TimeBox(args.seconds, args.steps, *((done["spent"], done["step"]) if done else ()))
    log = RunLog(args.out, "wave", args.steps)
    edge = MARGIN * 4  # latents
    while box.fraction < 1:
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * box.rate(200, 0.4, 0.03)
        wave = segments.draw(args.batch, (args.frames + 2 * MARGIN) * FRAME)
        goal = codec.mel_encoder(log_mel(wave))
        guess = encoder(wave[:, None])
        loss = F.l1_loss(guess[..., edge:-edge], goal[..., edge:-edge]) / goal.abs().mean()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(params, 1.0)
        optimiser.step()
        if box.step % args.report == 0:
            pairs = zip(quantise(codec.snac.quantizer, guess), quantise(codec.snac.quantizer, goal), strict=True)
            log.log(
                box.step,
                loss=loss.item(),
                **{f"same_{k}": (a == b).float().mean().item() for k, (a, b) in enumerate(pairs)},
            )
        box.step += 1
    save(
        path,
        {"encoder": encoder.state_dict(), "optimiser": optimiser.state_dict(), "spent": box.spent, "step": box.step},
    )
    log.plot()


def load_trained(folder: Path, device: str, decoder: str = "decoder.pt") -> MelCodec:
    """The codec as far as it is trained: quantiser, and decoder if that stage has run."""
    codec = MelCodec(SNAC_CONFIG)
    state = load(folder / "quantiser.pt", "cpu")
    if state is None:
        raise FileNotFoundError(f"{folder}/quantiser.pt: train the quantiser stage first")
    codec.load_state_dict(state["codec"])
    if (trained := load(folder / decoder, "cpu")) is not None:
        codec.snac.decoder.load_state_dict(trained["decoder"])
    if (trained := load(folder / "wave.pt", "cpu")) is not None:
        codec.snac.encoder.load_state_dict(trained["encoder"])
    return codec.eval().to(device)


def encode_recordings(
    codec: MelCodec, waves: list[np.ndarray], device: str, batch_seconds: float = 600.0
) -> Iterator[tuple[int, np.ndarray]]:
    """Frames of each int16 recording, as (index, [F, 7] uint16), F = ceil(samples / 2048), shortest first."""
    order = sorted(range(len(waves)), key=lambda i: len(waves[i]))
    at = 0
    while at < len(order):
        batch: list[int] = []
        while at < len(order) and (len(batch) + 1) * len(waves[order[at]]) <= max(batch_seconds * 24000, len(waves[order[at]])):
            batch.append(order[at])
            at += 1
        counts = [-(-len(waves[i]) // FRAME) for i in batch]
        padded = np.zeros((len(batch), (max(counts) + 1) * FRAME), np.int16)
        for row, i in enumerate(batch):
            padded[row, : len(waves[i])] = waves[i]
        frames = codec.encode(torch.from_numpy(padded).to(device).float() / 32768).cpu().numpy().astype(np.uint16)
        for row, (i, count) in enumerate(zip(batch, counts, strict=True)):
            yield i, frames[row, :count]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--stage", choices=["quantiser", "decoder", "wave", "export"], required=True)
    parser.add_argument("--corpus", type=Path, nargs="+", default=[], help="corpus folders (see teacher and prepare)")
    parser.add_argument("--out", type=Path, required=True, help="run folder: checkpoints, CSV, plots; export writes here too")
    parser.add_argument("--seconds", type=float, default=300, help="time box of the stage")
    parser.add_argument("--steps", type=int, default=1_000_000, help="step limit of the stage")
    parser.add_argument("--batch", type=int, default=64, help="segments a step")
    parser.add_argument("--frames", type=int, default=8, help="frames a segment in the decoder stage")
    parser.add_argument("--polish-from", type=float, default=0.5, help="share of the decoder stage before the polish")
    parser.add_argument("--report", type=int, default=50, help="steps between CSV lines")
    parser.add_argument("--decoder", default="decoder.pt", help="which decoder checkpoint to export")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)


def main(args: argparse.Namespace) -> None:
    match args.stage:
        case "quantiser":
            train_quantiser(args)
        case "decoder":
            train_decoder(args)
        case "wave":
            train_wave(args)
        case "export":
            codec = load_trained(args.out, "cpu", args.decoder)
            codec.export(args.out / "codec", args.out / "mel_encoder.safetensors", (args.out / "wave.pt").exists())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    main(parser.parse_args())
