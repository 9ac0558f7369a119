"""Rows as tables: for a terminal, and in Markdown for pages that show measured numbers.

    orpheus-serving bench table FILE...                     prints Markdown
    orpheus-serving bench table --update docs/page.md       rewrites the tables between its markers

A page marks a table, at the beginning of a line, with its files, relative to the page, and options of `bench table`:

    <!-- bench table ../benchmarks/results/serving.json --columns streams ttfb -->
    (the table)
    <!-- /bench table -->
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .plan import BenchError
from .result import read_result

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    head: str
    cell: Callable[[Row], str]
    needed: Callable[[Row], bool] = lambda row: True  # left out where no row needs it


def _split(name: str, *shares: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        return " / ".join("-" if (value := row[name][share]) is None else f"{value:.0f}" for share in shares)

    return cell


def _streams(row: Row) -> str:
    mark = {"closed": "", "poisson": " P", "trace": " x trace"}[row["arrivals"]]
    return f"{row['level']:g}{mark}"


def _cost(row: Row) -> str:
    cost = row.get("cost_per_hour_of_speech")
    return "-" if cost is None else f"{cost:.4f}"


def _machine(name: str, form: str) -> Callable[[Row], str]:
    return lambda row: form.format(row["machine"][name]) if name in row["machine"] and _here(row) else "-"


def _here(row: Row) -> bool:
    return row["machine"].get("is_server", True)


COLUMNS = {
    "server": Column("server", lambda row: row.get("label", "-"), lambda row: "label" in row),
    "streams": Column("streams", _streams),
    "requests": Column("requests", lambda row: str(row["requests"])),
    "ttfb": Column("TTFB p50 / p95 / p99 ms", _split("ttfb_ms", "p50", "p95", "p99")),
    "speech": Column("speech p50 / p95 ms", _split("first_speech_ms", "p50", "p95")),
    "late": Column("late p50 / p95 / p99 ms", _split("lateness_ms", "p50", "p95", "p99")),
    "real-time": Column("real time", lambda row: f"{100 * row['real_time_share']:.1f} %"),
    "audio": Column("audio s/s", lambda row: f"{row['audio_s_per_s']:.0f}"),
    "errors": Column("errors", lambda row: str(sum(row["errors"].values()))),
    "cpu": Column("CPU cores", _machine("cpu_cores", "{:.1f}")),
    "gpu": Column("GPU", _machine("gpu_busy", "{:.0f} %"), lambda row: "gpu_busy" in row["machine"] and _here(row)),
    "cost": Column("cost / h", _cost, lambda row: "cost_per_hour_of_speech" in row),
    "holds": Column("holds", lambda row: {None: "-", True: "yes", False: "no"}[row.get("holds")], lambda row: "holds" in row),
}


def columns_of(rows: Sequence[Row], names: Sequence[str] = ()) -> list[Column]:
    """The named columns, or all that some row needs; the server's only where there are several."""
    if names:
        return [COLUMNS[name] for name in names]
    several = len({row.get("label") for row in rows}) > 1
    return [column for name, column in COLUMNS.items() if any(map(column.needed, rows)) and (several or name != "server")]


