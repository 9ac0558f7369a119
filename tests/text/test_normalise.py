"""Normalisation: concrete messages, and what must hold for every string."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from linear_time import assert_linear

from orpheus_serving.text.normalise import Level, normalise, speakable

TAGS = ("laugh", "<sigh>")
LEVELS: tuple[Level, ...] = ("clean", "spoken")

# Pieces that meet badly, and any character at all, lone surrogates too.
_ASCII = """
    < > | <| |> <|eot_id|> <custom_token_7> custom_token _7 <laugh> <Sigh> laugh </b> <b <a= " ' = a B Dr. St. No. U.S.
    e.g. J. 1 2 0 00 . , ! ? ... - / : $ % # @ .com www. km GB p.m. a.m. s 's 1st GPU NASA (
"""
_OTHER = (
    "\n \u0301 \u0338 \u20e3 \u200d \u00e9 \u00bd \u20ac \ufe0f \U0001f600 "
    "\u2014 \ud83d \ude00 \0 \uff1c \uff5c \uff1e \u4f60 \u3002 \u05d0 \u0915\u094d"
)
PIECES = st.sampled_from([*_ASCII.split(), *_OTHER.split(" "), " ", "\n\n"])
TEXT = st.lists(PIECES | st.characters(codec=None), max_size=24).map("".join)


@given(TEXT, st.sampled_from(LEVELS))
@settings(max_examples=1500, deadline=None)
def test_a_second_time_changes_nothing(text: str, level: Level) -> None:
    once = normalise(text, level, TAGS)
    assert normalise(once, level, TAGS) == once


@given(TEXT, st.sampled_from(LEVELS))
@settings(max_examples=500, deadline=None)
def test_no_control_token_survives(text: str, level: Level) -> None:
    said = normalise(text, level, TAGS)
    assert not re.search(r"<\s*\||\|\s*>|<\s*/?\s*custom[\s_-]*token[\s_-]*\d*\s*>", said, re.IGNORECASE)


@given(TEXT)
@settings(max_examples=500, deadline=None)
def test_clean_is_one_line_of_sayable_characters(text: str) -> None:
    said = normalise(text, "clean", TAGS)
    assert unicodedata.is_normalized("NFC", said)
    assert said == " ".join(said.split())
    assert not {unicodedata.category(char) for char in said} & {"Cc", "Cf", "Cs", "Co", "Cn"}
    said.encode("utf-8")


@example("<laugh<<laugh>")
@given(TEXT)
@settings(max_examples=500, deadline=None)
def test_spoken_keeps_to_its_alphabet_and_ends_a_sentence(text: str) -> None:
    said = normalise(text, "spoken", TAGS)
    rest = said.replace("<laugh>", "").replace("<sigh>", "")
    assert re.fullmatch(r"[A-Za-z .,!?'-]*", rest)
    assert not said or said[-1] in ".!?"
    assert not re.search(r"[!?]{3}|,,|\.{4}|  ", said)


@given(TEXT)
@settings(max_examples=300, deadline=None)
def test_speakable_asks_whether_anything_is_left_to_say(text: str) -> None:
    assert speakable(text, TAGS) == any(map(str.isalnum, normalise(text, "clean", TAGS)))


@given(st.integers(0, 10**15))
def test_every_integer_becomes_words(number: int) -> None:
    assert re.fullmatch(r"[a-z ]+\.", normalise(str(number), "spoken"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Hello there!", "Hello there!"),
        ("Stop!!!!!!", "Stop!"),
        ("What?!?! No!?", "What?! No?!"),
        ("Wait...... what", "Wait... what"),
        ("Wait \u2026 what", "Wait... what"),
        ("Yes,,, I do .", "Yes, I do."),
        ("oh no ! ! !", "oh no!"),
        ("\u201cIt\u2019s fine,\u201d she said \u2013 really", '"It\'s fine," she said - really'),
        ("one\u2014two", "one - two"),
        ("pages 3\u20134", "pages 3-4"),
        ("Great job \U0001f600\U0001f389! See you\U0001f44b\U0001f3fd", "Great job! See you"),
        ("family \U0001f468\u200d\U0001f469\u200d\U0001f467 time", "family time"),
        ("yes\U0001f600no", "yes no"),
        ("1\ufe0f\u20e3 first", "1 first"),
        ("I \u2764\ufe0f you", "I you"),
        ("a\u200bb\u202ec\ufeffd\0e\x07", "abcde"),
        ("\ud83d\ude00 hi \ud83d", "hi"),
        ("e\u0301te\u0301", "\u00e9t\u00e9"),
        ("price: \u20ac5 \u00b1 2 \u2264 7", "price: \u20ac5 \u00b1 2 \u2264 7"),
        ("\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u4f60\u597d\uff0c\u4e16\u754c\u3002"),
        ("\u0645\u0631\u062d\u0628\u0627", "\u0645\u0631\u062d\u0628\u0627"),
        ("first line\nstill it", "first line still it"),
        ("A title\n\nA paragraph.\n\nThe end", "A title. A paragraph. The end"),
        ("Buy:\n- milk\n- two eggs", "Buy: milk. two eggs"),
        ("a < b and c > d", "a < b and c > d"),
        ("if x<y then", "if x<y then"),
        ("see https://example.com/a?b=c&d=1 now", "see https://example.com/a?b=c&d=1 now"),
        ("Dr. Smith, e.g., the U.S. one", "Dr. Smith, e.g., the U.S. one"),
        ("It is .5, not 0.5", "It is .5, not 0.5"),
    ],
)
def test_clean(text: str, said: str) -> None:
    assert normalise(text) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ha <laugh> yes", "Ha <laugh> yes"),
        ("Ha <LAUGH> < sigh >", "Ha <laugh> <sigh>"),
        ("Ha <gasp> yes", "Ha yes"),
        ("<b>Bold</b> and <a href='x'>link</a>", "Bold and link"),
        ("Hi<br/>there<!-- note -->", "Hi there"),
        ("<speak>Hello</speak>", "Hello"),
        ("Hello<|eot_id|>world", "Hello world"),
        ("<|eo<|eot_id|>t_id|>", ""),
        ("<<|eot_id|>|eot_id|>", ""),
        ("<|EOT_ID|> < |eot_id| > <| begin_of_text |>hi", "hi"),
        ("<custom_token_7><Custom_Token_10>< custom token 3 >hi", "hi"),
        ("<custom_<custom_token_1>token_2>", ""),
        ("<laugh<b></b>>", "<laugh>"),
        ("<|eot_id", "eot_id"),
        ("eot_id|>", "eot_id|"),
        ("<\u200b|eot_id|>", ""),
        ("<\U0001f600|eot_id|>", ""),
        ("<|<laugh>|>", ""),
    ],
)
def test_markup(text: str, said: str) -> None:
    assert normalise(text, tags=TAGS) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("I have 3 cats", "I have three cats."),
        ("1,234,567 people", "one million two hundred thirty four thousand five hundred sixty seven people."),
        ("Pi is 3.14", "Pi is three point one four."),
        ("-5 or .5", "minus five or zero point five."),
        ("agent 007", "agent zero zero seven."),
        ("In 1984, 1905 and 2026", "In nineteen eighty four, nineteen oh five and twenty twenty six."),
        ("in 2005", "in two thousand five."),
        ("the 1980s", "the nineteen eighties."),
        ("the 21st and the 100th", "the twenty first and the one hundredth."),
        ("pages 3-4", "pages three to four."),
        ("It costs $5.", "It costs five dollars."),
        ("It costs $3.50!", "It costs three dollars and fifty cents!"),
        ("$1 or \u20ac1,250.99?", "one dollar or one thousand two hundred fifty euros and ninety nine cents?"),
        ("$0.05", "five cents."),
        ("raised $3.5 million", "raised three point five million dollars."),
        ("worth \u00a32bn", "worth two billion pounds."),
        ("$5-10", "five dollars to ten dollars."),
        ("at 3:45 pm", "at three forty five P M."),
        ("at 9 a.m. tomorrow", "at nine A M tomorrow."),
        ("at 15:30", "at fifteen thirty."),
        ("at 9:05 or 9:00", "at nine oh five or nine o'clock."),
        ("on 2026-12-02", "on December second, twenty twenty six."),
        ("on 12/25/2025", "on December twenty fifth, twenty twenty five."),
        ("on Dec. 2", "on December second."),
        ("on July 4th, 1776", "on July fourth, seventeen seventy six."),
        ("50% off", "fifty percent off."),
        ("1/2 cup and 3/4 mile", "one half cup and three quarters mile."),
        ("1\u00bd cups", "one and a half cups."),
        ("5 km, 1 kg, 20\u00b0C", "five kilometers, one kilogram, twenty degrees Celsius."),
        ("60 mph, 80GB, 10 ms", "sixty miles per hour, eighty gigabytes, ten milliseconds."),
        ("Call 555-123-4567.", "Call five five five, one two three, four five six seven."),
        ("ann.lee@example.com", "ann dot lee at example dot com."),
        ("See https://example.com/a-b.", "See example dot com slash a dash b."),
        ("Dr. Lee vs. Mr. Fox, etc.", "Doctor Lee versus Mister Fox, et cetera."),
        ("St. Mary on Main St.", "Saint Mary on Main Street."),
        ("No. 5, approx. 3", "number five, approximately three."),
        ("No. I will not.", "No. I will not."),
        ("e.g. this, i.e. that", "for example this, that is that."),
        ("The GPU and NASA", "The G P U and NASA."),
        ("the U.S. Army. In the U.S. We", "the U S Army. In the U S. We."),
        ("J. R. R. Tolkien", "J R R Tolkien."),
        ("R&D: 1 + 1 = 2", "R and D, one plus one equals two."),
        ("#1 in #SpeechTech", "number one in hashtag Speech Tech."),
        ("caf\u00e9 na\u00efve Stra\u00dfe", "cafe naive Strasse."),
        ("a well-known, don't", "a well-known, don't."),
        ("Hello (again)", "Hello, again."),
        ("Ha <laugh>", "Ha <laugh>."),
        ("H100", "H one hundred."),
        ("10\u201311 a.m., 10:30-11:30", "ten to eleven A M, ten thirty to eleven thirty."),
        ("World War II, Henry VIII", "World War two, Henry the eighth."),
        ("I <3 you, w/ 2 < 3", "I love you, with two less than three."),
        ("odds of 3:2, 50/50", "odds of three to two, fifty fifty."),
        ("5 min. later", "five minutes later."),
        ("# Heading\n\nC# is #1", "Heading. C sharp is number one."),
        ("He lives on 5th Ave. The end", "He lives on fifth Avenue. The end."),
        ("Tel: +44 20 7946 0958", "Tel, plus four four, two zero, seven nine four six, zero nine five eight."),
        ("\u4f60\u597d", ""),
        ("\U0001f600", ""),
    ],
)
def test_spoken(text: str, said: str) -> None:
    assert normalise(text, "spoken", TAGS) == said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *[(text, False) for text in ("", " \n", "...!?", "\U0001f600\U0001f389", "<|eot_id|>", "<b>", "\ud83d", "\0", "$")],
        *[(text, True) for text in ("a", "7", "\u4f60", "<laugh>", "\U0001f600 hi", "<b>x</b>")],
    ],
)
def test_speakable(text: str, expected: bool) -> None:
    assert speakable(text, TAGS) is expected


HOSTILE = [
    "<|",
    "|>",
    "<",
    ">",
    "1,",
    ".",
    "! ",
    "1",
    "1-",
    "1/",
    "a.",
    "a@",
    "$1",
    "12:",
    "A",
    "#a",
    "-",
    "(",
    "<a b=c ",
    "A. ",
]
HOSTILE += [
    "\u0301\u0316",
    "\u00e9\U0001f600",
    "\n\n",
    " ",
    "www.",
    "<custom_token_",
    "\ufdfa",
    "<b <| |>",
    "&",
    "x \ud83d",
]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("level", LEVELS)
def test_time_is_linear(piece: str, level: Level) -> None:
    assert_linear(lambda text: normalise(text, level, TAGS), piece)
