"""A server whose engine speaks exactly as fast as one listens, as `orpheus-serving serve` runs it: loop, signals, logs.

python real_time.py FOLDER FRAMES STREAMS [forever]
    serves the checkpoint of noise in FOLDER with STREAMS places and no queue; every chunk of text is FRAMES frames long.
    With `forever` it never gets so far: its engine loads, in a thread as engines do, and does not come to an end.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path

from live import FRAME, noise_script

from orpheus_serving.checkpoint import Checkpoint
from orpheus_serving.codec import load_codec
from orpheus_serving.engines.base import Sampling
from orpheus_serving.engines.scripted import ScriptedEngine
from orpheus_serving.server.logs import configure_logging
from orpheus_serving.server.options import ServerOptions
from orpheus_serving.server.serve import listen, run
from orpheus_serving.server.service import Service
from orpheus_serving.settings import Settings
from orpheus_serving.synthesizer import Synthesizer


class RealTimeEngine(ScriptedEngine):
    """Hands out the n-th frame n frames' time after it was asked; where it is held up it does not drift."""

    async def generate(self, prompt: Sequence[int], sampling: Sampling, request_id: str) -> AsyncGenerator[list[int], None]:
        loop = asyncio.get_running_loop()
        due = loop.time()
        async with aclosing(super().generate(prompt, sampling, request_id)) as lists:
            async for ids in lists:
                due += FRAME / 24_000
                await asyncio.sleep(due - loop.time())
                yield ids


class LoadingEngine(ScriptedEngine):
    async def start(self) -> None:
        await asyncio.to_thread(threading.Event().wait)


def main(folder: Path, frames: int, streams: int, engine: type[ScriptedEngine]) -> None:
    configure_logging()
    checkpoint = Checkpoint(folder)
    scripted = engine(noise_script(checkpoint, frames), layout=checkpoint.layout)
    # Early audio starts before it can be kept up at this pace: that would be lateness too, and not what is looked at here.
    settings = Settings(early_audio=False)
    synthesizer = Synthesizer(checkpoint, scripted, load_codec(folder / "codec", max_streams=streams), settings)
    options = ServerOptions(port=0, max_active=streams, max_queued=0)
    with listen(options) as listener:
        run(Service(synthesizer, options), listener)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), LoadingEngine if "forever" in sys.argv else RealTimeEngine)
