"""What is refused costs those nothing who are spoken to: their audio keeps its time while a flood of requests is turned away."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
from process import PATIENCE, Process

HERE = Path(__file__).parent
STREAMS = 4
FRAMES = 60  # 5.1 s
RATE = 24_000
BUFFER = 0.1  # seconds that a player waits before it begins


class Listener(threading.Thread):
    """Writes down when its audio came. `begun` is met when it has heard a third of it."""

    def __init__(self, url: str, begun: threading.Barrier) -> None:
        super().__init__()
        self._url = url
        self._begun = begun
        self.pieces: list[tuple[float, int]] = []  # (when, samples)
        self.audio = b""
        self.start()

    def run(self) -> None:
        body = {"input": "A story that is told in one go.", "response_format": "pcm", "seed": 1}
        with httpx.stream("POST", f"{self._url}/v1/audio/speech", json=body, timeout=PATIENCE) as response:
            for piece in response.iter_raw():
                self.pieces.append((time.monotonic(), len(piece) // 2))
                before, self.audio = len(self.audio), self.audio + piece
                third = FRAMES * 2048 * 2 // 3
                if before < third <= len(self.audio):
                    self._begun.wait(PATIENCE)

    def lateness(self) -> list[tuple[float, float]]:
        """(when, by how much it missed its moment of playback) of each piece, for a player that begins with the first one."""
        (began, heard), *rest = self.pieces
        late = []
        for when, samples in rest:
            late.append((when, when - began - heard / RATE))
            heard += samples
        return late


def test_streams_keep_real_time_while_a_flood_is_refused(noise_folder: Path) -> None:
    """32 clients ask again and again for 2 s. A player with 100 ms in hand runs dry in none of the running streams."""
    with Process([sys.executable, str(HERE / "real_time.py"), str(noise_folder), str(FRAMES), str(STREAMS)]) as server:
        url = server.url()
        with httpx.Client(base_url=url) as client:
            while client.get("/health/ready").status_code != 200:
                pass
        begun = threading.Barrier(STREAMS + 1)
        listeners = [Listener(url, begun) for _ in range(STREAMS)]
        begun.wait(PATIENCE)
        flood_began = time.monotonic()
        command = [sys.executable, str(HERE / "flood.py"), url.rpartition(":")[2], "32", "2"]
        flood = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout)
        flood_ended = time.monotonic()
        for listener in listeners:
            listener.join(PATIENCE)

    late = [entry for listener in listeners for entry in listener.lateness()]
    quiet = max(by for when, by in late if when < flood_began)
    after = [by for when, by in late if when >= flood_began]
    # A machine that is busy elsewhere may hold up a piece or two; a stream that is starved misses nearly all of them.
    dry = [by for by in after if by > max(BUFFER, 3 * quiet)]
    assert len(dry) <= len(after) / 50, f"{len(dry)} of {len(after)} late, by up to {max(after):.3f} s; {quiet:.3f} s without it"
    assert flood_ended < min(listener.pieces[-1][0] for listener in listeners), "the streams ended before the flood"
    assert {len(listener.audio) for listener in listeners} == {FRAMES * 2048 * 2}
    assert len({listener.audio for listener in listeners}) == 1

    assert set(flood["statuses"]) == {"429", "503"}
    assert sum(flood["statuses"].values()) >= 300
    assert not flood["without_retry_after"]
    slow = sorted(flood["seconds"])[int(len(flood["seconds"]) * 0.95)]
    assert slow < FRAMES * 2048 / RATE / 10, f"it took {slow:.2f} s to be refused"
