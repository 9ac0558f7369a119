"""OpenAI's voice names on a checkpoint's own voices.

Some OpenAI clients refuse any other name before they send it. Each of the thirteen stands for one voice of the checkpoint: in
turn over the women's voices or the men's where the names are known, over all otherwise. A name that the checkpoint has wins.
"""

from __future__ import annotations

from collections.abc import Sequence

OPENAI_WOMEN = ("alloy", "coral", "marin", "nova", "sage", "shimmer")
OPENAI_MEN = ("ash", "ballad", "cedar", "echo", "fable", "onyx", "verse")
OPENAI_VOICES = tuple(sorted(OPENAI_WOMEN + OPENAI_MEN))

# Orpheus' own voices and the demo voice's.
WOMEN = frozenset({"tara", "leah", "jess", "mia", "zoe", "ava"})
MEN = frozenset({"leo", "dan", "zac", "ben"})


def voice_aliases(voices: Sequence[str]) -> dict[str, str]:
    """{OpenAI's name: the checkpoint's voice}; empty for a checkpoint without voices."""
    if not voices:
        return {}
    own = {voice.lower() for voice in voices}
    aliases: dict[str, str] = {}
    for names, kind in ((OPENAI_WOMEN, WOMEN), (OPENAI_MEN, MEN)):
        fitting = [voice for voice in voices if voice.lower() in kind] or list(voices)
        aliases |= {name: fitting[number % len(fitting)] for number, name in enumerate(names) if name not in own}
    return aliases
