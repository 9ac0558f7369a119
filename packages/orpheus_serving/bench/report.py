"""What client processes saw at a level -> one row of numbers, and whether the level holds."""

from __future__ import annotations

import ipaddress
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from .load import Measured
from .plan import Target

JITTER_BUFFER = 0.1  # seconds
MOST_LAG = 0.010  # seconds, p99 of a client's event loop; more is said, since it is in every time that was taken
MOST_BUSY = 0.8  # of a core, a client process; likewise
MOST_FRESH = 0.05  # of the requests that count, that had to open a connection


@dataclass(frozen=True, slots=True)
class Limits:
    """When a level holds. A request that failed is not real time."""

    real_time_share: float = 0.99
    ttfb_p95: float = 0.3  # seconds


LIMITS = Limits()


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p95, p99 of seconds, in milliseconds: the smallest value that so many per cent do not exceed (nearest rank)."""
    ordered = sorted(values)
    row: dict[str, float | None] = {}
    for share in (50, 95, 99):
        rank = -(-share * len(ordered) // 100)
        row[f"p{share}"] = round(1000 * ordered[max(rank, 1) - 1], 1) if ordered else None
    return row


def summarise(measured: Measured, target: Target, limits: Limits = LIMITS, gpu_price: float | None = None) -> dict[str, Any]:
    """The requests that count as numbers. One that failed is not real time, and has no other numbers.

    gpu_price: of an hour of the GPU; gives the cost of an hour of speech in the same money.
    """
    load = measured.load
    counted = [o for seen in measured.seen for o in seen.outcomes if o.counted]
    good = [o for o in counted if o.error is None]
    window = measured.seconds
    rate = sum(seen.audio for seen in measured.seen) / window
    row: dict[str, Any] = {
        "label": target.label,
        "transport": "websocket" if target.websocket else "http",
        "level": load.level,
        "arrivals": load.arrivals,
        **({"utterance": load.utterance} if load.arrivals == "poisson" else {}),
        "seconds": round(window, 2),
        "requests": len(counted),
        "requests_per_s": round(len(counted) / window, 2),
        "playing": round(sum(o.audio for o in good) / window, 1),
        "errors": dict(Counter(o.error for o in counted if o.error is not None)),
        "ttfb_ms": percentiles([o.ttfb for o in good if o.ttfb is not None]),
        "first_speech_ms": percentiles([o.first_speech for o in good if o.first_speech is not None]),
        "lead_in_ms": percentiles([o.lead_in for o in good if o.lead_in is not None]),
        "lateness_ms": percentiles([o.lateness for o in good]),
        "real_time_share": round(sum(o.lateness <= JITTER_BUFFER for o in good) / len(counted), 4) if counted else 0.0,
        "audio_s": round(statistics.mean([o.audio for o in good]), 2) if good else 0.0,
        "audio_s_per_s": round(rate, 1),
        "machine": measured.machine | {"is_server": _is_here(target.url)},
        "client": _client(measured, counted),
    }
    if gpu_price is not None and rate:
        row["cost_per_hour_of_speech"] = round(gpu_price / rate, 5)
    if details := {reason: text for seen in measured.seen for reason, text in seen.details.items()}:
        row["error_details"] = details
    row["misses"] = misses(row, limits)
    row["holds"] = not row["misses"]
    row["warnings"] = warnings(row)
    return row


def misses(row: Mapping[str, Any], limits: Limits) -> list[str]:
    """What keeps a level from holding; empty where it holds."""
    found = []
    if not row["requests"]:
        found.append("no request was due in the measured time; longer --seconds")
    elif row["real_time_share"] < limits.real_time_share:
        found.append(f"{100 * row['real_time_share']:.1f} % real time, not {100 * limits.real_time_share:g} %")
    p95 = row["ttfb_ms"]["p95"]
    if p95 is not None and p95 > 1000 * limits.ttfb_p95:
        found.append(f"TTFB p95 {p95:.0f} ms, not {1000 * limits.ttfb_p95:.0f}")
    return found


def warnings(row: Mapping[str, Any]) -> list[str]:
    """What makes a row's numbers doubtful: a client that was the limit itself, connections that were not warm."""
    client = row["client"]
    found = []
    if (lag := client["lag_ms"]["p99"]) is not None and lag > 1000 * MOST_LAG:
        found.append(f"the clients' event loops were up to {lag:.0f} ms late (p99), and so are times; more --processes, or cores")
    if client["busiest"] > MOST_BUSY:
        found.append(f"a client process used {100 * client['busiest']:.0f} % of a core; more --processes")
    if client["fresh_share"] > MOST_FRESH:
        found.append(f"{100 * client['fresh_share']:.0f} % of the requests opened a connection; a longer --ramp warms more")
    return found


def _client(measured: Measured, counted: Sequence[Any]) -> dict[str, Any]:
    lags = [lag for seen in measured.seen for lag in seen.lags]
    return {
        "processes": len(measured.seen),
        "cpu_cores": round(sum(seen.cpu for seen in measured.seen), 2),
        "busiest": round(max(seen.cpu for seen in measured.seen), 2),
        "lag_ms": percentiles(lags) | {"max": round(1000 * max(lags), 1) if lags else None},
        "sent_late_ms": percentiles([o.sent for o in counted]),
        "fresh_share": round(sum(o.fresh for o in counted) / len(counted), 3) if counted else 0.0,
    }


def _is_here(url: str) -> bool:
    """Whether the server is surely this machine, so that the machine's use is the server's (and the clients')."""
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
