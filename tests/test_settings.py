"""Settings: keyword arguments, the environment, a section of config.yaml; errors that name the setting."""

from __future__ import annotations

import pytest

from orpheus_serving.settings import Settings, SettingsError


def test_the_environment_is_over_the_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORPHEUS_MAX_STREAMS", "3")
    settings = Settings.load({"max_streams": 5, "max_length": 128})
    assert (settings.max_streams, settings.max_length) == (3, 128)


def test_what_is_asked_for_is_over_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORPHEUS_MAX_STREAMS", "3")
    settings = Settings.load({"max_streams": 5, "max_length": 128}, over={"max_streams": 7})
    assert (settings.max_streams, settings.max_length) == (7, 128)


def test_nothing_is_needed() -> None:
    assert Settings.load() == Settings.load(None) == Settings.load({})


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"max_stream": 5}, r"there is no 'max_stream'; known: .*max_streams"),
        ({"max_streams": 0}, "max_streams: .*greater than or equal to 1"),
        ({"device": "tpu"}, "device: .*'auto'"),
        ({"threads": "many"}, "threads: "),
    ],
)
def test_what_cannot_be_is_refused_by_name(section: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings.load(section)


def test_a_wrong_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORPHEUS_MAX_CHUNK_SIZE", "7")
    with pytest.raises(SettingsError, match="max_chunk_size"):
        Settings.load()
