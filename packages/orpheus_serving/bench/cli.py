"""`orpheus-serving bench`: levels of load against running servers, a table, JSON and plots.

bench --levels 1 64 128 --out r.json       levels one after another
bench --search --out r.json                the highest level that holds
bench report a.json b.json --html r.html   results side by side
bench table r.json                         Markdown
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from . import tables
from .load import run_load
from .page import limits_of, page, read_side_by_side
from .plan import Arrival, BenchError, Load, Target, read_trace
from .plots import panels, png_figure, write_png
from .report import Limits, summarise
from .result import write_result
from .search import search
from .texts import LENGTHS
from .transport import Failed, open_session

URL = "http://127.0.0.1:8000/v1/audio/speech"


def add_bench_command(commands: Any) -> None:
    bench = commands.add_parser("bench", help="load running servers and say how many streams they keep in real time")
    whom = bench.add_argument_group("whom to ask")
    whom.add_argument(
        "--url", action="append", help=f"http(s) is posted to, ws(s) speaks /tts/websocket; again for a peer ({URL})"
    )
    whom.add_argument("--label", action="append", help="a name for each --url, in their order")
    whom.add_argument("--api-key", help="sent as Authorization: Bearer")
    whom.add_argument("--voice")
    whom.add_argument("--max-tokens", type=_count, help="cuts every answer at the same length")
    whom.add_argument("--body", type=_object, default={}, metavar="JSON", help="more keys of every request")
    whom.add_argument("--text-field", default="input", help="the request's key of the text (default: input)")
    whom.add_argument("--sample-rate", type=_count, default=24_000, help="of bare PCM (default: 24000)")
    whom.add_argument("--timeout", type=_positive, default=120.0, help="seconds until a request is given up (default: 120)")
    load = bench.add_argument_group("how much")
    load.add_argument("--levels", type=_positive, nargs="+", help="streams at once (default: 1 4 16); of --trace: times its pace")
    load.add_argument(
        "--arrivals", choices=("closed", "poisson"), help="closed: again when answered (default); poisson: at random"
    )
    load.add_argument(
        "--trace", type=Path, metavar="FILE", help='requests at given moments: lines of {"at": seconds, "text": ...}'
    )
    load.add_argument("--search", action="store_true", help="look for the highest level that holds, from the first of --levels")
    load.add_argument("--most", type=_count, default=1024, help="the highest level that --search tries (default: 1024)")
    load.add_argument(
        "--then-poisson", type=_positive, metavar="PERCENT", help="after --search: Poisson at so much of what it found"
    )
    load.add_argument("--seconds", type=_positive, help="measured time of a level (default: 20; of --trace: to its end)")
    load.add_argument("--ramp", type=_not_negative, default=10.0, help="seconds before that, not counted (default: 10)")
    load.add_argument(
        "--utterance", type=_positive, default=7.0, help="mean seconds of audio of a request, for poisson (default: 7)"
    )
    load.add_argument("--processes", type=_count, default=4, help="client processes (default: 4)")
    load.add_argument(
        "--texts", nargs="+", choices=tuple(LENGTHS), default=list(LENGTHS), help="lengths of what is spoken, mixed"
    )
    what = bench.add_argument_group("what comes of it")
    what.add_argument("--ttfb-limit", type=_positive, default=300.0, help="p95 in ms up to which a level holds (default: 300)")
    what.add_argument("--real-time-limit", type=_percent, default=99.0, help="per cent of streams, likewise (default: 99)")
    what.add_argument("--gpu-price", type=_positive, help="money an hour; gives the cost of an hour of speech")
    what.add_argument("--out", type=Path, help="write the levels as JSON")
    what.add_argument("--html", type=Path, help="write table and plots as one HTML file")
    what.add_argument("--png", type=Path, help="write the plots as a picture (needs matplotlib)")
    what.add_argument("--name", default="serving", help="of the result, in tables and plots")
    what.add_argument("--commit", help="of the code measured, where the bench does not run in its checkout")
    bench.set_defaults(run=main)
    verbs = bench.add_subparsers(metavar="report | table")
    report = verbs.add_parser("report", help="results side by side: a table, and plots as HTML or PNG")
    report.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results that the bench has written")
    report.add_argument("--html", type=Path, help="one file that needs nothing else")
    report.add_argument("--png", type=Path, help="the plots as a picture (needs matplotlib)")
    report.set_defaults(run=report_main)
    table = verbs.add_parser("table", help="results as tables in Markdown; in a page, between its markers")
    tables.add_table_arguments(table)
    table.set_defaults(run=tables.main)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def _positive(text: str) -> float:
    if not 0 < (number := _number(text)) < 1e9:
        raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
    return number


def _not_negative(text: str) -> float:
    if not 0 <= (number := _number(text)) < 1e9:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text}")
    return number


def _percent(text: str) -> float:
    if not 0 < (number := _number(text)) <= 100:
        raise argparse.ArgumentTypeError(f"must be a percentage, above 0 and at most 100, not {text}")
    return number


def _count(text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) < 10**9:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text}")
    return value


@dataclass(slots=True)
class Bench:
    """Loads one after another; each is a row, is said on standard error, and is written to `out` at once."""

    limits: Limits = field(default_factory=Limits)
    gpu_price: float | None = None
    out: Path | None = None
    name: str = "serving"
    commit: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    found: list[dict[str, Any]] = field(default_factory=list)  # by searches

    def measure(self, target: Target, load: Load) -> dict[str, Any]:
        row = summarise(run_load(target, load), target, self.limits, self.gpu_price)
        self.rows.append(row)
        print(tables.progress(row), file=sys.stderr, flush=True)
        self.write(target, load)
        return row

    def search(self, target: Target, load: Load, most: int) -> int:
        """The highest level at which the load holds, from its own on; 0 where none did."""

        def holds(level: int) -> bool:
            known = [
                row for row in self.rows if (row["label"], row["arrivals"], row["level"]) == (target.label, load.arrivals, level)
            ]
            return (known[-1] if known else self.measure(target, replace(load, level=level, seed=level)))["holds"]

        start = int(load.level)
        highest = search(holds, start, most)
        self.found.append({"label": target.label, "arrivals": load.arrivals, "highest": highest, "from": start, "most": most})
        print(f"{target.label}: the highest level that holds is {highest or 'none'}", file=sys.stderr, flush=True)
        self.write(target, load)
        return highest

    def poisson(self, target: Target, load: Load, level: int) -> None:
        """Poisson arrivals. What a Poisson level means depends on the length of a request: it is that of the last row."""
        utterance = self.rows[-1]["audio_s"] if self.rows and self.rows[-1]["audio_s"] else load.utterance
        self.measure(target, replace(load, arrivals="poisson", level=level, seed=level, utterance=utterance))

    def write(self, target: Target, load: Load) -> None:
        if self.out is None:
            return
        asked = {"body": target.body, "text_field": target.text_field}
        how = {name: getattr(load, name) for name in ("ramp", "utterance", "processes", "texts")}
        how["seconds"] = round(load.end - load.ramp, 2)
        settings = asked | {"load": how, "limits": asdict(self.limits), "gpu_price": self.gpu_price} | self.settings
        searches = {"searches": self.found} if self.found else None
        write_result(self.out, self.name, self.rows, settings=settings, commit=self.commit, more=searches)


def targets_of(args: argparse.Namespace) -> list[Target]:
    """Raises BenchError."""
    urls = args.url or [URL]
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https", "ws", "wss") or not parts.netloc:
            raise BenchError(f"--url: must begin with http://, https://, ws:// or wss:// and a host, not {url!r}")
    labels = args.label or ([urlsplit(url).netloc.rpartition("@")[2] for url in urls] if len(urls) > 1 else ["server"])
    if len(labels) != len(urls) or len(set(labels)) != len(labels):
        raise BenchError(f"--label: {len(urls)} different names are needed, one for each --url, not {', '.join(labels)}")
    common = {name: getattr(args, name) for name in ("voice", "max_tokens") if getattr(args, name) is not None} | args.body
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    targets = []
    for url, label in zip(urls, labels, strict=True):
        body = common if url.startswith("ws") else {"response_format": "pcm"} | common
        targets.append(Target(url, label, body, args.text_field, headers, args.sample_rate, args.timeout))
    return targets


def loads_of(args: argparse.Namespace) -> list[Load]:
    """One a level; of a search, the first. Raises BenchError."""
    if args.trace and args.arrivals:
        raise BenchError("--arrivals: a --trace says itself when requests come; give one of the two")
    if args.trace and args.search:
        raise BenchError("--search: works with closed loops and Poisson arrivals, not with a --trace")
    if args.then_poisson and not args.search:
        raise BenchError("--then-poisson: goes with --search")
    levels: Sequence[float] = args.levels or ([1.0] if args.trace else [16.0] if args.search else [1.0, 4.0, 16.0])
    trace: tuple[Arrival, ...] = read_trace(args.trace) if args.trace else ()
    arrivals: Literal["closed", "poisson", "trace"] = "trace" if trace else args.arrivals or "closed"
    seconds = args.seconds or (float("inf") if trace else 20.0)
    loads = []
    for level in levels:
        if not trace and not level.is_integer():
            raise BenchError(f"--levels: streams come in whole numbers, not {level:g}")
        whole = level if trace else int(level)
        seed = int(level)  # of the level itself, so that it has the same texts whichever others run before it
        load = Load(whole, arrivals, seconds, args.ramp, args.utterance, args.processes, seed, tuple(args.texts), trace)
        if trace and not any(load.counts(arrival.at / level) for arrival in trace):
            raise BenchError(
                f"--ramp: no request of the trace comes after {args.ramp:g} s, so none would count; --ramp 0 counts all"
            )
        loads.append(load)
    return loads


def main(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 where no request of some level was answered."""
    targets, loads = targets_of(args), loads_of(args)
    limits = Limits(args.real_time_limit / 100, args.ttfb_limit / 1000)
    _check_outputs(args, "out", "html", "png")
    for target in targets:
        asyncio.run(_reachable(target))
    bench = Bench(limits, args.gpu_price, args.out, args.name, args.commit)
    if args.search:
        for target in targets:
            highest = bench.search(target, loads[0], args.most)
            if args.then_poisson and highest:
                bench.poisson(target, loads[0], max(1, int(highest * args.then_poisson / 100)))
    else:
        for load in loads:
            for target in targets:
                bench.measure(target, load)
    print(tables.terminal(bench.rows), flush=True)
    if args.html or args.png:
        with tempfile.TemporaryDirectory() as folder:
            if bench.out is None:
                bench.out = Path(folder) / "result.json"
                bench.write(targets[0], loads[0])
            draw(*read_side_by_side([bench.out]), args.html, args.png)
    silent = [f"{row['label']} at {row['level']:g}" for row in bench.rows if sum(row["errors"].values()) == row["requests"]]
    if silent:
        print(f"orpheus-serving bench: no request was answered: {', '.join(silent)}", file=sys.stderr)
    return 1 if silent else 0


