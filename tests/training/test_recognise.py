"""Word error counting: what is charged and what is not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orpheus_serving.training.recognise import cut_off, errors, said_on, words

pytest.importorskip("num2words")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("We need 25 chairs.", "we need twenty-five chairs"),
        ("It's 5 o'clock", "it's five o'clock"),
        ("1,200 people", "one thousand two hundred people"),
        ("the 1st of May", "the first of May"),
        ("My favorite color", "my favourite colour"),
        ("50%", "fifty percent"),
        ("OK, Dr. Smith!", "okay doctor smith"),
    ],
)
def test_spelling_is_not_an_error(written: str, said: str) -> None:
    spelled = [w for w in words(written) if w != "and"]
    assert spelled == [w for w in words(said) if w != "and"]


@pytest.mark.parametrize(
    ("reference", "heard", "count"),
    [
        ("a b c", "a b c", 0),
        ("a b c", "a x c", 1),
        ("a b c", "a c", 1),
        ("a b", "a b b", 1),
        ("a b", "", 2),
        ("", "a", 1),
    ],
)
def test_edits_are_counted(reference: str, heard: str, count: int) -> None:
    assert errors(reference.split(), heard.split()) == count


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_edit_distance_is_symmetric_and_bounded(a: list[str], b: list[str]) -> None:
    assert errors(a, b) == errors(b, a)
    assert abs(len(a) - len(b)) <= errors(a, b) <= max(len(a), len(b))


@pytest.mark.parametrize(
    ("text", "heard", "cut"),
    [
        ("on the kitchen table", "on the kitchen table", False),
        ("on the kitchen table", "on the kitchen", True),
        ("my keys on the kitchen table", "my tears on the kitchen", True),
        ("seen my glasses anywhere", "seen my glasses any", True),
        ("a restaurant near here", "a restaurant near hair", False),
        ("ask your teacher for help", "ask your teacher for help though", False),
        ("yes", "", True),
    ],
)
def test_cut_off(text: str, heard: str, cut: bool) -> None:
    assert cut_off(text.split(), heard.split()) is cut


@pytest.mark.parametrize(
    ("text", "heard", "more"),
    [
        ("on the kitchen table", "on the kitchen table", False),
        ("parcel to canada", "parcel to canada to canada", True),
        ("parcel to canada", "parcel to canada canada", True),
        ("get there by bike", "get there by bike bye bye bike", True),
        ("ask your teacher for help", "ask your teacher for help though", True),
        ("as soon as we left", "as soon as soon as we left", False),
        ("to the post office", "to the post of fights", False),
        ("on the kitchen table", "on the kitchen", False),
        ("yes", "", False),
        ("", "yes", False),
    ],
)
def test_said_on(text: str, heard: str, more: bool) -> None:
    assert said_on(text.split(), heard.split()) is more
