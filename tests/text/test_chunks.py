"""Chunk plans, of whole texts and of streams: nothing lost, nothing split, always progress, linear time."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from linear_time import assert_linear

from orpheus_serving.text.chunks import plan_chunks
from orpheus_serving.text.incremental import IncrementalChunker
from orpheus_serving.text.normalise import normalise

TAGS = ("laugh", "deep breath")
_WORDS = """
    a I the cat house extraordinary internationalisation Yes. No. Hello! Why? wait... well, then; (so) "Really?" said
    Dr. Mr. St. e.g. i.e. vs. etc. Inc. U.S. J. R. Tolkien 3.14 1,250.99 $3.50 15:30 3:45 p.m. 1. No. 5 - ... <laugh>
    Hello<laugh> https://example.com/a.b?c=1.5 me@example.com \u4f60\u597d\u3002 \u4eca\u5929\uff0c\u5f88\u597d\uff01
    \u300c\u518d\u89c1\u3002\u300d e\u0301te\u0301 \u0915\u094d\u0937 \U0001f468\u200d\U0001f469 \ud83d\ude00
"""
WORDS = _WORDS.split()
SENTENCES = st.lists(st.sampled_from(WORDS), min_size=1, max_size=30).map(" ".join)
ANYTHING = st.lists(st.sampled_from([*WORDS, " ", "\n", "\n\n", "<", ">", "<lau", "gh>"]) | st.text(max_size=5)).map("".join)
LIMITS = st.integers(1, 180)


def content(text: str) -> str:
    return "".join(text.split())


def stream(text: str, cuts: list[int], most: int) -> tuple[list[str], list[str]]:
    """Push `text` cut at the given places; returns what came before the flush, and what it gave."""
    chunker = IncrementalChunker(most, TAGS)
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    early = [chunk for a, b in pairwise(places) for chunk in chunker.push(text[a:b])]
    return early, chunker.flush()


def cut_places(text: str, chunks: list[str]) -> list[tuple[str, str]]:
    """What stands on both sides of each cut, white space included on the left."""
    places, at = [], 0
    for chunk in chunks[:-1]:
        for char in content(chunk):
            while text[at] != char:
                at += 1
            at += 1
        places.append((text[:at], text[at:]))
    return places


def assert_nothing_split(text: str, chunks: list[str], most: int) -> None:
    for before, after in cut_places(text, chunks):
        tail, head = before[-40:], after[:40]
        assert not re.search(r"<[^<>]*$", tail) or not re.match(r"[^<>]*>", head), (tail, head)
        assert not re.search(r"\d[.,:]?$", tail) or not re.match(r"[.,:]?\d", head), (tail, head)
        assert not re.search(r"(?:^|\s)(?:Dr\.|Mr\.|St\.|e\.g\.|i\.e\.|vs\.)$", tail), (tail, head)
        assert not re.search(r"(?:^|\s)(?:J\.|R\.)$", tail) or not re.match(r" Tolkien", head), (tail, head)
        assert unicodedata.category(after[:1] or "x")[0] != "M"
        assert "\u200d" not in (before[-1:], after[:1])
        assert not "\udc00" <= after[:1] <= "\udfff"
        if not after[0].isspace() and after[0].isascii() and before[-1].isascii() and before[-1].isalnum():
            word = re.search(r"\S*$", before)[0] + re.match(r"\S*", after)[0]  # type: ignore[index]
            assert len(word) > most or "<" in word, word


@given(SENTENCES | ANYTHING, LIMITS)
@settings(max_examples=400, deadline=None)
def test_nothing_is_lost(text: str, most: int) -> None:
    chunks = plan_chunks(text, most=most, tags=TAGS)
    assert content("".join(chunks)) == content(text)
    assert all(chunk == chunk.strip() != "" for chunk in chunks)


@given(SENTENCES, LIMITS)
@settings(max_examples=400, deadline=None)
@example("<laugh> Dr. Smith", 1)
def test_nothing_is_split(text: str, most: int) -> None:
    assert_nothing_split(text, plan_chunks(text, most=most, tags=TAGS), most)


@given(SENTENCES | ANYTHING, LIMITS)
@settings(max_examples=400, deadline=None)
def test_no_chunk_is_only_punctuation(text: str, most: int) -> None:
    assume(any(map(str.isalnum, text)))
    for chunk in plan_chunks(text, most=most, tags=TAGS):
        assert any(map(str.isalnum, chunk))


@given(st.lists(st.from_regex(r"[a-z]{1,9}[,.]?", fullmatch=True), min_size=1).map(" ".join), st.integers(10, 40))
@settings(max_examples=200, deadline=None)
def test_plain_words_keep_to_the_limit(text: str, limit: int) -> None:
    chunks = plan_chunks(text, most=limit, tags=TAGS)
    tied = 64  # "st. no. vol." may stand together
    assert all(len(chunk) <= limit + tied for chunk in chunks)
    if not re.search(r"\.", text):
        assert all(len(chunk) <= limit for chunk in chunks)


@given(SENTENCES | ANYTHING, LIMITS, st.lists(st.integers(0, 200), max_size=30))
@settings(max_examples=400, deadline=None)
def test_a_stream_says_the_same(text: str, most: int, cuts: list[int]) -> None:
    early, late = stream(text, cuts, most)
    assert content("".join(early + late)) == content(text)
    assert all(any(map(str.isalnum, chunk)) for chunk in early)


@given(SENTENCES, LIMITS, st.lists(st.integers(0, 200), max_size=30))
@settings(max_examples=400, deadline=None)
def test_a_stream_splits_nothing(text: str, most: int, cuts: list[int]) -> None:
    early, late = stream(text, cuts, most)
    assert_nothing_split(text, early + late, most)


@given(SENTENCES, LIMITS)
@settings(max_examples=100, deadline=None)
def test_a_chunker_is_new_after_a_flush(text: str, most: int) -> None:
    chunker = IncrementalChunker(most, TAGS)
    once = [*chunker.push(text), *chunker.flush()]
    assert [*chunker.push(text), *chunker.flush()] == once
    assert chunker.flush() == []


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("", []),
        ("   \n ", []),
        ("Hi.", ["Hi."]),
        ("...", ["..."]),
        ("One short one. Then another sentence.", ["One short one.", "Then another", "sentence."]),
        ("This is a clause, and it goes on.", ["This is a clause,", "and it goes on."]),
        ("No commas here so words must do", ["No commas here so", "words must do"]),
        ("Dr. Smith met J. R. R. Tolkien in May.", ["Dr. Smith met", "J. R. R. Tolkien in", "May."]),
        ("The value of it is 3.14159 today.", ["The value of it is", "3.14159 today."]),
        ("He joined the U.S. Army at 3:45 p.m. today", ["He joined the", "U.S. Army at 3:45", "p.m. today"]),
        ("He left the U.S. The rest stayed.", ["He left the U.S.", "The rest stayed."]),
        ("See fruit, e.g. apples, etc. They are good.", ["See fruit,", "e.g. apples, etc.", "They are good."]),
        ("I say no. No. 5 is not it.", ["I say no.", "No. 5 is not it."]),
        ('"Really now?" she asked me. "Yes."', ['"Really now?"', 'she asked me. "Yes."']),
        ("Are you sure? Yes.", ["Are you sure? Yes."]),
        ("That was so funny <laugh> right?", ["That was so funny", "<laugh> right?"]),
        ("take a <deep breath> and go on now", ["take a <deep breath>", "and go on now"]),
        ("Hello there - and - so on then - -", ["Hello there - and -", "so on then - -"]),
        (
            "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u5929\u5f88\u597d\uff01\u6211\u4eec\u53bb\u516c\u56ed\u8d70\u8d70\uff0c\u4f60\u4eec\u5462\uff1f\u6211\u4eec\u4e5f\u53bb\u8d70\u8d70\uff0c\u597d\u7684\u3002",
            [
                "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u4eca\u5929\u5f88\u597d\uff01",
                "\u6211\u4eec\u53bb\u516c\u56ed\u8d70\u8d70\uff0c\u4f60\u4eec\u5462\uff1f",
                "\u6211\u4eec\u4e5f\u53bb\u8d70\u8d70\uff0c\u597d\u7684\u3002",
            ],
        ),
    ],
)
def test_plans(text: str, chunks: list[str]) -> None:
    assert plan_chunks(text, most=20, tags=TAGS) == chunks


def test_chunks_pack_whole_sentences() -> None:
    text = "First things first. Two is next. Three is here. Four comes after that. Five."
    assert plan_chunks(text, most=50) == [
        "First things first. Two is next. Three is here.",
        "Four comes after that. Five.",
    ]


def test_a_long_word_is_cut_and_a_long_tag_is_not() -> None:
    assert plan_chunks("abcdefghij" * 3, most=10) == ["abcdefghij"] * 3
    assert plan_chunks("<laugh><laugh>", most=2, tags=TAGS) == ["<laugh>", "<laugh>"]
    assert plan_chunks("\u597d" * 25, most=10) == ["\u597d" * 10, "\u597d" * 10, "\u597d" * 5]


@pytest.mark.parametrize("most", [0, -1])
def test_limits_are_checked(most: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        plan_chunks("Hi.", most=most)
    with pytest.raises(ValueError, match="at least"):
        IncrementalChunker(most)


def test_a_sentence_leaves_as_soon_as_it_is_certain() -> None:
    chunker = IncrementalChunker(200, TAGS)
    assert chunker.push("Hello there") == []
    assert chunker.push(".") == []
    assert chunker.push(" ") == ["Hello there."]
    assert chunker.push("Dr. ") == []
    assert chunker.push("Smith has 3.") == []
    assert chunker.push("14 cats. ") == ["Dr. Smith has 3.14 cats."]
    assert chunker.push("Ha <lau") == []
    assert chunker.push("gh>! ") == ["Ha <laugh>!"]
    assert chunker.push("Wait...") == []
    assert chunker.push(" wh") == []
    assert chunker.push("at? ") == ["Wait... what?"]
    assert chunker.push("\u4f60\u597d\u3002") == []
    assert chunker.push("\u4f60") == ["\u4f60\u597d\u3002"]
    assert chunker.flush() == ["\u4f60"]


def test_a_limit_is_not_waited_past() -> None:
    chunker = IncrementalChunker(10)
    assert chunker.push("one two ") == []
    assert chunker.push("th") == []
    assert chunker.push("r") == ["one two"]  # "three" cannot fit any more


def test_halves_of_a_character_stay_together() -> None:
    chunker = IncrementalChunker(200)
    assert chunker.push("Hi \ud83d") + chunker.push("\ude00 you. ") == ["Hi \ud83d\ude00 you."]
    assert normalise("Hi \ud83d\ude00 you.") == "Hi you."


HOSTILE = [
    "a",
    "a ",
    "Hi. ",
    ".",
    "! ",
    "Dr. ",
    "1.1",
    "<laugh>",
    "<lau",
    "< ",
    " ",
    "\n",
    "\u597d\u3002",
    "\u597d",
    "a, ",
    "U.S. ",
]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("most", [1, 200, 10**6])
@pytest.mark.parametrize("step", [1, 10**6])
def test_time_is_linear(piece: str, most: int, step: int) -> None:
    def work(text: str) -> None:
        chunker = IncrementalChunker(most, TAGS)
        text = "x" + text
        for at in range(0, len(text), step):
            chunker.push(text[at : at + step])
        chunker.flush()

    assert_linear(work, piece, 500)
