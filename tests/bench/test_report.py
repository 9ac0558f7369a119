"""Numbers of a level, and what is said about them; files, tables and pages made of them."""

from __future__ import annotations

import html.parser
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_serving.bench.client import Outcome, Seen
from orpheus_serving.bench.load import Measured
from orpheus_serving.bench.plan import Load, Target
from orpheus_serving.bench.plots import panels
from orpheus_serving.bench.report import JITTER_BUFFER, Limits, percentiles, summarise
from orpheus_serving.bench.result import command_line, write_result
from orpheus_serving.bench.tables import BLOCK, COLUMNS, rewritten
from orpheus_serving.cli import main

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
HERE = Target("http://127.0.0.1/v1/audio/speech", "ours")
FOUR = Load(4)


def good(**other: Any) -> Outcome:
    return Outcome(**{"due": 12.0, "ttfb": 0.1, "first_speech": 0.1, "audio": 5.0, "took": 4.0, "counted": True} | other)


def row(*outcomes: Outcome, target: Target = HERE, load: Load = FOUR, seen: Seen | None = None, **more: Any) -> dict[str, Any]:
    seen = seen or Seen(audio=40.0)
    seen.outcomes = list(outcomes)
    return summarise(Measured(load, (seen,), {"cpu_cores": 1.5, "gpu_busy": 90.0}), target, **more)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300))
def test_percentiles_are_values_of_which_so_many_are_no_larger(values: list[float]) -> None:
    for name, found in percentiles(values).items():
        share = int(name[1:]) / 100
        assert found is not None
        assert sum(round(1000 * v, 1) <= found for v in values) >= share * len(values)
        assert sum(round(1000 * v, 1) < found for v in values) < share * len(values)


def test_a_stream_that_ran_dry_or_failed_is_not_real_time() -> None:
    made = row(
        good(ttfb=0.1),
        good(ttfb=0.2, lateness=JITTER_BUFFER + 0.01),
        Outcome(13.0, took=0.1, error="status 429", counted=True),
        good(due=0.1, lateness=9.0, counted=False),  # before the measured time
        good(ttfb=0.3, lateness=JITTER_BUFFER),
    )
    assert made["requests"] == 4
    assert made["errors"] == {"status 429": 1}
    assert made["real_time_share"] == 0.5
    assert made["ttfb_ms"]["p50"] == 200
    assert made["misses"] == ["50.0 % real time, not 99 %"]
    assert not made["holds"]


def test_audio_and_cost_are_those_of_the_measured_time() -> None:
    made = row(good(), load=Load(4, seconds=20), seen=Seen(audio=80.0), gpu_price=3.6)
    assert made["audio_s_per_s"] == 4.0
    assert made["cost_per_hour_of_speech"] == pytest.approx(0.9)  # an hour of the GPU makes four hours of speech


def test_a_level_holds_within_both_limits_and_never_without_a_request() -> None:
    assert row(*[good()] * 99, good(lateness=1.0))["holds"]
    assert not row(*[good()] * 98, *[good(lateness=1.0)] * 2)["holds"]
    assert not row(*[good(ttfb=0.31)] * 100)["holds"]
    assert row(*[good(ttfb=0.31)] * 100, limits=Limits(ttfb_p95=0.4))["holds"]
    assert row()["misses"] == ["no request was due in the measured time; longer --seconds"]


def test_a_client_that_is_the_limit_itself_is_said() -> None:
    assert row(good(), seen=Seen(lags=[0.001] * 100, cpu=0.4))["warnings"] == []
    assert "event loops were up to 50 ms late" in row(good(), seen=Seen(lags=[0.001] * 90 + [0.05] * 10))["warnings"][0]
    assert "93 % of a core" in row(good(), seen=Seen(cpu=0.93))["warnings"][0]
    assert "opened a connection" in row(good(fresh=True))["warnings"][0]


def test_the_use_of_another_machine_is_not_shown_as_the_servers() -> None:
    for url, cell in (
        ("http://[::1]:1/", "1.5"),
        ("http://localhost/", "1.5"),
        ("ws://10.0.0.1/", "-"),
        ("http://a.example/", "-"),
    ):
        assert COLUMNS["cpu"].cell(row(good(), target=Target(url))) == cell


def test_secrets_stay_out_of_the_recorded_command() -> None:
    said = command_line(
        ["/bin/x", "bench", "--api-key", "s3cret", "--api-key=s3cret", "--url", "ws://me:s3cret@h/?a=1&api_key=s3cret&b=2"]
    )
    assert said.startswith("x bench --api-key KEY ")
    assert "s3cret" not in said
    assert "b=2" in said


# ------------------------------------------------------------------------------------------------------------------ tables


@pytest.fixture
def results(tmp_path: Path) -> list[Path]:
    """Ours and a peer's, in files of their own."""
    paths = []
    for name, ttfb in (("ours", 0.1), ("<peer> & co", 0.4)):
        target = Target("http://127.0.0.1/", name)
        rows = [row(*[good(ttfb=ttfb)] * 100, target=target, load=Load(level)) for level in (1, 16)]
        rows.append(row(*[good(ttfb=ttfb)] * 100, target=target, load=Load(12, "poisson")))
        paths.append(write_result(tmp_path / f"{len(paths)}.json", f"run of {name}", rows, commit="abc1234"))
    return paths


