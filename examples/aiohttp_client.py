"""Speak several texts at once with aiohttp: each is a stream of its own, and all keep real time.

python examples/aiohttp_client.py FOLDER TEXT [TEXT ...] [--voice NAME] [--url http://127.0.0.1:8000]

Writes FOLDER/1.wav, FOLDER/2.wav and so on. The API key, if the server has keys: ORPHEUS_API_KEY.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
import wave
from pathlib import Path

import aiohttp

SAMPLE_RATE = 24_000
SAMPLE_BYTES = 2


async def speak(session: aiohttp.ClientSession, text: str, voice: str, path: Path) -> None:
    """Write one text to a WAV as it arrives. Raises aiohttp.ClientError if it is refused or breaks off."""
    asked = time.monotonic()
    first, pending, size = None, b"", 0
    async with session.post("/v1/audio/speech", json={"input": text, "voice": voice, "response_format": "pcm"}) as answer:
        if answer.status != 200:
            raise aiohttp.ClientError(f"{answer.status}: {await answer.text()}")
        with wave.open(str(path), "wb") as file:
            file.setparams((1, SAMPLE_BYTES, SAMPLE_RATE, 0, "NONE", ""))
            async for piece in answer.content.iter_any():
                first = first or time.monotonic() - asked
                pending += piece
                whole = len(pending) // SAMPLE_BYTES * SAMPLE_BYTES  # a piece may end inside a sample
                file.writeframes(pending[:whole])
                pending, size = pending[whole:], size + whole
    print(f"{path}: {size / SAMPLE_BYTES / SAMPLE_RATE:.2f} s of sound, first after {first or 0:.2f} s")


async def speak_all(args: argparse.Namespace) -> int:
    headers = {"Authorization": f"Bearer {key}"} if (key := os.environ.get("ORPHEUS_API_KEY")) else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=60)
    async with aiohttp.ClientSession(args.url, headers=headers, timeout=timeout) as session:
        results = await asyncio.gather(
            *(speak(session, text, args.voice, args.folder / f"{n}.wav") for n, text in enumerate(args.texts, 1)),
            return_exceptions=True,
        )
    failed = [result for result in results if result is not None]
    for error in failed:
        print(error, file=sys.stderr)
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    parser.add_argument("--voice", default="alloy", help="a voice of the model, or one of OpenAI's names")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    return asyncio.run(speak_all(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
