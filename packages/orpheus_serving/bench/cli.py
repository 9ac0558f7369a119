"""`orpheus-serving bench`: levels of load against a running server, a table, and a JSON file."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .load import TEXTS, BenchError, Load, Target, run_load, texts
from .report import summarise, table, watch_machine
from .result import write_result


def add_bench_command(commands: Any) -> None:
    bench = commands.add_parser("bench", help="load a running server and say how many streams it keeps in real time")
    bench.add_argument("--url", default="http://127.0.0.1:8000/v1/audio/speech", help="where requests are posted")
    bench.add_argument("--api-key")
    bench.add_argument("--levels", type=int, nargs="+", default=[1, 4, 16], help="streams at once")
    bench.add_argument("--arrivals", choices=("closed", "poisson"), default="closed")
    bench.add_argument("--seconds", type=float, default=20.0, help="measured time of a level")
    bench.add_argument("--ramp", type=float, default=10.0, help="seconds before that, not counted")
    bench.add_argument("--utterance", type=float, default=10.0, help="mean length of a request in seconds, for poisson")
    bench.add_argument("--processes", type=int, default=4, help="client processes")
    bench.add_argument("--texts", nargs="+", choices=tuple(TEXTS), default=list(TEXTS), help="what is spoken, mixed")
    bench.add_argument("--voice")
    bench.add_argument("--max-tokens", type=int, help="cuts every answer at the same length")
    bench.add_argument("--gpu-price", type=float, help="money an hour; gives the cost of an hour of speech")
    bench.add_argument("--out", type=Path, help="write the levels as JSON")
    bench.set_defaults(run=main)


def target_of(args: argparse.Namespace) -> Target:
    body: dict[str, Any] = {"response_format": "pcm"}
    body |= {name: getattr(args, name) for name in ("voice", "max_tokens") if getattr(args, name) is not None}
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    return Target(args.url, texts(args.texts), body, headers=headers)


def run_levels(target: Target, loads: Sequence[Load], gpu_price: float | None = None, **result: Any) -> list[dict[str, Any]]:
    """Run loads one after another, print a table that grows, and write `result["out"]` after each, if there is one."""
    rows: list[dict[str, Any]] = []
    out = result.pop("out", None)
    for load in loads:
        with watch_machine() as machine:
            outcomes = run_load(target, load)
        rows.append(summarise(outcomes, load, machine, gpu_price))
        print(table(rows).split("\n")[-1] if len(rows) > 1 else table(rows), flush=True)
        if out is not None:
            settings = {"body": target.body, "texts": len(target.texts), "load": {"seconds": load.seconds, "ramp": load.ramp}}
            write_result(out, "serving", rows, settings=settings | result.get("settings", {}), commit=result.get("commit"))
    return rows


def main(args: argparse.Namespace) -> int:
    """Exit status 0, or 1 where no request of some level was answered."""
    target = target_of(args)
    asyncio.run(_reachable(target))
    loads = [
        Load(level, args.arrivals, args.seconds, args.ramp, args.utterance, args.processes, seed)
        for seed, level in enumerate(args.levels)
    ]
    rows = run_levels(target, loads, args.gpu_price, out=args.out)
    silent = [row["level"] for row in rows if sum(row["errors"].values()) == row["requests"]]
    if silent:
        print(f"orpheus-serving bench: no request was answered at {silent}", file=sys.stderr)
    return 1 if silent else 0


async def _reachable(target: Target) -> None:
    """One request, uncounted: a wrong address or key is better said before the load. Raises BenchError."""
    import httpx

    async with httpx.AsyncClient(timeout=target.timeout, headers=target.headers) as session:
        try:
            answer = await session.post(target.url, json={**target.body, target.text_field: target.texts[0]})
        except httpx.HTTPError as error:
            raise BenchError(f"{target.url}: {error or type(error).__name__}") from error
    if answer.status_code != 200:
        raise BenchError(f"{target.url}: status {answer.status_code}: {answer.text[:300]}")
