"""Samples at another rate, or spoken faster and slower at the same pitch. Both are streams: push pieces, then finish.

Resampler(24000, 8000)      libswresample
Tempo(1.25, 24000)          libavfilter's atempo; what comes out is 1.25 times shorter
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidRequest

Samples = NDArray[np.float32]

NOTHING: Samples = np.zeros(0, np.float32)
RATES = range(4_000, 192_001)  # of the target, in hertz
SLOWEST, FASTEST = 0.25, 4.0  # OpenAI's range of `speed`
SLOWEST_STEP = 0.5  # of one atempo filter; slower ones are several in a row


class Resampler:
    """`push` float32 samples [n] at `source_rate` and get those that are ready at `target_rate`; `finish` gives the rest.

    Raises InvalidRequest for a rate outside RATES. Equal rates pass samples through.
    """

    def __init__(self, source_rate: int, target_rate: int) -> None:
        if target_rate not in RATES:
            raise InvalidRequest("sample_rate", f"{target_rate} Hz; it must be from {RATES[0]} to {RATES[-1]}")
        self._rate = source_rate
        self._position = 0
        self._resampler: Any = None
        if source_rate != target_rate:
            import av

            self._resampler = av.AudioResampler(format="flt", layout="mono", rate=target_rate)

    def push(self, samples: Samples) -> Samples:
        if self._resampler is None or not len(samples):
            return samples
        frame = _frame(samples, self._rate, self._position)
        self._position += len(samples)
        return _join(self._resampler.resample(frame))

    def finish(self) -> Samples:
        return _join(self._resampler.resample(None)) if self._position else NOTHING


class Tempo:
    """`push` float32 samples [n] and get samples that play `speed` times as fast at the same pitch; `finish` gives the rest.

    The length is right to about 25 ms of the source. A speed of 1 passes samples through. Raises InvalidRequest for one outside
    0.25 .. 4.
    """

    def __init__(self, speed: float, sample_rate: int) -> None:
        if not SLOWEST <= speed <= FASTEST:
            raise InvalidRequest("speed", f"{speed}; it must be from {SLOWEST} to {FASTEST}")
        self._rate = sample_rate
        self._position = 0
        self._graph: Any = None
        if speed != 1:
            self._graph = _tempo_graph(speed, sample_rate)

    def push(self, samples: Samples) -> Samples:
        if self._graph is None or not len(samples):
            return samples
        self._graph.push(_frame(samples, self._rate, self._position))
        self._position += len(samples)
        return self._pull()

    def finish(self) -> Samples:
        if not self._position:
            return NOTHING
        self._graph.push(None)
        return self._pull()

    def _pull(self) -> Samples:
        import av

        frames = []
        while True:
            try:
                frames.append(self._graph.pull())
            except (av.error.BlockingIOError, av.error.EOFError):
                return _join(frames)


def _tempo_graph(speed: float, sample_rate: int) -> Any:
    import av

    graph = av.filter.Graph()
    last = graph.add_abuffer(sample_rate=sample_rate, format="flt", layout="mono", time_base=Fraction(1, sample_rate))
    steps = []
    while speed < SLOWEST_STEP:
        steps.append(SLOWEST_STEP)
        speed /= SLOWEST_STEP
    for step in (*steps, speed):
        filtered = graph.add("atempo", str(step))
        last.link_to(filtered)
        last = filtered
    last.link_to(graph.add("abuffersink"))
    graph.configure()
    return graph


def _frame(samples: Samples, sample_rate: int, position: int) -> Any:
    import av

    frame = av.AudioFrame.from_ndarray(samples.astype(np.float32)[None, :], format="flt", layout="mono")
    frame.sample_rate = sample_rate
    frame.pts = position
    return frame


def _join(frames: list[Any]) -> Samples:
    return np.concatenate([frame.to_ndarray()[0] for frame in frames]) if frames else NOTHING
