"""The server that tests share; live.py starts it, and others with other options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from live import LiveServer, serving


@pytest.fixture(scope="session")
def shared_server(noise_folder: Path) -> Iterator[LiveServer]:
    with serving(noise_folder) as live:
        yield live


@pytest.fixture
def live_server(shared_server: LiveServer) -> Iterator[LiveServer]:
    """One server for many tests: 6 frames a chunk, 8 places, no keys. After each test nothing may be left running."""
    yield shared_server
    shared_server.settle()
