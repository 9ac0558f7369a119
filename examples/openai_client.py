"""Speak with openai-python: any program that talks to OpenAI's speech API talks to this server by its base URL.

python examples/openai_client.py TEXT FILE.mp3 [--voice NAME] [--url http://127.0.0.1:8000]

The end of FILE's name is the format: mp3, opus, aac, flac, wav or pcm. The API key, if the server has keys: OPENAI_API_KEY.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import openai


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("file", type=Path)
    parser.add_argument("--voice", default="alloy", help="a voice of the model, or one of OpenAI's names")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    args = parser.parse_args()

    client = openai.OpenAI(base_url=f"{args.url}/v1", api_key=os.environ.get("OPENAI_API_KEY", "none"))
    asked = time.monotonic()
    first = None
    try:
        with (
            client.audio.speech.with_streaming_response.create(
                model="tts-1",
                input=args.text,
                voice=args.voice,
                response_format=args.file.suffix.lstrip("."),  # type: ignore[arg-type]
            ) as answer,
            args.file.open("wb") as file,
        ):
            for piece in answer.iter_bytes():
                first = first or time.monotonic() - asked
                file.write(piece)
    except openai.APIError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{args.file}: first bytes after {first or 0:.2f} s, last after {time.monotonic() - asked:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
