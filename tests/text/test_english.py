"""Number words against an independent implementation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from num2words import num2words

from orpheus_serving.text import english


def oracle(number: int, to: str = "cardinal") -> str:
    said = num2words(number, lang="en", to=to)
    return " ".join(said.replace("-", " ").replace(",", "").replace(" and ", " ").split())


@given(st.integers(0, 10**17) | st.integers(0, 3000))
def test_cardinals(number: int) -> None:
    assert english.cardinal(number) == oracle(number)


@given(st.integers(0, 10**12) | st.integers(0, 3000))
def test_ordinals(number: int) -> None:
    assert english.ordinal(number) == oracle(number, "ordinal")


@pytest.mark.parametrize("number", range(1100, 2100))
def test_years(number: int) -> None:
    assert english.year(number).replace("oh ", "") == oracle(number, "year").replace("oh ", "")


@given(st.from_regex(r"[0-9]{1,40}(\.[0-9]{1,10})?", fullmatch=True))
def test_numbers_as_written(text: str) -> None:
    said = english.number(text)
    assert not any(map(str.isdigit, said))
    assert said.count("point") == text.count(".")
