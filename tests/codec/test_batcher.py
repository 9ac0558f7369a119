"""The codec as its callers see it: streams opened, fed, ended and closed in any order."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from conftest import CONFIGS, Reference
from orpheus_serving.codec import Codec, CodecStream, StreamingDecoder, load_codec
from orpheus_serving.codec.graphs import buckets
from orpheus_serving.codec.noise_codec import build_noise_codec, noise_snac
from orpheus_serving.errors import CodecError

FRAME = 2048


@pytest.fixture(params=[1, 4], ids=["batch 1", "batch 4"])
async def codec(request: pytest.FixtureRequest, reference: Reference) -> AsyncIterator[Codec]:
    codec = Codec(StreamingDecoder(reference.weights, slots=3), max_batch=request.param)
    await codec.start()
    yield codec
    await codec.stop()


async def speak(codec: Codec, frames: list, seed: int, *, early: bool = False, portions: tuple[int, ...] = (1,)) -> np.ndarray:
    stream = codec.open(seed, early)
    parts = []

    async def listen() -> None:
        async for samples in stream:
            parts.append(samples)  # noqa: PERF401

    listener = asyncio.create_task(listen())
    at = 0
    while at < len(frames):
        for portion in portions:
            stream.push(frames[at : at + portion])
            at += portion
            await asyncio.sleep(0)
    stream.end()
    await listener
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)


@pytest.mark.parametrize("early", [False, True])
async def test_more_streams_than_slots_all_come_out_whole(codec: Codec, reference: Reference, early: bool) -> None:
    todo = [(reference.frames(1 + i % 8, seed=i), i) for i in range(12)]
    audio = await asyncio.gather(*(speak(codec, f, s, early=early, portions=(1 + s % 3, 2)) for f, s in todo))
    for (frames, seed), heard in zip(todo, audio, strict=True):
        assert len(heard) == FRAME * len(frames)
        if not early:
            assert np.abs(heard - reference.decode(frames, seed)).max() < 1e-4
    assert codec.free_slots == 3


async def test_no_frames_no_audio(codec: Codec) -> None:
    assert len(await speak(codec, [], 0)) == 0


async def test_alone_or_in_company_the_bytes_are_the_same(reference: Reference) -> None:
    codec = Codec(StreamingDecoder(reference.weights, slots=8))
    await codec.start()
    todo = [(reference.frames(7, seed=i), i) for i in range(8)]
    for early in (False, True):
        together = await asyncio.gather(*(speak(codec, f, s, early=early) for f, s in todo))
        for (frames, seed), heard in zip(todo, together, strict=True):
            alone = await speak(codec, frames, seed, early=early, portions=(7,))
            assert alone.tobytes() == heard.tobytes()
    await codec.stop()


async def test_early_audio_comes_a_frame_sooner_and_turns_exact(reference: Reference) -> None:
    codec = Codec(StreamingDecoder(reference.weights, slots=2))
    await codec.start()
    frames = reference.frames(12)
    first: dict[bool, int] = {}
    for early in (False, True):
        stream = codec.open(3, early)
        for n, frame in enumerate(frames, 1):
            stream.push([frame])
            try:  # nothing may come at all, so wait until the codec has gone idle
                while codec._streams:  # noqa: ASYNC110
                    await asyncio.sleep(0)
                await asyncio.sleep(0)
                stream._out.get_nowait()
            except asyncio.QueueEmpty:
                continue
            first[early] = n
            break
        stream.close()
    assert first == {False: 3, True: 2}
    exact, early_audio = await speak(codec, frames, 3), await speak(codec, frames, 3, early=True)
    assert len(exact) == len(early_audio)
    after = 7 * FRAME
    assert np.abs(exact[after:] - early_audio[after:]).max() < 1e-5
    error = early_audio[:after] - exact[:after]
    # 13 dB over the provisional second: these random taps reach equally far, trained ones lean to the middle.
    assert (error**2).mean() < 0.05 * (exact[:after] ** 2).mean()
    step = np.abs(np.diff(early_audio)).max() / np.abs(np.diff(exact)).max()
    assert step < 1.3  # no click where versions meet
    await codec.stop()


async def test_close_frees_the_slot_and_disturbs_nobody(codec: Codec, reference: Reference) -> None:
    frames = reference.frames(6)
    gone = [codec.open(i) for i in range(3)]
    for stream in gone:
        stream.push(frames)
    other = asyncio.create_task(speak(codec, frames, 9))
    await asyncio.sleep(0)
    for stream in gone:
        stream.close()
        stream.close()
        stream.push(frames)  # ignored
    assert np.abs(await other - reference.decode(frames, 9)).max() < 1e-4
    assert codec.free_slots == 3


@pytest.mark.parametrize("frame", [(0,) * 6, (0,) * 8, (0, 0, 0, 0, 0, 0, 1024), (-1, 0, 0, 0, 0, 0, 0)])
async def test_bad_frames_are_refused(codec: Codec, frame: tuple[int, ...]) -> None:
    stream = codec.open()
    with pytest.raises(CodecError, match="7 codes from 0 to 1023"):
        stream.push([frame])
    stream.close()


class Fragile(StreamingDecoder):
    """A decoder whose device can be lost."""

    lost = False

    def step(self, rows: torch.Tensor) -> torch.Tensor:
        if self.lost:
            raise RuntimeError("device lost")
        return super().step(rows)


async def the_rest(stream: CodecStream) -> list[np.ndarray]:
    """What comes of a stream; a stream without an end does not hang the test."""
    async with asyncio.timeout(30):
        return [samples async for samples in stream]


async def test_stopping_ends_open_streams_with_an_error(reference: Reference) -> None:
    codec = Codec(StreamingDecoder(reference.weights, slots=2))
    await codec.start()
    silent, heard, waiting = codec.open(), codec.open(), codec.open()
    heard.push(reference.frames(3))
    await anext(heard)  # of three frames this is all: it is idle now, as is the silent one
    waiting.push(reference.frames(2))
    await codec.stop()
    for stream in (silent, heard, waiting):
        stream.push(reference.frames(1))
        stream.end()
        for _ in range(2):
            with pytest.raises(CodecError, match="it was stopped"):
                await the_rest(stream)
    assert codec.free_slots == 2
    with pytest.raises(CodecError, match="it was stopped"):
        codec.open()


async def test_a_broken_step_is_told_to_every_stream(reference: Reference) -> None:
    """To idle ones too, and then the codec is known to have failed until it is started again."""
    decoder = Fragile(reference.weights, slots=3)
    codec = Codec(decoder)
    assert codec.failure
    await codec.start()
    assert not codec.failure
    silent, heard, busy = codec.open(), codec.open(), codec.open()
    heard.push(reference.frames(3))
    await anext(heard)
    decoder.lost = True
    busy.push(reference.frames(1))
    for stream in (busy, silent, heard):
        with pytest.raises(CodecError, match="device lost"):
            await the_rest(stream)
    assert codec.failure == "device lost"
    assert codec.free_slots == 3
    with pytest.raises(CodecError, match="device lost"):
        codec.open()
    with pytest.raises(CodecError, match="device lost"):
        await codec.start()
    decoder.lost = False
    await codec.start()
    assert not codec.failure
    assert len(await speak(codec, reference.frames(2), 0)) == 2 * FRAME
    await codec.stop()


async def test_an_error_comes_after_the_audio_and_is_the_end(reference: Reference) -> None:
    codec = Codec(StreamingDecoder(reference.weights, slots=2), max_batch=1)
    await codec.start()
    stream = codec.open()
    stream.push(reference.frames(3))
    # Another stream's whole life, while this loop stands still: the audio of the first is on its way, but has not arrived.
    other = threading.Thread(target=lambda: asyncio.run(speak(codec, reference.frames(6), 1)))
    other.start()
    other.join()
    stream.fail(ValueError("first"))
    stream.fail(ValueError("second"))
    assert len(await anext(stream)) > 0
    for _ in range(3):
        with pytest.raises(ValueError, match="first"):
            await the_rest(stream)
    await codec.stop()


async def frames_until_held_back(stream: CodecStream, frames: list) -> int:
    """Push one at a time until the codec keeps something of it for a longer piece; how many frames that took."""
    for count, frame in enumerate(frames, 1):
        stream.push([frame])
        await decoded(stream)
        if stream.pieces._held:
            return count
    raise AssertionError("nothing was held back")


async def decoded(stream: CodecStream) -> None:
    while stream in stream._codec._streams:  # noqa: ASYNC110
        await asyncio.sleep(0)


@pytest.mark.parametrize("breaks", [False, True], ids=["stream", "codec"])
async def test_an_error_comes_after_the_audio_that_was_held_back(reference: Reference, breaks: bool) -> None:
    decoder = Fragile(reference.weights, slots=2)
    codec = Codec(decoder)
    await codec.start()
    stream, frames = codec.open(), reference.frames(40)
    count = await frames_until_held_back(stream, frames)
    if breaks:
        decoder.lost = True
        codec.open().push(reference.frames(1))
        while not codec.failure:  # noqa: ASYNC110
            await asyncio.sleep(0)
    else:
        stream.fail(CodecError("enough"))
    heard, error = [], None
    try:
        async for samples in stream:
            heard.append(samples)  # noqa: PERF401
    except CodecError as raised:
        error = raised
    assert error is not None
    assert sum(map(len, heard)) == count * FRAME - decoder.delay
    await codec.stop()


async def test_what_an_event_loop_hands_over_in_one_turn_is_one_step(reference: Reference) -> None:
    codec = Codec(StreamingDecoder(reference.weights, slots=8), max_batch=8)
    await codec.start()
    streams = [codec.open(n) for n in range(8)]
    for _ in range(4):
        for stream in streams:
            stream.push(reference.frames(1))
            time.sleep(0.002)  # noqa: ASYNC251  the codec's thread has time enough to take each alone
        for stream in streams:
            await decoded(stream)
    # Two, not one: it may still have been on its way back from the turn before, and take what it finds.
    assert codec.batches.total() <= 2 * 4
    await codec.stop()


async def test_starting_twice_is_starting_once(reference: Reference) -> None:
    def threads() -> int:
        return sum(thread.name == "codec" for thread in threading.enumerate())

    before = threads()
    codec = Codec(StreamingDecoder(reference.weights, slots=1))
    await asyncio.gather(codec.start(), codec.start())
    await codec.start()
    assert threads() == before + 1
    assert len(await speak(codec, reference.frames(1), 0)) == FRAME
    await codec.stop()
    assert threads() == before


async def test_a_start_that_is_cancelled_can_be_waited_for_again(reference: Reference, caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    class Slow(StreamingDecoder):
        def step(self, rows: torch.Tensor) -> torch.Tensor:
            assert gate.wait(30)
            return super().step(rows)

    codec = Codec(Slow(reference.weights, slots=1))
    starting = asyncio.create_task(codec.start())
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    gate.set()
    await codec.start()
    assert len(await speak(codec, reference.frames(1), 0)) == FRAME
    await codec.stop()
    assert not [record for record in caplog.records if record.name == "asyncio"]


@settings(max_examples=15, deadline=None)
@given(portions=st.lists(st.integers(1, 4), min_size=1, max_size=6), count=st.integers(1, 9), early=st.booleans())
def test_any_chunking_gives_the_same_bytes(reference: Reference, portions: list[int], count: int, early: bool) -> None:
    async def both() -> tuple[np.ndarray, np.ndarray]:
        codec = Codec(StreamingDecoder(reference.weights, slots=1))
        await codec.start()
        frames = reference.frames(count, seed=count)
        pieces = await speak(codec, frames, 1, early=early, portions=tuple(portions))
        whole = await speak(codec, frames, 1, early=early, portions=(count,))
        await codec.stop()
        return pieces, whole

    pieces, whole = asyncio.run(both())
    assert pieces.tobytes() == whole.tobytes()


async def test_loads_from_a_folder_in_snac_format(tmp_path) -> None:  # type: ignore[no-untyped-def]
    codec = load_codec(build_noise_codec(tmp_path / "codec"))
    assert (codec.sample_rate, codec.frame_samples) == (24000, FRAME)


def test_what_cannot_be_read_is_refused_clearly(tmp_path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "config.json").write_text('{"sampling_rat": 1}')
    with pytest.raises(CodecError, match="sampling_rat"):
        load_codec(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CodecError, match=r"no config\.json"):
        load_codec(tmp_path)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 79488254\n"


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    "damage",
    [lambda good: POINTER, lambda good: b"", lambda good: good[: len(good) // 2], lambda good: good[:-1], lambda good: b"[1, 2]"],
    ids=["LFS pointer", "empty", "half", "a byte short", "something else"],
)
def test_damaged_weights_are_named_with_what_to_do(tmp_path: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    folder = build_noise_codec(tmp_path / "codec")
    if name == "model.safetensors":
        save_file(torch.load(folder / "pytorch_model.bin"), folder / name)
        (folder / "pytorch_model.bin").unlink()
    load_codec(folder)
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(CodecError, match="fetch it again") as error:
        load_codec(folder)
    assert str(folder / name) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("tensors", [[torch.zeros(1)], {"a": "text"}])
def test_a_pickle_of_something_else_is_named(tmp_path: Path, tensors: Any) -> None:
    folder = build_noise_codec(tmp_path / "codec")
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(CodecError, match=r"pytorch_model\.bin.*fetch it again"):
        load_codec(folder)


@pytest.mark.parametrize("config", ["", "{", "[1]", "null", '{"decoder_rates": 5}', POINTER.decode(), "\udcff"])
def test_a_broken_config_is_named(tmp_path: Path, config: str) -> None:
    folder = build_noise_codec(tmp_path / "codec")
    (folder / "config.json").write_text(config, "utf-8", errors="surrogateescape")
    with pytest.raises(CodecError, match=r"config\.json"):
        load_codec(folder)


def test_weights_of_another_config_are_named(tmp_path: Path) -> None:
    folder = build_noise_codec(tmp_path / "codec")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"codebook_size": 512}))
    with pytest.raises(CodecError, match=r"config\.json describes(?s:.*)size mismatch(?s:.*)codebook"):
        load_codec(folder)


def test_noise_codec_is_the_same_for_the_same_seed() -> None:
    a, b = (noise_snac(CONFIGS["tiny"], 4).state_dict() for _ in range(2))
    assert all((a[name] == b[name]).all() for name in a)


@given(st.integers(1, 2000))
def test_a_batch_is_padded_little(most: int) -> None:
    sizes = buckets(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    assert len(sizes) <= 8 + 4 * most.bit_length()
    for batch in range(1, most + 1):
        padded = next(size for size in sizes if size >= batch)
        assert padded == batch or padded - batch < batch / 4


@pytest.mark.parametrize(("max_batch", "sizes"), [(None, {1}), (4, {2, 3, 4})], ids=["a CPU's default", "batch 4"])
async def test_compiled_code_computes_no_more_rows_than_it_must(
    reference: Reference, monkeypatch: pytest.MonkeyPatch, max_batch: int | None, sizes: set[int]
) -> None:
    """Traced as for real, but run by PyTorch: a compiler takes a minute."""
    real, seen = torch.compile, set()

    def compile(function: Any) -> Any:
        traced = real(function, backend="eager")

        def counted(rows: torch.Tensor) -> torch.Tensor:
            seen.add(len(rows))
            return traced(rows)

        return counted

    monkeypatch.setattr(torch, "compile", compile)
    codec = Codec(StreamingDecoder(reference.weights, slots=4), max_batch=max_batch, compile=True)
    await codec.start()
    todo = [(reference.frames(3, seed=i), i) for i in range(3)]
    audio = await asyncio.gather(*(speak(codec, frames, seed) for frames, seed in todo))
    await codec.stop()
    for (frames, seed), heard in zip(todo, audio, strict=True):
        assert np.abs(heard - reference.decode(frames, seed)).max() < 1e-4
    assert seen == sizes


async def test_early_audio_is_off_where_its_schedule_would_not_fit() -> None:
    """Attention over two frames delays the exact audio beyond the last provisional ending."""
    for config, early in (("tiny", True), ("attention over two frames", False)):
        codec = Codec(StreamingDecoder(Reference(CONFIGS[config]).weights, 1))
        await codec.start()
        assert codec.open(early=True).early is early
        await codec.stop()
