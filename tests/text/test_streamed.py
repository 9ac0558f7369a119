"""Text that is still being written: the same words as whole text, in prompts that are as safe."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orpheus_serving.text.normalise import normalise
from orpheus_serving.text.streamed import FLUSHED, StreamedText

TAGS = ("laugh", "sigh")
_WORDS = """
    a I the cat house extraordinary Yes. No. Hello! Why? wait... well, then; (so) "Really?" said Dr. Mr. St. e.g. etc.
    U.S. J. R. Tolkien 3.14 1,250.99 $3.50 15:30 3:45 p.m. No. 5 - ... <laugh> <sigh> Hello<laugh> <b>bold</b> <3 &
    https://example.com/a.b?c=1.5 me@example.com 你好。 今天，很好！ été naïve ½ 20% x=1
"""
WORDS = _WORDS.split()
ELEMENTS = ['<a href="x. y">', "<!-- a note. Or two. -->", "<| eot_id |>", "<|eo<|eot_id|>t_id|>", "< custom_token_5 >"]
TEXTS = st.lists(st.sampled_from([*WORDS, *ELEMENTS]), min_size=1, max_size=30).map(" ".join)
ANYTHING = st.lists(
    st.sampled_from([*WORDS, *ELEMENTS, " ", "\n", "\n\n", "<", ">", "<|", "|>", "<lau", "gh>"]) | st.text(max_size=5)
)
CUTS = st.lists(st.integers(0, 300), max_size=40)
LONG = 10_000  # characters: every sentence fits


def speak(text: str, cuts: list[int], level: Literal["clean", "spoken"] = "clean", most: int = LONG) -> list[str]:
    """The prompts of `text` cut at the given places, each taken as soon as it is ready."""
    streamed = StreamedText(level, TAGS, most)
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    prompts: list[str] = []
    for a, b in pairwise(places):
        streamed.push(text[a:b])
        while (prompt := streamed.take()) is not None:
            assert prompt is not FLUSHED
            prompts.append(prompt)
    streamed.flush()
    while (prompt := streamed.take()) is not None:
        assert prompt is not FLUSHED
        prompts.append(prompt)
    return prompts


def words(text: str) -> str:
    """What is heard: letters, digits and tags."""
    return re.sub(r"[^\w<>]|(?<!\w)>|<(?!\w)", "", text)


@given(TEXTS, CUTS, st.sampled_from(["clean", "spoken"]))
@settings(max_examples=300, deadline=None)
@example("Hello\n\nWorld is here now.", [3], "clean")
@example("a a a Yes. <3", [], "spoken")
@example("a a a Yes. > 3", [], "spoken")
def test_the_words_are_those_of_the_whole_text(text: str, cuts: list[int], level: Literal["clean", "spoken"]) -> None:
    assert words("".join(speak(text, cuts, level))) == words(normalise(text, level, TAGS))


@given(TEXTS, CUTS, CUTS)
@settings(max_examples=200, deadline=None)
def test_deltas_may_be_cut_anywhere(text: str, cuts: list[int], others: list[int]) -> None:
    assert words("".join(speak(text, cuts))) == words("".join(speak(text, others)))


@given(ANYTHING.map("".join), CUTS, st.integers(1, 60))
@settings(max_examples=300, deadline=None)
def test_every_prompt_is_normalised_and_says_something(text: str, cuts: list[int], most: int) -> None:
    for prompt in speak(text, cuts, most=most):
        assert "<|" not in prompt
        assert "|>" not in prompt
        assert any(map(str.isalnum, prompt))
        assert "\n" not in prompt


@pytest.mark.parametrize("text", ["a < b is so. Then more. ", "I <3 you all. Then more. ", "x <= y holds. Then more. "])
def test_a_bracket_that_is_no_markup_holds_nothing_back(text: str) -> None:
    streamed = StreamedText("clean", TAGS, 280)
    streamed.push(text)
    assert streamed.take() == text.strip()


def test_an_element_is_never_cut_in_two() -> None:
    text = 'See <a title="One. Two. Three">this</a> now. Good.'
    assert " ".join(speak(text, list(range(60)))) == "See this now. Good."


def test_what_never_closes_is_read_after_a_while() -> None:
    streamed = StreamedText("clean", TAGS, 280)
    streamed.push("A first one. <b and then")
    assert streamed.take() == "A first one."
    streamed.push(" a long story" + " that goes on" * 20 + ". And more. ")
    assert streamed.take() is not None


def test_short_sentences_wait_for_company() -> None:
    streamed = StreamedText("clean", TAGS, 280)
    streamed.push("Yes. ")
    assert streamed.take() is None
    streamed.push("Of course I will. ")
    assert streamed.take() == "Yes. Of course I will."
    streamed.push("No. ")
    streamed.flush()
    assert streamed.take() == "No."


def test_flushes_stand_where_they_were_asked_for() -> None:
    streamed = StreamedText("clean", TAGS, 280)
    streamed.push("Half a")
    streamed.flush(mark=True)
    streamed.flush(mark=True)
    streamed.push("nother half")
    streamed.flush()
    taken = [streamed.take() for _ in range(5)]
    assert taken == ["Half a", FLUSHED, FLUSHED, "nother half", None]


def test_a_prompt_keeps_to_the_limit_even_if_normalising_makes_it_longer() -> None:
    prompts = speak("It is 1,234,567 or 7,654,321 or 9,876,543 and so on and on. " * 3, [], "spoken", most=60)
    assert all(len(prompt) <= 60 + 64 for prompt in prompts)
    assert len(prompts) > 3
