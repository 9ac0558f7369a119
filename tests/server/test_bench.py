"""The load generator against the real server: what it counts is what happened."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live import LiveServer

from orpheus_serving.bench.client import Outcome, Seen
from orpheus_serving.bench.load import Measured
from orpheus_serving.bench.plan import Load, Target
from orpheus_serving.bench.report import JITTER_BUFFER, percentiles, summarise
from orpheus_serving.cli import main


def test_levels_end_in_a_table_and_a_file(live_server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result.json"
    url = f"{live_server.url}/v1/audio/speech"
    load = ["--levels", "1", "3", "--seconds", "1.5", "--ramp", "0.5", "--processes", "2", "--texts", "short"]
    assert main(["bench", "--url", url, *load, "--gpu-price", "2.5", "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    assert [level["level"] for level in result["levels"]] == [1, 3]
    for level in result["levels"]:
        assert level["requests"] > 0
        assert level["errors"] == {}
        assert 0 < level["ttfb_ms"]["p50"] <= level["ttfb_ms"]["p99"]
        assert level["audio_s"] > 0
        assert level["cost_per_hour_of_speech"] > 0
    assert {"date", "commit", "hardware", "versions", "command"} <= set(result)
    assert len(capsys.readouterr().out.strip().splitlines()) == 3


def test_refusals_are_counted_and_make_the_command_fail(live_server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--url", f"{live_server.url}/v1/nothing"]) == 1
    assert "status 404" in capsys.readouterr().err
    assert main(["bench", "--url", "http://127.0.0.1:9/v1/audio/speech"]) == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_percentiles_are_values_of_which_so_many_are_no_larger(values: list[float]) -> None:
    for name, found in percentiles(values).items():
        share = int(name[1:]) / 100
        assert found is not None
        assert sum(round(1000 * v, 1) <= found for v in values) >= share * len(values)
        assert sum(round(1000 * v, 1) < found for v in values) < share * len(values)


def test_a_stream_that_ran_dry_or_failed_is_not_real_time() -> None:
    outcomes = [
        Outcome(1.0, ttfb=0.1, audio=5.0, took=4.0, lateness=0.0, counted=True),
        Outcome(1.0, ttfb=0.2, audio=5.0, took=6.0, lateness=JITTER_BUFFER + 0.01, counted=True),
        Outcome(1.0, took=0.1, error="status 429", counted=True),
        Outcome(0.1, ttfb=0.1, audio=5.0, took=9.0, lateness=9.0),  # before the measured time
        Outcome(1.5, ttfb=0.3, audio=5.0, took=4.0, lateness=JITTER_BUFFER, counted=True),
    ]
    row = summarise(Measured(Load(4), (Seen(outcomes),), {}), Target("http://127.0.0.1"))
    assert row["requests"] == 4
    assert row["errors"] == {"status 429": 1}
    assert row["real_time_share"] == 0.5
    assert row["ttfb_ms"]["p50"] == 200
