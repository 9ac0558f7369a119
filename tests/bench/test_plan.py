"""Arrivals: the trace file's parser, Poisson's rate, texts; and the search over levels."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orpheus_serving.bench.plan import Arrival, BenchError, Load, open_loop, read_trace
from orpheus_serving.bench.search import FINEST, search
from orpheus_serving.bench.texts import CHARACTERS_A_SECOND, LENGTHS, sentence

TEXT = st.text(min_size=1).filter(str.strip)
MOMENT = st.floats(0, 1e6) | st.integers(0, 10**6)
ENTRIES = st.fixed_dictionaries({"at": MOMENT, "text": TEXT}, optional={"voice": st.none() | TEXT})


@given(st.lists(ENTRIES, min_size=1), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_a_trace_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, entries: list[dict], plain: bool, end: str
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    lines = ["# recorded", "", *(json.dumps(entry, ensure_ascii=plain) for entry in entries)]
    path.write_text(end.join(lines), encoding="utf-8", newline="")
    wanted = sorted((Arrival(float(e["at"]), e["text"], e.get("voice")) for e in entries), key=lambda a: a.at)
    assert list(read_trace(path)) == wanted


@given(st.text())
def test_any_other_file_is_read_or_refused_with_its_line(tmp_path_factory: pytest.TempPathFactory, content: str) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    path.write_text(content, encoding="utf-8", newline="", errors="surrogatepass")
    try:
        said = "" if read_trace(path) else "nothing"
    except BenchError as error:
        said = str(error)
    assert not said or said.startswith("--trace: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("0.5 Hello", "not JSON"),
        ('["at"]', "not an object"),
        ('{"text": "Hello"}', "at: "),
        ('{"at": "1", "text": "Hello"}', "at: "),
        ('{"at": true, "text": "Hello"}', "at: "),
        ('{"at": -1, "text": "Hello"}', "at: "),
        ('{"at": NaN, "text": "Hello"}', "at: "),
        ('{"at": 1e400, "text": "Hello"}', "at: "),
        ('{"at": 1, "text": " "}', "text: "),
        ('{"at": 1}', "text: "),
        ('{"at": 1, "text": "Hello", "voice": 5}', "voice: "),
        ('{"at": 1, "text": "Hello", "speaker": "a"}', "'speaker' is not known"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"at": 0, "text": "Hello"}}\n{line}\n')
    with pytest.raises(BenchError, match=r"--trace: .*, line 2: ") as refused:
        read_trace(path)
    assert said in str(refused.value)


def test_no_file_and_no_request_are_said(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"--trace: .*missing"):
        read_trace(tmp_path / "missing")
    (tmp_path / "empty").write_text("# nothing\n\n")
    with pytest.raises(BenchError, match=r"--trace: .*no request"):
        read_trace(tmp_path / "empty")


def test_poisson_has_the_rate_of_its_level_and_is_the_same_for_the_same_seed() -> None:
    load = Load(200, "poisson", utterance=10.0)
    arrivals = list(itertools.islice(open_loop(load), 20_000))
    assert arrivals == list(itertools.islice(open_loop(load), 20_000))
    waits = [after.at - before.at for before, after in itertools.pairwise(arrivals)]
    assert statistics.mean(waits) == pytest.approx(1 / 20, rel=0.05)  # 200 play at once, 10 s each: 20 a second
    assert statistics.stdev(waits) == pytest.approx(1 / 20, rel=0.05)  # as exponential waits have it
    assert len({arrival.text for arrival in arrivals[:1000]}) > 950


def test_a_trace_at_twice_its_pace_ends_after_half_the_time() -> None:
    trace = (Arrival(1.0, "one"), Arrival(3.0, "two"), Arrival(8.0, "three"))
    load = Load(2, "trace", seconds=math.inf, ramp=1.0, trace=trace)
    assert [arrival.at for arrival in open_loop(load)] == [0.5, 1.5, 4.0]
    assert [load.counts(arrival.at) for arrival in open_loop(load)] == [False, True, True]
    assert load.end == pytest.approx(4.0, abs=0.01)


@pytest.mark.parametrize(("length", "seconds"), [("short", 3), ("medium", 7), ("long", 11)])
def test_texts_last_about_as_long_as_they_say(length: str, seconds: float) -> None:
    draw = random.Random(0)
    found = [len(sentence(length, draw)) / CHARACTERS_A_SECOND for _ in range(500)]
    assert statistics.mean(found) == pytest.approx(seconds, rel=0.15)
    assert set(LENGTHS) == {"short", "medium", "long"}


@given(st.integers(0, 3000), st.integers(1, 2000), st.integers(1, 2000))
def test_the_search_finds_the_limit(limit: int, start: int, most: int) -> None:
    tried: list[int] = []

    def holds(level: int) -> bool:
        tried.append(level)
        return level <= limit

    found = search(holds, start, most)
    assert len(tried) == len(set(tried))
    assert all(1 <= level <= most for level in tried)
    assert found == 0 or found in tried
    reachable = min(limit, most)
    assert found <= reachable <= found + max(1, FINEST * found)
    assert len(tried) <= 2 * math.log2(most) + 4
    if found == 0:
        assert reachable == 0
