"""Results as one HTML file that needs nothing else: facts, a table, plots as inline SVG, what the words mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from .plan import BenchError
from .plots import legend, panels, svg
from .report import JITTER_BUFFER, LIMITS, Limits
from .result import read_result
from .tables import columns_of

MEANINGS = {
    "level": "requests at once (closed loop: each client asks again when its answer is complete); P: mean utterances that play "
    "at once, with Poisson arrivals; x trace: times the pace of a trace file",
    "TTFB": "from when a request was due to the first byte of audio",
    "speech": "from when a request was due to the arrival of the first sample above 1 % of full scale",
    "late": "the smallest jitter buffer with which an answer would have played, from its first byte on, without a gap",
    "real time": f"share of all requests that were answered without error and at most {1000 * JITTER_BUFFER:.0f} ms late",
    "audio s/s": "seconds of audio that arrived a second, within the measured time",
    "CPU cores, GPU": "of the whole machine, clients included; a GPU is busy while anything runs on it",
    "cost / h": "price of the GPU an hour, by seconds of audio a second",
    "holds": "real time and TTFB p95 within the limits",
}

STYLE = """
:root { color-scheme: light dark; --line: #8886; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 84rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line); } th { vertical-align: bottom; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(28rem, 100%), 1fr)); gap: 1.5rem; }
figure { margin: 0; } figure > svg { width: 100%; height: auto; } ul { list-style: none; padding: 0; margin: 0; }
ul { font-size: .85rem; }
figcaption li { display: inline-block; margin-right: 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; } dd { margin: 0; overflow-wrap: anywhere; }
dt { font-weight: 600; }
code { font-size: .9em; }
"""


def read_side_by_side(paths: Sequence[Path]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The files' results, and all their rows, with labels that tell files apart. Raises BenchError."""
    results = [read_result(path) for path in paths]
    for path, result in zip(paths, results, strict=True):
        if not all("ttfb_ms" in row and "machine" in row for row in result["levels"]):
            raise BenchError(f"{path}: its levels are not those of a server under load")
    names = [{row.get("label", result["name"]) for row in result["levels"]} for result in results]
    files = _short_names(paths)
    taken = Counter(label for labels in names for label in labels)
    rows = []
    for file, result in zip(files, results, strict=True):
        for row in result["levels"]:
            label = row.get("label", result["name"])
            rows.append({**row, "label": f"{label} ({file})" if taken[label] > 1 else label})
    return results, rows


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path, without the suffix, as many as it takes to tell it from the others."""
    whole = [path.absolute().with_suffix("").parts for path in paths]
    names = []
    for parts in whole:
        count = 1
        while count < len(parts) and sum(other[-count:] == parts[-count:] for other in whole) > 1:
            count += 1
        names.append("/".join(parts[-count:]))
    return names


def page(results: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> str:
    """The whole file's text."""
    title = " and ".join(dict.fromkeys(str(result["name"]) for result in results))
    figures = [
        f"<figure>{svg(panel)}<figcaption>{legend(panel)}</figcaption></figure>" for panel in panels(rows, limits_of(results))
    ]
    doubts = [
        f"<li>{escape(row['label'])}, {row['level']:g}: {escape(said)}</li>"
        for row in rows
        for said in [*row.get("misses", ()), *row.get("warnings", ())]
    ]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<h2>Levels</h2><div class="wide">{_table(rows)}</div>',
        f"<h2>Limits and warnings</h2><ul>{''.join(doubts)}</ul>" if doubts else "",
        f'<h2>Plots</h2><p>Dotted: the limit, or as much audio as is played.</p><div class="plots">{"".join(figures)}</div>',
        "<h2>How it was measured</h2>" + "".join(_facts(result) for result in results),
        f"<h2>Meanings</h2>{_list(MEANINGS)}",
    ]
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body><main>{body}</main></body></html>\n'
    )


def limits_of(results: Sequence[Mapping[str, Any]]) -> Limits:
    """Those of the first result that says its own."""
    said = [limits for result in results if (limits := result.get("settings", {}).get("limits"))]
    return Limits(**said[0]) if said else LIMITS


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    columns = columns_of(rows)
    head = "".join(f'<th scope="col">{escape(column.head)}</th>' for column in columns)
    lines = ["".join(f"<td>{escape(column.cell(row))}</td>" for column in columns) for row in rows]
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"


def _facts(result: Mapping[str, Any]) -> str:
    facts = {"result": result["name"], **{name: result.get(name) for name in ("date", "commit", "command")}}
    for name in ("hardware", "versions", "settings"):
        facts[name] = ", ".join(
            f"{key} {_said(value)}" for key, value in (result.get(name) or {}).items() if value not in (None, {})
        )
    for found in result.get("searches", ()):
        facts[f"search, {found['label']}"] = f"the highest level that holds is {found['highest'] or 'none'}"
    return _list({key: str(value) for key, value in facts.items() if value})


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {_said(inner)}" for key, inner in value.items()) + ")"
    return "; ".join(map(_said, value)) if isinstance(value, list) else str(value)


def _list(pairs: Mapping[str, str]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in pairs.items()) + "</dl>"
