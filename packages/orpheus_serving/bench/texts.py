"""Sentences to speak, of about 3, 7 and 11 seconds, and no two alike: a server that keeps the keys of prompts that begin
alike (a prefix cache) would otherwise be measured at work it does not do.
"""

from __future__ import annotations

import random

LENGTHS = {"short": 1, "medium": 2, "long": 3}  # clauses
CHARACTERS_A_SECOND = 14  # of English read aloud

WHO = (
    "Anna", "Boris", "Clara", "David", "Elena", "Frank", "Greta", "Henry", "Ida", "James", "Karen", "Louis", "Maria", "Nina",
    "Oscar", "Paula", "Robert", "Sarah", "Thomas", "Vera", "Walter", "my brother", "her teacher", "the captain", "our neighbour",
)  # fmt: skip
DID = (
    "carried", "found", "painted", "forgot", "repaired", "opened", "borrowed", "described", "followed", "counted", "moved",
    "noticed", "wanted", "returned", "measured", "remembered",
)  # fmt: skip
HOW = (
    "old", "heavy", "yellow", "broken", "quiet", "narrow", "wooden", "second", "empty", "early", "silver", "open", "small",
    "warm", "round", "distant",
)  # fmt: skip
WHAT = (
    "door", "letter", "boat", "table", "window", "basket", "clock", "lantern", "garden", "picture", "engine", "ladder", "story",
    "blanket", "bridge", "ticket",
)  # fmt: skip
WHERE = (
    "by the harbour", "in the village", "near the station", "behind the school", "on the hill", "at the market", "in the kitchen",
    "across the river", "under the roof", "beside the road", "in the library", "at the lake",
)  # fmt: skip
JOINTS = (", and ", ", while ", ", so ", ", but ")


def sentence(length: str, draw: random.Random) -> str:
    """A sentence of `length` ("short", "medium", "long")."""
    clauses = []
    for _ in range(LENGTHS[length]):
        who, did, how, what, where = (draw.choice(words) for words in (WHO, DID, HOW, WHAT, WHERE))
        clauses.append(f"{who} {did} the {how} {what} {where}")
    text = clauses[0]
    for clause in clauses[1:]:
        text += draw.choice(JOINTS) + clause
    return text[0].upper() + text[1:] + "."


def mixed(lengths: tuple[str, ...], draw: random.Random) -> str:
    """A sentence of one of the lengths, each as likely as the others."""
    return sentence(draw.choice(lengths), draw)