def terminal(rows: Sequence[Row]) -> str:
    """For people, a line a level; P marks Poisson arrivals."""
    columns = columns_of(rows)
    cells = [[column.head for column in columns], *([column.cell(row) for column in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(heads), "|" + "|".join("---" for _ in heads) + "|", *map(line, lines)])


def progress(row: Row) -> str:
    """A line for somebody who waits."""
    p95 = row["ttfb_ms"]["p95"]
    text = f"{row['label']}, {_streams(row)}: {row['requests']} requests, {100 * row['real_time_share']:.1f} % real time, "
    text += f"TTFB p95 {'-' if p95 is None else f'{p95:.0f} ms'}, {row['audio_s_per_s']:.0f} s/s; "
    text += "holds" if row["holds"] else "does not hold: " + ", ".join(row["misses"])
    for reason, count in row["errors"].items():
        text += f"\n  {count} x {reason} {row.get('error_details', {}).get(reason, '')}".rstrip()
    return "\n  warning: ".join([text, *row["warnings"]])


# ---------------------------------------------------------------------------------------------------------- result files


def result_table(result: Mapping[str, Any], names: Sequence[str] = ()) -> str:
    """A result file's rows in Markdown. Rows that are not a server's get a column a key. Raises BenchError for a column."""
    rows = result["levels"]
    served = all("ttfb_ms" in row and "machine" in row for row in rows)
    known = list(COLUMNS) if served else list(dict.fromkeys(key for row in rows for key in row))
    if unknown := [name for name in names if name not in known]:
        raise BenchError(f"--columns: there is no {unknown[0]!r} in {result['name']!r}; there are {', '.join(known)}")
    if served:
        columns = columns_of(rows, names)
        return markdown([column.head for column in columns], [[column.cell(row) for column in columns] for row in rows])
    names = names or known
    return markdown([_plain_head(name, rows) for name in names], [[_plain(row.get(name)) for name in names] for row in rows])


def caption(result: Mapping[str, Any], link: str) -> str:
    """Where the numbers are from, a line of Markdown."""
    hardware, versions = result.get("hardware", {}), result.get("versions", {})
    place = ", ".join([*(gpu.split(",")[0] for gpu in hardware.get("gpu") or ()), f"{hardware.get('cores', '?')} CPU cores"])
    parts = [f"{name} {versions[name]}" for name in ("vllm", "tensorrt-llm", "torch") if name in versions]
    facts = [str(result.get("date", ""))[:10], f"commit {result.get('commit')}", place, *parts]
    return f"[{result['name']}]({link}): {', '.join(facts)}. `{result.get('command', '')}`"


def _plain_head(name: str, rows: Sequence[Row]) -> str:
    first = next((row[name] for row in rows if isinstance(row.get(name), Mapping)), None)
    return name.replace("_", " ") + (f" {' / '.join(map(str, first))}" if first else "")


def _plain(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    if isinstance(value, Mapping):
        return " / ".join(map(_plain, value.values()))
    if isinstance(value, list):
        return " / ".join(map(_plain, value))
    return str(value)


# ------------------------------------------------------------------------------------------------------------------ pages

BLOCK = re.compile(
    r"(?P<begin>^<!-- bench table (?P<arguments>[^\n]*?) -->\n)(?P<table>.*?)(?P<end>^<!-- /bench table -->)", re.S | re.M
)


class _Marker(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _add_what(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="results that the bench has written")
    parser.add_argument("--columns", nargs="+", default=[], metavar="NAME", help=f"some of {', '.join(COLUMNS)}")
    parser.add_argument("--no-caption", action="store_true", help="leave out the line that says where the numbers are from")


def add_table_arguments(parser: argparse.ArgumentParser) -> None:
    _add_what(parser)
    pages = parser.add_mutually_exclusive_group()
    pages.add_argument(
        "--update", nargs="+", type=Path, metavar="PAGE", help="rewrite the tables of Markdown pages, between their markers"
    )
    pages.add_argument(
        "--check", nargs="+", type=Path, metavar="PAGE", help="fail where a page is not what --update would make of it"
    )


def main(args: argparse.Namespace) -> int:
    option, pages = ("--update", args.update) if args.update else ("--check", args.check)
    if pages and (args.files or args.columns or args.no_caption):
        raise BenchError(f"{option}: the page's markers say which files and columns; name pages alone")
    if not pages:
        if not args.files:
            raise BenchError("table: name at least one FILE, or --update PAGE")
        print(_tables(args, Path()))
        return 0
    for page in pages:
        try:
            before = page.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BenchError(f"{option}: {page}: {error}") from error
        after = rewritten(before, page)
        if args.update:
            page.write_text(after, encoding="utf-8")
        elif after != before:
            raise BenchError(
                f"--check: the tables of {page} are not those of its files: orpheus-serving bench table --update {page}"
            )
    return 0


def rewritten(text: str, page: Path) -> str:
    """The text of a page with its tables made anew. Raises BenchError where it has no markers."""
    parser = _Marker(add_help=False)
    _add_what(parser)

    def block(match: re.Match[str]) -> str:
        try:
            args = parser.parse_args(shlex.split(match["arguments"]))
        except ValueError as error:
            raise BenchError(f"{page}: <!-- bench table {match['arguments']} -->: {error}") from error
        return f"{match['begin']}{_tables(args, page.parent)}\n{match['end']}"

    text, count = BLOCK.subn(block, text)
    if not count:
        raise BenchError(f"{page}: no <!-- bench table FILE --> with its <!-- /bench table --> in it")
    return text


def _tables(args: argparse.Namespace, folder: Path) -> str:
    parts = []
    for file in args.files:
        result = read_result(folder / file)
        parts.append(result_table(result, args.columns) + ("" if args.no_caption else "\n\n" + caption(result, file.as_posix())))
    return "\n\n".join(parts)
