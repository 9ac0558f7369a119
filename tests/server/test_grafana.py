"""The dashboard of examples/grafana asks only for what /metrics has: every name, label and bucket of its queries."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
from live import LiveServer
from prometheus_client.parser import text_string_to_metric_families

DASHBOARD = json.loads((Path(__file__).parents[2] / "examples/grafana/orpheus-serving.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval"}


def queries() -> Iterator[str]:
    for panel in PANELS:
        yield from (target["expr"] for target in panel["targets"])
    yield from (variable["definition"] for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query")


@pytest.fixture(scope="module")
def known(shared_server: LiveServer) -> dict[str, dict[str, set[str]]]:
    """{sample: {label: values}} of a server that has spoken once."""
    body = {"input": "Hello there.", "response_format": "pcm"}
    httpx.post(f"{shared_server.url}/v1/audio/speech", json=body, timeout=30).raise_for_status()
    shared_server.settle()
    known: dict[str, dict[str, set[str]]] = {}
    for family in text_string_to_metric_families(httpx.get(f"{shared_server.url}/metrics").text):
        for sample in family.samples:
            labels = known.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return known


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_a_query_asks_for_what_there_is(query: str, known: dict[str, dict[str, set[str]]]) -> None:
    names = re.findall(r"orpheus_\w+", query)
    assert names
    assert set(names) <= set(known)
    for name, matchers in re.findall(r"(orpheus_\w+)\{(.*?)\}", query):
        for label, value in re.findall(r'(\w+)=~?"(.*?)"', matchers):
            assert label in known[name]
            assert label != "le" or value in known[name]["le"]
    for labels in re.findall(r"by \((.*?)\)", query):
        assert all(label in known[name] for name in names for label in labels.split(", "))
    assert set(re.findall(r"\$(\w+)", query)) <= VARIABLES
    assert query.count("(") == query.count(")")


def test_every_metric_is_shown(known: dict[str, dict[str, set[str]]]) -> None:
    def base(name: str) -> str:
        return re.sub(r"_(bucket|count|sum)$", "", name)

    shown = {base(name) for query in queries() for name in re.findall(r"orpheus_\w+", query)}
    assert shown == {base(name) for name in known if name.startswith("orpheus_") and not name.endswith("_created")}


def test_panels_lie_side_by_side() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        place = panel["gridPos"]
        return {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}

    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for one, other in combinations(DASHBOARD["panels"], 2):
        assert not cells(one) & cells(other), (one["title"], other["title"])
    assert all(x < 24 for panel in DASHBOARD["panels"] for x, _ in cells(panel))
