"""Speak one text through a running server, and write it to a WAV as it arrives.

python examples/stream_to_wav.py TEXT FILE [--voice NAME] [--url URL]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.request
import wave

SAMPLE_RATE = 24_000
SAMPLE_BYTES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("file")
    parser.add_argument("--voice")
    parser.add_argument("--url", default="http://127.0.0.1:8080/v1/models/model:predict")
    args = parser.parse_args()

    headers = {"Content-Type": "application/json"}
    if args.url.startswith("https:") and (key := os.environ.get("BASETEN_API_KEY")):
        headers["Authorization"] = f"Api-Key {key}"
    body = {"prompt": args.text, **({"voice": args.voice} if args.voice else {})}
    request = urllib.request.Request(args.url, json.dumps(body).encode(), headers)

    asked = time.monotonic()
    first, pending, size = None, b"", 0
    try:
        with urllib.request.urlopen(request) as answer, wave.open(args.file, "wb") as file:
            file.setparams((1, SAMPLE_BYTES, SAMPLE_RATE, 0, "NONE", ""))
            while piece := answer.read1(65_536):
                first = first or time.monotonic() - asked
                pending += piece
                whole = len(pending) // SAMPLE_BYTES * SAMPLE_BYTES  # a piece may end inside a sample
                file.writeframes(pending[:whole])
                pending, size = pending[whole:], size + whole
    except urllib.error.HTTPError as error:
        print(f"{error.code}: {error.read().decode(errors='replace')}", file=sys.stderr)
        return 1
    except (OSError, http.client.HTTPException) as error:
        print(f"the connection broke after {size} bytes: {error!r}", file=sys.stderr)
        return 1
    taken = time.monotonic() - asked
    seconds = size / SAMPLE_BYTES / SAMPLE_RATE
    print(f"{args.file}: {seconds:.2f} s of sound, first after {first or taken:.2f} s, last after {taken:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
