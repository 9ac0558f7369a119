"""Rows -> panels -> one SVG each, drawn here, or one PNG of all, drawn by matplotlib.

A panel has a line for every server and kind of arrivals; its colour and mark are the same in all panels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from .plan import BenchError
from .report import JITTER_BUFFER, LIMITS, Limits

Row = Mapping[str, Any]
Point = tuple[float, float]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # told apart with any kind of colour vision
MARKS = ("o", "s", "^", "D", "v", "P")
ARRIVALS = {"closed": "closed loop", "poisson": "Poisson", "trace": "trace"}


@dataclass(frozen=True, slots=True)
class Line:
    name: str
    series: int  # counts colours and marks
    points: tuple[Point, ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """`log`: the y axis, from 1; what is below is drawn there. `limit`: a line at that height. `diagonal`: a line y = x."""

    title: str
    lines: tuple[Line, ...]
    log: bool = False
    limit: float | None = None
    diagonal: bool = False


def panels(rows: Sequence[Row], limits: Limits = LIMITS) -> list[Panel]:
    """What there are numbers for; each panel over the level."""
    keys = list(dict.fromkeys((row["label"], row["arrivals"]) for row in rows))
    several = len({label for label, _ in keys}) > 1

    def lines(value: Callable[[Row], float | None], suffix: str = "", dashed: bool = False) -> tuple[Line, ...]:
        found = []
        for number, (label, arrivals) in enumerate(keys):
            mine = [row for row in rows if (row["label"], row["arrivals"]) == (label, arrivals)]
            points = sorted((float(row["level"]), float(y)) for row in mine if (y := value(row)) is not None)
            if points:
                name = f"{label}, {ARRIVALS[arrivals]}" if several else ARRIVALS[arrivals]
                found.append(Line(name + suffix, number, tuple(points), dashed))
        return tuple(found)

    def here(row: Row, name: str) -> float | None:
        return row["machine"].get(name) if row["machine"].get("is_server", True) else None

    both = lines(lambda row: row["ttfb_ms"]["p95"], ", p95") + lines(lambda row: row["ttfb_ms"]["p50"], ", p50", dashed=True)
    made = [
        Panel("Time to first byte, ms", both, log=True, limit=1000 * limits.ttfb_p95),
        Panel("Time to first speech, p95, ms", lines(lambda row: row["first_speech_ms"]["p95"]), log=True),
        Panel(
            f"Streams that never underran with a buffer of {1000 * JITTER_BUFFER:.0f} ms, %",
            lines(lambda row: 100 * row["real_time_share"]),
            limit=100 * limits.real_time_share,
        ),
        Panel("Lateness against playback, p99, ms", lines(lambda row: row["lateness_ms"]["p99"]), True, 1000 * JITTER_BUFFER),
        Panel("Seconds of audio a second", lines(lambda row: row["audio_s_per_s"]), diagonal=True),
        Panel("Busy CPU cores", lines(lambda row: here(row, "cpu_cores"))),
        Panel("Busy GPU, %", lines(lambda row: here(row, "gpu_busy"))),
        Panel("Cost of an hour of speech", lines(lambda row: row.get("cost_per_hour_of_speech"))),
    ]
    return [panel for panel in made if panel.lines]


# -------------------------------------------------------------------------------------------------------------------- SVG

WIDTH, HEIGHT = 560, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 28, 36


def svg(panel: Panel) -> str:
    """One panel, to stand in an HTML page, whose colour the text takes."""
    xs = [x for line in panel.lines for x, _ in line.points]
    ys = [y for line in panel.lines for _, y in line.points] + ([panel.limit] if panel.limit is not None else [])
    x_ticks = _ticks(max(xs))
    y_ticks = _powers(max(ys)) if panel.log else _ticks(max(ys))

    def place(x: float, y: float) -> Point:
        top = y_ticks[-1]
        share = math.log10(max(y, 1.0)) / math.log10(top) if panel.log else y / top
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / x_ticks[-1]
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{escape(panel.title)}</text>']
    for tick in y_ticks:
        _, y = place(0, tick)
        parts.append(_path([(LEFT, y), (WIDTH - RIGHT, y)], 'stroke="currentColor" stroke-opacity=".15"'))
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x, _ = place(tick, 1)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">level</text>')
    if panel.limit is not None:
        ends = [place(0, panel.limit), place(x_ticks[-1], panel.limit)]
        parts.append(_path(ends, 'stroke="currentColor" stroke-dasharray="2 4"'))
    if panel.diagonal:
        end = min(x_ticks[-1], y_ticks[-1])
        parts.append(_path([place(0, 0), place(end, end)], 'stroke="currentColor" stroke-dasharray="2 4"'))
    for line in panel.lines:
        colour = COLOURS[line.series % len(COLOURS)]
        points = [place(*point) for point in line.points]
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(_path(points, f'stroke="{colour}" stroke-width="2"{dash}'))
        for (x, y), (level, value) in zip(points, line.points, strict=True):
            said = f"<title>{escape(line.name)}, {level:g}: {value:g}</title>"
            parts.append(f'<g fill="{colour}" transform="translate({x:.1f} {y:.1f})">{said}{_mark(line.series)}</g>')
    described = "; ".join(f"{line.name}: " + ", ".join(f"{x:g}: {y:g}" for x, y in line.points) for line in panel.lines)
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif" '
        f'font-size="12" fill="currentColor" aria-label="{escape(panel.title)}. {escape(described)}">{"".join(parts)}</svg>'
    )


def legend(panel: Panel) -> str:
    """The lines' names with their colours and marks, as HTML."""
    items = []
    for line in panel.lines:
        colour = COLOURS[line.series % len(COLOURS)]
        dash = ' stroke-dasharray="6 4"' if line.dashed else ""
        picture = _path([(0, 8), (32, 8)], f'stroke="{colour}" stroke-width="2"{dash}')
        picture += f'<g fill="{colour}" transform="translate(16 8)">{_mark(line.series)}</g>'
        items.append(f'<li><svg width="32" height="16" aria-hidden="true">{picture}</svg> {escape(line.name)}</li>')
    return f"<ul>{''.join(items)}</ul>"


