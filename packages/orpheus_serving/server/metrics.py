"""What Prometheus sees at /metrics. Each server has its own registry, so several can live in one process.

Playback is the clock: a listener starts to play with the first samples, and every later piece must be there before the
pieces before it have been played. `lateness` is by how much one missed that: 0 in time, and never what a slow reader caused.

Where text is still being written the clock stands while the server has none: what comes before the first text is no part of the
times to the first byte and the first speech, and who wrote on only after the listener had run dry made nothing late.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, Metric

from ..audio.shaping import GATE, WINDOW
from ..synthesizer import Samples, SpeechStats, Synthesizer, Wait

LATENCY = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
CODEC_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)  # frames
LATENESS = (0.0, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
DURATION = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 900, 1800)


class Metrics:
    """Counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        by_protocol: dict[str, Any] = {"labelnames": ("protocol",), "registry": self.registry}
        self.requests = Counter(
            "orpheus_requests_total",
            "Requests by protocol and outcome: complete, length, cancelled, stalled, error, timeout, invalid, overloaded",
            ("protocol", "outcome"),
            registry=self.registry,
        )
        self.first_byte = Histogram(
            "orpheus_time_to_first_byte_seconds",
            "From a request's arrival to its first samples, less waits for its text",
            buckets=LATENCY,
            **by_protocol,
        )
        self.first_speech = Histogram(
            "orpheus_time_to_first_speech_seconds",
            "From a request's arrival to when a listener hears the first sound above -40 dB, less waits for its text",
            buckets=LATENCY,
            **by_protocol,
        )
        self.lateness = Histogram(
            "orpheus_chunk_lateness_seconds",
            "By how much a piece of audio came after the pieces before it had been played; 0 is in time",
            buckets=LATENESS,
            **by_protocol,
        )
        self.queue_wait = Histogram(
            "orpheus_queue_wait_seconds", "Time that admitted requests waited for a place", buckets=LATENCY, **by_protocol
        )
        self.duration = Histogram(
            "orpheus_stream_seconds", "From a stream's admission to its end", buckets=DURATION, **by_protocol
        )
        self.audio = Counter("orpheus_audio_seconds_total", "Audio handed out, in seconds of playback", **by_protocol)
        self.tokens = Counter("orpheus_tokens_total", "Tokens that the model generated", **by_protocol)
        self.dropped_tokens = Counter(
            "orpheus_dropped_tokens_total", "Tokens that did not fit a frame and were left out", **by_protocol
        )
        self.active = Gauge("orpheus_active_streams", "Streams that are running", registry=self.registry)
        self.queued = Gauge("orpheus_queued_streams", "Requests that wait for a place", registry=self.registry)

    def watch(self, synthesizer: Synthesizer) -> None:
        """Show the codec's own counters too, read when Prometheus asks."""
        self.registry.register(_CodecCollector(synthesizer))

    def render(self) -> bytes:
        """The text format, version 0.0.4."""
        return generate_latest(self.registry)

    def count_work(self, protocol: str, stats: SpeechStats, sample_rate: int) -> None:
        """Add what an ended stream did."""
        self.tokens.labels(protocol).inc(stats.tokens)
        self.dropped_tokens.labels(protocol).inc(stats.dropped_tokens)
        self.audio.labels(protocol).inc(stats.samples / sample_rate)


class Playback:
    """One listener's clock. `asked` before a piece is awaited, `arrived` with it.

    played_rate: samples that are played a second, more than the codec's where the speech is heard faster.
    """

    def __init__(self, metrics: Metrics, protocol: str, played_rate: float, began: float) -> None:
        self._first_byte = metrics.first_byte.labels(protocol)
        self._first_speech = metrics.first_speech.labels(protocol)
        self._lateness = metrics.lateness.labels(protocol)
        self._rate = played_rate
        self._window = max(1, round(WINDOW * played_rate))
        self._began = began
        self._asked = began
        self._silent = True
        self.plays_until: float | None = None
        "When the listener runs dry (time.monotonic)."
        self.first: float | None = None
        "Seconds from the request's arrival to the first samples, less those in which its text was waited for."

    def asked(self) -> None:
        self._asked = time.monotonic()

    def arrived(self, samples: Samples, wait: Wait) -> None:
        now = time.monotonic()
        if self.plays_until is None:
            self._began += wait.seconds
            self.first = now - self._began
            self._first_byte.observe(self.first)
            self.plays_until = now
        else:
            if wait.until <= self.plays_until:
                self._lateness.observe(max(0.0, now - max(self.plays_until, self._asked)))
            self.plays_until = max(self.plays_until, now)  # a player that ran dry goes on when something comes
        if self._silent:
            self._look_for_speech(samples)
        self.plays_until += len(samples) / self._rate

    def _look_for_speech(self, samples: Samples) -> None:
        assert self.plays_until is not None
        for start in range(0, len(samples), self._window):
            window = samples[start : start + self._window]
            if float(np.mean(window * window)) > GATE**2:
                self._first_speech.observe(self.plays_until + start / self._rate - self._began)
                self._silent = False
                return


class _CodecCollector:
    def __init__(self, synthesizer: Synthesizer) -> None:
        self._codec = synthesizer.codec

    def collect(self) -> Iterable[Metric]:
        codec = self._codec
        batches = codec.batches.copy()
        buckets = [(f"{size}.0", sum(steps for frames, steps in batches.items() if frames <= size)) for size in CODEC_BATCHES] + [
            ("+Inf", sum(batches.values()))
        ]
        yield HistogramMetricFamily(
            "orpheus_codec_batch_frames",
            "Frames that a step of the codec decoded together",
            buckets=buckets,
            sum_value=sum(frames * steps for frames, steps in batches.items()),
        )
        yield GaugeMetricFamily("orpheus_codec_free_slots", "Streams that the codec could take now", value=codec.free_slots)
