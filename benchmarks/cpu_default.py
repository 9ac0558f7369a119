"""What a newcomer gets on this machine's CPU: the demo voice's real-time factor, first audio, time to load, streams side by side.

    python benchmarks/cpu_default.py --out benchmarks/results/cpu_default.json [--rounds 5]

Both ways to compute a decode step run in turn in one process, so that whatever else the machine does falls on both: the
compiled one, which is the default, and torch's, which runs where numba is not installed. A row of the result is a step and a
number of streams that start together: the audio seconds a second of all of them, the worst stream's real-time factor (from
text to the last sample) and time to its first samples, each as median, best and worst of the rounds. `1 beside 3`: the time to
first samples of one that comes when three have been speaking for BESIDE seconds.

Loading is that of `orpheus-serving say` in processes of their own, as it prints it: from the start of the command with torch
not imported yet to a warm engine and codec. `first` compiles the step; later starts find it compiled.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest.mock import patch

from orpheus_serving.bench.result import write_result
from orpheus_serving.build import build
from orpheus_serving.request import SpeechRequest
from orpheus_serving.settings import Settings
from orpheus_serving.synthesizer import Synthesizer

TEXT = "Hello there, this is a voice that was trained for this project, and it runs on two small processor cores."
STREAMS = (1, 2, 4)
BESIDE = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    busy = os.getloadavg()[0]  # processes that ran or wanted to over the last minute: 0 on a machine that is idle
    loads = load_seconds(options.rounds)
    print("loaded in, seconds:", loads)
    levels = asyncio.run(compare(options.rounds))
    for level in levels:
        print(level)
    settings = {"text": TEXT, "rounds": options.rounds, "numba": version("numba"), "load_average_before": busy}
    write_result(options.out, "demo voice on a CPU", levels, settings=settings, more={"load_s": loads})


def load_seconds(rounds: int) -> dict[str, Any]:
    """What `say` reports, with nothing compiled and afterwards."""
    with tempfile.TemporaryDirectory() as cache:
        say = [str(Path(sys.executable).with_name("orpheus-serving")), "say", "Hello.", "--output", f"{cache}/hello.wav"]
        times = []
        for _ in range(1 + rounds):
            done = subprocess.run(say, env=os.environ | {"NUMBA_CACHE_DIR": cache}, capture_output=True, text=True, check=True)
            found = re.search(r"loaded in ([\d.]+) s", done.stdout + done.stderr)
            assert found, done.stderr
            times.append(float(found[1]))
    return {"first": times[0], "later": spread(times[1:])}


async def compare(rounds: int) -> list[dict[str, Any]]:
    synthesizers = {}
    for step in ("compiled", "torch"):
        with patch("orpheus_serving.engines.llama.has_numba", return_value=step == "compiled"):
            synthesizers[step] = build(Settings.load({}))
            await synthesizers[step].start()
    measured: dict[tuple[str, int], list[dict[str, float]]] = {(s, n): [] for n in STREAMS for s in synthesizers}
    for number in range(1 + rounds):  # the first round warms up
        for (step, streams), results in measured.items():
            result = await together(synthesizers[step], streams, 10 * number)
            if number:
                results.append(result)
    levels: list[dict[str, Any]] = [
        {"step": step, "streams": streams, **{name: spread([result[name] for result in results]) for name in results[0]}}
        for (step, streams), results in measured.items()
    ]
    for step, synthesizer in synthesizers.items():
        firsts = [await newcomer(synthesizer, 10 * number) for number in range(1, 1 + rounds)]
        levels.append({"step": step, "streams": "1 beside 3", "first_audio_ms": spread(firsts)})
        await synthesizer.stop()
    return levels


async def together(synthesizer: Synthesizer, streams: int, seed: int) -> dict[str, float]:
    """`streams` utterances at once."""
    began, busy = time.perf_counter(), time.process_time()
    results = await asyncio.gather(*(utterance(synthesizer, seed + n) for n in range(streams)))
    seconds, audio = time.perf_counter() - began, sum(each["audio"] for each in results)
    return {
        "audio_s_per_s": audio / seconds,
        "real_time_factor": max(each["seconds"] / each["audio"] for each in results),
        "first_audio_ms": max(each["first"] for each in results) * 1000,
        "cpu_s_per_audio_s": (time.process_time() - busy) / audio,
    }


async def newcomer(synthesizer: Synthesizer, seed: int) -> float:
    """Milliseconds to the first samples of an utterance beside three that are heard in real time."""
    others = [asyncio.create_task(utterance(synthesizer, seed + n, TEXT * 3)) for n in range(3)]
    await asyncio.sleep(BESIDE)
    speech = synthesizer.speak(SpeechRequest(prompt=TEXT, seed=seed + 3))
    async for _ in speech:
        break
    await speech.aclose()
    for other in others:
        other.cancel()
    await asyncio.wait(others)
    return 1000 * (speech.stats.first_audio or 0.0)


async def utterance(synthesizer: Synthesizer, seed: int, text: str = TEXT) -> dict[str, float]:
    began = time.perf_counter()
    speech = synthesizer.speak(SpeechRequest(prompt=text, seed=seed))
    samples = 0
    async for part in speech:
        samples += len(part)
    first = speech.stats.first_audio or 0.0
    return {"audio": samples / synthesizer.sample_rate, "seconds": time.perf_counter() - began, "first": first}


def spread(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values), 3), "min": round(min(values), 3), "max": round(max(values), 3)}


if __name__ == "__main__":
    main()