def _path(points: Sequence[Point], style: str) -> str:
    return f'<polyline points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}" fill="none" {style}/>'


def _mark(series: int) -> str:
    shapes = {
        "o": '<circle r="4"/>',
        "s": '<rect x="-4" y="-4" width="8" height="8"/>',
        "^": '<path d="M0-5 5 4-5 4z"/>',
        "D": '<path d="M0-5 5 0 0 5-5 0z"/>',
        "v": '<path d="M0 5 5-4-5-4z"/>',
        "P": '<path d="M-2-5h4v3h3v4h-3v3h-4v-3h-3v-4h3z"/>',
    }
    return shapes[MARKS[series % len(MARKS)]]


def _ticks(largest: float) -> list[float]:
    """Four to eight round numbers from 0 to `largest` or a little more."""
    if largest <= 0:
        return [0.0, 1.0]
    rough = largest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * round_one for round_one in (1, 2, 5, 10) if power * round_one >= rough)
    return [step * i for i in range(math.ceil(largest / step - 1e-9) + 1)]


def _powers(largest: float) -> list[float]:
    return [10.0**i for i in range(max(1, math.ceil(math.log10(max(largest, 1.0)))) + 1)]


# -------------------------------------------------------------------------------------------------------------------- PNG


def png_figure() -> type[Any]:
    """matplotlib's. Raises BenchError where it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BenchError("--png: needs matplotlib: pip install -r requirements/bench.txt (--html does without)") from error
    return Figure


def write_png(path: Path, made: Sequence[Panel]) -> None:
    """All panels in one picture. Raises BenchError where matplotlib is not installed."""
    height = -(-len(made) // 2)
    figure = png_figure()(figsize=(13, 3.6 * height), layout="constrained")
    for number, panel in enumerate(made):
        axes = figure.add_subplot(height, 2, number + 1)
        axes.set_title(panel.title, fontsize=10)
        for line in panel.lines:
            xs = [x for x, _ in line.points]
            ys = [max(y, 1.0) if panel.log else y for _, y in line.points]
            style = {"color": COLOURS[line.series % len(COLOURS)], "marker": MARKS[line.series % len(MARKS)]}
            axes.plot(xs, ys, linestyle="--" if line.dashed else "-", label=line.name, **style)
        if panel.limit is not None:
            axes.axhline(panel.limit, color="grey", linestyle=":")
        if panel.diagonal:
            axes.axline((0, 0), slope=1, color="grey", linestyle=":")
        if panel.log:
            axes.set_yscale("log")
        axes.set_ylim(bottom=1 if panel.log else 0)
        axes.set_xlim(left=0)
        axes.set_xlabel("level")
        axes.grid(alpha=0.2)
        axes.legend(fontsize=8)
    figure.savefig(path, format="png", dpi=110)
