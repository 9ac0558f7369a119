# ruff: noqa: E402  (imports after the check that their packages are there)
"""Sentences for a teacher to read, or for a model to speak: whole, different, and apart from what voices are judged on."""

import re
from pathlib import Path

import pytest

for needed in ("wordfreq", "textblob"):
    pytest.importorskip(needed)

from orpheus_serving.training.everyday import EVERYDAY
from orpheus_serving.training.sentences import RULES, RUN, Grammar, make_sentences, runs, words_by_class

DEMO = Path(__file__).parents[2] / "data" / "demo_voice"
COUNT = 1500


@pytest.fixture(scope="module")
def held_out() -> list[str]:
    return [line for name in ("heldout.txt", "dev.txt") for line in (DEMO / name).read_text().splitlines() if line]


@pytest.fixture(scope="module", params=["all", "everyday"])
def sentences(request: pytest.FixtureRequest, held_out: list[str]) -> list[str]:
    return make_sentences(COUNT, 3000, 1, held_out, request.param)


def test_sentences_are_whole_and_different(sentences: list[str]) -> None:
    assert len(set(sentences)) == COUNT
    for line in sentences:
        assert re.fullmatch(r"[A-Za-zé' .,?!;:-]+", line), line  # letters only: nothing of the rules is left
        assert len(line.split()) <= 26
        assert line[0].isupper(), line
        assert not re.search(r"\ba [aeio]| [.,?!]|,[,.]|  ", line), line


def test_no_sentence_is_one_that_voices_are_judged_on(sentences: list[str], held_out: list[str]) -> None:
    def bare(line: str) -> str:
        return re.sub(r"[^a-z ]", "", line.lower())

    assert not {bare(line) for line in sentences} & {bare(line) for line in held_out}


def test_plain_talk_shares_no_run_of_words_with_them(held_out: list[str]) -> None:
    taken = set().union(*map(runs, held_out))
    assert any(runs(line) & taken for line in held_out), "the check cannot fail"
    assert not any(runs(line) & taken for line in make_sentences(COUNT, 3000, 2, held_out, "everyday"))
    assert all(len(run.split()) == RUN for run in runs("one two three four five six seven"))


def test_a_seed_gives_its_sentences() -> None:
    first, again, other = (make_sentences(50, 3000, seed, kind="everyday") for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_every_slot_of_every_rule_is_known() -> None:
    """A misspelt slot would only show when its rule is drawn."""
    grammar = Grammar(words_by_class(3000), 0)
    for name, text in (RULES | EVERYDAY).items():
        for alternative in text.split("|"):
            assert "{" not in grammar.expand(alternative), name


def test_plain_talk_replaces_no_rule_of_the_others() -> None:
    assert set(EVERYDAY).isdisjoint(RULES)
