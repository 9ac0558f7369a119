"""What training says of itself: a table that keeps what was not measured apart from what went wrong."""

from pathlib import Path

import pytest

from orpheus_serving.training.progress import RunLog


def test_what_was_not_measured_is_an_empty_field(tmp_path: Path) -> None:
    log = RunLog(tmp_path, "run")
    log.log(1, loss=2.5, held_out=None)
    log.log(2, loss=2.25, held_out=3.0)
    rows = [line.split(",") for line in (tmp_path / "run.csv").read_text().splitlines()]
    assert rows[0] == ["step", "time", "loss", "held_out"]
    assert [row[2:] for row in rows[1:]] == [["2.5", ""], ["2.25", "3.0"]]
    log.plot()
    assert (tmp_path / "run.png").stat().st_size > 1000


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_ends_the_run(tmp_path: Path, value: float) -> None:
    with pytest.raises(FloatingPointError, match=r"^guide, step 7: distance is (nan|inf); give a lower --rate$"):
        RunLog(tmp_path, "guide").log(7, distance=value)
