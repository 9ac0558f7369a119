"""Probes, metrics, logs, draining: what whoever runs the server sees of it."""

from __future__ import annotations

import httpx
from live import LiveServer


def test_probes(live_server: LiveServer) -> None:
    assert httpx.get(f"{live_server.url}/health/live").json() == {"status": "live"}
    ready = httpx.get(f"{live_server.url}/health/ready")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert "orpheus_active_streams 0.0" in httpx.get(f"{live_server.url}/metrics").text
