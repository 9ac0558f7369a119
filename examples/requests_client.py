"""Speak with requests: PCM as it arrives, written to a WAV.

python examples/requests_client.py TEXT FILE.wav [--voice NAME] [--url http://127.0.0.1:8000]

The API key, if the server has keys: ORPHEUS_API_KEY.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import wave

import requests

SAMPLE_RATE = 24_000
SAMPLE_BYTES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("file")
    parser.add_argument("--voice", default="alloy", help="a voice of the model, or one of OpenAI's names")
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    args = parser.parse_args()

    body = {"input": args.text, "voice": args.voice, "response_format": "pcm"}
    headers = {"Authorization": f"Bearer {key}"} if (key := os.environ.get("ORPHEUS_API_KEY")) else {}
    asked = time.monotonic()
    first, pending, size = None, b"", 0
    try:
        with requests.post(f"{args.url}/v1/audio/speech", json=body, headers=headers, stream=True, timeout=(5, 60)) as answer:
            if answer.status_code != 200:
                print(f"{answer.status_code}: {answer.text}", file=sys.stderr)
                return 1
            with wave.open(args.file, "wb") as file:
                file.setparams((1, SAMPLE_BYTES, SAMPLE_RATE, 0, "NONE", ""))
                for piece in answer.iter_content(chunk_size=None):  # as it comes, not in blocks
                    first = first or time.monotonic() - asked
                    pending += piece
                    whole = len(pending) // SAMPLE_BYTES * SAMPLE_BYTES  # a piece may end inside a sample
                    file.writeframes(pending[:whole])
                    pending, size = pending[whole:], size + whole
    except requests.RequestException as error:  # also midway: then the utterance is not whole
        print(f"the connection broke after {size} bytes: {error}", file=sys.stderr)
        return 1
    seconds = size / SAMPLE_BYTES / SAMPLE_RATE
    print(f"{args.file}: {seconds:.2f} s of sound, first after {first or 0:.2f} s, last after {time.monotonic() - asked:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
