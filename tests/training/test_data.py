"""Sentences, recordings, corpora, prepared data, documents."""

import csv
import json
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_serving.cloning import frames_from_levels

pytest.importorskip("pyarrow")

from orpheus_serving.training.codec_model import to_frames, to_levels
from orpheus_serving.training.corpus import CorpusWriter, read_audio, read_index
from orpheus_serving.training.documents import answer_start, documents, joined, with_noise
from orpheus_serving.training.lm import packed
from orpheus_serving.training.prepare import Limits, check, find_items, mono, to_peak, trimmed
from orpheus_serving.training.small_lm import LAYOUT, make_tokenizer
from orpheus_serving.training.store import Prepared, read_prepared, write_prepared
from orpheus_serving.training.teacher import cut, speech_span
from orpheus_serving.training.timbre import Likeness

RATE = 24000


def tone(seconds: float, level: float = 0.5, rate: int = RATE) -> np.ndarray:
    return (level * np.sin(2 * np.pi * 220 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def write_wav(path: Path, samples: np.ndarray, rate: int = RATE, channels: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setparams((channels, 2, rate, 0, "NONE", ""))
        file.writeframes((np.repeat(samples, channels) * 32767).astype("<i2").tobytes())


def test_speech_is_found_between_silences() -> None:
    padded = np.concatenate([np.zeros(RATE), tone(1.0), np.zeros(RATE // 2)]).astype(np.float32)
    first, last = speech_span(torch.from_numpy(padded)[None], lead_s=0.06, tail_s=0.12)
    assert abs(int(first[0]) - (RATE - 1440)) <= 240
    assert abs(int(last[0]) - (2 * RATE + 2880)) <= 240
    assert len(trimmed(padded)) == int(last[0]) - int(first[0])


def test_cuts_do_not_click() -> None:
    piece = cut((tone(1.0) * 32767).astype(np.int16), 1000, 9000)
    assert len(piece) == 8000
    assert piece[0] == 0
    assert piece[-1] == 0


@pytest.mark.parametrize(
    ("samples", "text", "reason"),
    [
        (tone(2.0), "a sentence of fair length", None),
        (tone(2.0), "...", "text: no words"),
        (tone(0.1), "short", "length"),
        (tone(2.0, 0.001), "a quiet sentence here", "silence"),
        (np.clip(tone(2.0, 3.0), -1, 1), "a loud sentence, far too loud", "clipping"),
        (tone(10.0), "too slow", "text"),
        (tone(1.0), "far too many words for a single second of speech", "text"),
    ],
)
def test_recordings_are_checked(samples: np.ndarray, text: str, reason: str | None) -> None:
    found = check(samples, text, Limits())
    assert found is None if reason is None else str(found).startswith(reason)


def test_any_rate_and_channel_count_becomes_24_khz_mono() -> None:
    stereo = np.stack([tone(1.0, rate=44100)] * 2, 1)
    result = mono(stereo, 44100)
    assert abs(len(result) - RATE) <= 1
    assert np.abs(result[1000:-1000] - tone(1.0)[1000 : len(result) - 1000]).max() < 0.02
    assert np.abs(to_peak((result * 32767).astype(np.int16), 0.7)).max() == pytest.approx(0.7 * 32767, abs=2)


def test_layouts_of_recordings(tmp_path: Path) -> None:
    plain, speech, folder = tmp_path / "plain", tmp_path / "lj", tmp_path / "folder"
    write_wav(plain / "a.wav", tone(1.0))
    (plain / "a.txt").write_text("Plain.\n")
    write_wav(speech / "wavs" / "LJ1.wav", tone(1.0))
    (speech / "metadata.csv").write_text('LJ1|Dr. "No"|Doctor "No"\n')
    write_wav(folder / "x.wav", tone(1.0))
    with (folder / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file_name", "text"), ("x.wav", "Folder, it is.")])
    found = [next(find_items(p, "me")) for p in (plain, speech, folder)]
    assert [i.text for i in found] == ["Plain.", 'Doctor "No"', "Folder, it is."]
    assert {i.voice for i in found} == {"me"}
    pytest.importorskip("soundfile")
    for item in found:
        samples, rate = item.load()
        assert (len(samples), rate) == (RATE, RATE)
    (folder / "metadata.csv").unlink()
    (folder / "metadata.jsonl").write_text(json.dumps({"file_name": "x.wav", "text": "Json.", "voice": "you"}) + "\n")
    assert [(i.text, i.voice) for i in find_items(folder, "me")] == [("Json.", "you")]
    with pytest.raises(FileNotFoundError):
        next(find_items(tmp_path / "nothing", "me"))


def test_a_corpus_goes_on_where_it_stopped(tmp_path: Path) -> None:
    for k in range(2):
        with CorpusWriter(tmp_path) as corpus:
            corpus.add(np.full(10 + k, k + 1, np.int16), "ava", f"text {k}")
    index, audio = read_index(tmp_path), read_audio(tmp_path)
    assert [(r.start, r.samples, r.text) for r in index] == [(0, 10, "text 0"), (10, 11, "text 1")]
    assert audio.tolist() == [1] * 10 + [2] * 11


def test_prepared_data_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = [Prepared("ben", f"t{n}", n / 10, rng.integers(0, 4096, (n, 7)).astype(np.uint16)) for n in (3, 0, 5)]
    write_prepared(tmp_path / "a.parquet", rows)
    back = read_prepared([tmp_path / "a.parquet", tmp_path / "a.parquet"])
    assert [r.text for r in back] == ["t3", "t0", "t5"] * 2
    for a, b in zip(rows * 2, back, strict=True):
        assert np.array_equal(a.codes, b.codes)


@settings(deadline=None)
@given(st.integers(1, 9))
def test_levels_and_frames_are_each_others_inverse(frames: int) -> None:
    codes = torch.arange(frames * 7).view(1, frames, 7)
    levels = to_levels(codes)
    assert torch.equal(to_frames(levels), codes)
    assert frames_from_levels([x[0].tolist() for x in levels]) == codes[0].tolist()


def rows_of(*lengths: int) -> list[Prepared]:
    return [Prepared("ava", "hello.", 1.0, np.full((n, 7), n, np.uint16)) for n in lengths]


def test_documents_are_what_serving_asks_for() -> None:
    (doc,) = documents(rows_of(2), make_tokenizer(), LAYOUT)
    text = make_tokenizer().encode("ava: hello.").ids
    assert doc.tolist() == [
        *LAYOUT.prompt_ids(text), *(LAYOUT.token(s, 2) for _ in range(2) for s in range(7)), LAYOUT.end_of_speech
    ]  # fmt: skip
    assert answer_start(doc, LAYOUT) == len(text) + 2
    with pytest.raises(ValueError, match="another codec"):
        documents(rows_of(1024), make_tokenizer(), LAYOUT)


def test_the_tokenizer_knows_letters_and_drops_the_rest() -> None:
    tokenizer = make_tokenizer()
    assert tokenizer.encode("Café,  NO™ 7!").ids == tokenizer.encode("cafe, no !").ids
    assert len(tokenizer.encode("it's").ids) == 4
    assert max(tokenizer.get_vocab().values()) < LAYOUT.first_code


def test_packed_rows_ask_for_speech_only() -> None:
    docs = documents(rows_of(2, 3, 4, 2, 3, 4, 30), make_tokenizer(), LAYOUT)
    ids, number, position, target = next(packed(docs, range(len(docs)), batch=2, length=100))
    assert ids.shape == (2, 100)
    asked = target[target != -100]
    assert all(LAYOUT.is_code(t) or t == LAYOUT.end_of_speech for t in asked.tolist())
    first = docs[0]
    assert ids[0, : len(first) - 1].tolist() == first[:-1].tolist()
    assert position[0, len(first) - 1] == 0  # the next document starts over
    assert number[0, len(first) - 1] == 1
    start = answer_start(first, LAYOUT)
    assert target[0, start - 1 : len(first) - 1].tolist() == first[start:].tolist()


def test_noise_stays_in_the_slot() -> None:
    torch.manual_seed(0)
    ids = torch.tensor([[2, 5, 3] + [LAYOUT.token(s, 9) for s in range(7)] * 20])
    noisy = with_noise(ids, 0.5, LAYOUT)
    assert torch.equal(noisy[:, :3], ids[:, :3])
    assert not torch.equal(noisy, ids)
    assert [LAYOUT.slot(t) for t in noisy[0, 3:].tolist()] == list(range(7)) * 20


def test_likeness_hears_the_spectrum_and_not_the_loudness(tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def sound(tilt: float, loudness: float) -> np.ndarray:
        spectrum = np.fft.rfft(random.standard_normal(24000)) * np.arange(1.0, 12002) ** -tilt
        wave = np.fft.irfft(spectrum)
        return (loudness * wave / np.abs(wave).max()).astype(np.float32)

    with CorpusWriter(tmp_path / "c") as corpus:
        for voice, tilt in (("dull", 1.0), ("flat", 0.5), ("bright", 0.0)) * 2:
            corpus.add((sound(tilt, 0.7) * 32767).astype(np.int16), voice, "x")
    likeness = Likeness([tmp_path / "c"])
    assert [likeness.nearest(sound(t, 0.3)) for t in (0.95, 0.5, 0.05)] == ["dull", "flat", "bright"]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["ava", "ben"]), st.sampled_from("ab."), st.integers(1, 5)), max_size=12),
    st.floats(0, 1),
    st.integers(0, 9),
)
def test_joined_utterances_lose_and_double_nothing(said: list[tuple[str, str, int]], share: float, seed: int) -> None:
    """Every utterance is in one pair or stands alone; pairs are of one voice, in order, and not longer than allowed."""
    rows = [
        Prepared(voice, f"{i}{end}", float(frames), np.full((frames, 7), i, np.uint16))
        for i, (voice, end, frames) in enumerate(said)
    ]
    single, pairs = joined(rows, share, 7.0, np.random.default_rng(seed))
    found = [int(text.rstrip("ab.")) for pair in pairs for text in pair.text.split(" ")]
    assert sorted(single + found) == list(range(len(rows)))
    assert 2 * len(pairs) <= share * len(rows)
    for pair in pairs:
        first, second = (int(n.rstrip("ab.")) for n in pair.text.split(" "))
        assert pair.text == f"{rows[first].text} {rows[second].text}"
        assert rows[first].text.endswith(".")
        assert rows[first].voice == rows[second].voice == pair.voice
        assert np.array_equal(pair.codes, np.concatenate([rows[first].codes, rows[second].codes]))
        assert pair.seconds == len(pair.codes) <= 7
