"""The server of the client tests, a process of its own: clients and server need not share one environment.

    python served.py FOLDER [--paced] [--frames N]
        builds a checkpoint of noise in FOLDER, serves it, and answers each line on standard input with a line of JSON

    {"advance": N}    let a paced engine say N more frames
    {}                nothing; every answer says what goes on: url, grpc, said (prompts since the last answer), active, free_slots

It ends when standard input does.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "server"))

from live import serving
from ws_client import Prompts

from orpheus_serving.codec.noise_codec import build_noise_codec
from orpheus_serving.noise_checkpoint import build_noise_lm
from orpheus_serving.server.grpc import start_grpc


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--paced", action="store_true")
    parser.add_argument("--frames", type=int, default=6)
    arguments = parser.parse_args()
    folder = build_noise_lm(arguments.folder / "checkpoint", voices=("noise", "hiss", "tara"))
    build_noise_codec(folder / "codec")
    prompts = Prompts(folder, arguments.frames)
    with serving(folder, engine={"script": prompts, "paced": arguments.paced}) as live:
        grpc = live.run(start_grpc(live.service, "127.0.0.1", 0))

        def state() -> dict[str, object]:
            return {
                "url": live.url,
                "grpc": f"127.0.0.1:{grpc.port}",
                "said": prompts.take(),
                "active": len(live.engine.active),
                "free_slots": live.codec.free_slots,
                "places": live.service.active,
            }

        print(json.dumps(live.call(state)), flush=True)
        for line in sys.stdin:
            order = json.loads(line)
            live.call(live.engine.advance, order.get("advance", 0))
            print(json.dumps(live.call(state)), flush=True)
        live.run(grpc.stop(None))


if __name__ == "__main__":
    main()