def report_main(args: argparse.Namespace) -> int:
    _check_outputs(args, "html", "png")
    results, rows = read_side_by_side(args.files)
    print(tables.terminal(rows))
    draw(results, rows, args.html, args.png)
    return 0


def draw(results: list[dict[str, Any]], rows: list[dict[str, Any]], html: Path | None, png: Path | None) -> None:
    """Write what is asked for. Raises BenchError."""
    if html is not None:
        html.write_text(page(results, rows), encoding="utf-8")
    if png is not None:
        write_png(png, panels(rows, limits_of(results)))


def _check_outputs(args: argparse.Namespace, *names: str) -> None:
    """That they can be written: before the load, not after it. Raises BenchError."""
    for name in names:
        path = getattr(args, name)
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise BenchError(f"--{name}: must be a file in a folder that exists, not {path}")
    if args.png is not None:
        png_figure()


async def _reachable(target: Target) -> None:
    """One request, uncounted: a wrong address or key is better said before the load. Raises BenchError."""
    session = open_session(target)
    heard = 0

    def count(data: bytes, now: float) -> None:
        nonlocal heard
        heard += len(data)

    try:
        async with asyncio.timeout(target.timeout):
            await session.speak("Hello there.", None, count)
    except TimeoutError:
        raise BenchError(f"--url: {target.url}: no whole answer within {target.timeout:g} s") from None
    except Failed as error:
        raise BenchError(f"--url: {target.url}: {error} {error.detail}".rstrip()) from error
    finally:
        await session.close()
    if not heard:
        raise BenchError(f"--url: {target.url}: answered without a byte of audio")