def test_a_table_has_the_files_numbers_and_says_where_they_are_from(
    results: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "table", str(results[0]), "--columns", "streams", "ttfb", "holds"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| streams | TTFB p50 / p95 / p99 ms | holds |"
    assert lines[2:5] == ["| 1 | 100 / 100 / 100 | yes |", "| 16 | 100 / 100 / 100 | yes |", "| 12 P | 100 / 100 / 100 | yes |"]
    assert "commit abc1234" in lines[-1]
    assert main(["bench", "table", str(results[0]), "--columns", "nothing"]) == 1
    assert "--columns: there is no 'nothing'" in capsys.readouterr().err


def test_other_measurements_are_tables_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    levels = [{"streams": 1, "tokens_per_s": 348.24, "first_ms": [35.94, 36.0]}, {"streams": 2, "ok": True}]
    write_result(tmp_path / "engine.json", "engine", levels)
    assert main(["bench", "table", "--no-caption", str(tmp_path / "engine.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| streams | tokens per s | first ms | ok |"
    assert lines[2:] == ["| 1 | 348 | 35.9 / 36 | - |", "| 2 | - | - | yes |"]


def test_a_page_gets_its_tables_anew_and_nothing_else(
    results: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    begin = "<!-- bench table 0.json --columns streams ttfb -->\n"
    page.write_text(f"# Before\n\n{begin}a table of before\n<!-- /bench table -->\n\nAfter\n")
    other = tmp_path / "other.md"
    other.write_text(page.read_text())
    assert main(["bench", "table", "--check", str(page)]) == 1
    assert "--update" in capsys.readouterr().err
    assert main(["bench", "table", "--update", str(page), str(other)]) == 0
    assert other.read_text() == page.read_text()
    assert main(["bench", "table", "--check", str(page), str(other)]) == 0
    assert main(["bench", "table", "--update", str(page), "--columns", "streams"]) == 1
    assert "name pages alone" in capsys.readouterr().err
    text = page.read_text()
    assert text.startswith(f"# Before\n\n{begin}| streams |")
    assert text.endswith("<!-- /bench table -->\n\nAfter\n")
    assert "a table of before" not in text
    for broken, said in (
        ("no marker", "no <!-- bench table"),
        (text.replace("--columns", "--colour"), "bench table 0.json --colour"),
    ):
        page.write_text(broken)
        assert main(["bench", "table", "--update", str(page)]) == 1
        assert said in capsys.readouterr().err
        assert page.read_text() == broken


def test_the_tables_of_the_documentation_are_those_of_the_results() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text("utf-8")
        if BLOCK.search(text):
            assert rewritten(text, page) == text, f"orpheus-serving bench table --update {page.name}"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"levels": []}', '{"levels": [1]}', '{"levels": [{"a": 1}]}'])
def test_other_files_are_refused_by_name(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    assert main(["bench", "report", str(path)]) == 1
    assert "other.json" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------------------------- plots


class Reader(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "xlink:href", "data", "srcset")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_the_page_needs_nothing_else_and_shows_both_servers(
    results: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert main(["bench", "report", *map(str, results), "--html", str(out)]) == 0
    assert "<peer> & co" in capsys.readouterr().out
    text = out.read_text("utf-8")
    reader = Reader(text)
    assert reader.open == ["html"] or reader.open == []
    assert not reader.addresses
    assert not {"script", "link", "iframe", "img", "object"} & set(reader.tags)
    assert not re.search(r"url\(|@import", text)
    assert set(re.findall(r"https?://[^\s\"<]+", text)) <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert reader.tags.count("figure") == len(panels(json.loads(results[0].read_text())["levels"]))
    assert {"ours", "<peer> & co", "12 P", "400 / 400 / 400"} <= set(reader.cells)


def test_what_only_one_of_two_has_is_left_open_in_the_other(
    results: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    priced = write_result(
        tmp_path / "priced.json", "priced", [row(good(), target=Target("http://127.0.0.1/", "x"), gpu_price=2.0)]
    )
    older = json.loads(results[0].read_text())
    for level in older["levels"]:
        del level["holds"], level["label"]
    results[0].write_text(json.dumps(older))
    assert main(["bench", "report", str(priced), str(results[0])]) == 0
    head, first, *others = capsys.readouterr().out.splitlines()
    assert head.split()[-4:] == ["cost", "/", "h", "holds"]
    assert first.split()[-2:] == ["1.0000", "yes"]
    assert all(line.split()[-2:] == ["-", "-"] for line in others)


def test_the_same_server_twice_is_told_apart_by_its_files(results: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    again = results[0].with_name("again.json")
    again.write_text(results[0].read_text())
    assert main(["bench", "report", str(results[0]), str(again)]) == 0
    said = capsys.readouterr().out
    assert "ours (0)" in said
    assert "ours (again)" in said


def test_files_of_one_name_are_told_apart_by_their_folders(results: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    files = [results[0].parent / folder / "r.json" for folder in ("old", "new")]
    for file in files:
        file.parent.mkdir()
        file.write_text(results[0].read_text())
    assert main(["bench", "report", *map(str, files)]) == 0
    said = capsys.readouterr().out
    assert "ours (old/r)" in said
    assert "ours (new/r)" in said


def test_a_picture_is_drawn(results: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed (requirements/bench.txt)")
    out = tmp_path / "report.png"
    assert main(["bench", "report", *map(str, results), "--png", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_without_matplotlib_the_option_and_the_package_are_named(
    results: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    for command in (["report", str(results[0])], ["--url", "http://127.0.0.1:9/"]):  # the load would fail after it
        assert main(["bench", *command, "--png", str(tmp_path / "report.png")]) == 1
        assert "--png: needs matplotlib: pip install -r requirements/bench.txt" in capsys.readouterr().err


def test_results_in_the_repository_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    found = [path for path in sorted(RESULTS.glob("*.json")) if "levels" in json.loads(path.read_text())]
    assert found
    assert main(["bench", "table", *map(str, found)]) == 0
