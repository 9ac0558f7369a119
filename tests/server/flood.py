"""Many clients that are refused and ask again at once, in a process of their own so that they take none of the server's time.

python flood.py PORT CLIENTS SECONDS
    each client asks, reads the whole answer and asks again, for so long: half of them POST over a connection that
    they keep, the others ask for WebSockets over new ones. Then one line of JSON:
    {"seconds": [of each answer], "statuses": {"429": how many}, "without_retry_after": how many}
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter

BODY = json.dumps({"input": "Me too, please. " * 20, "voice": "noise", "response_format": "pcm"})
POST = f"POST /v1/audio/speech HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}"
UPGRADE = (
    "GET /tts/websocket HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Flood:
    def __init__(self, port: int, until: float) -> None:
        self._port = port
        self._until = until
        self.seconds: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.without_retry_after = 0

    async def post(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        while time.monotonic() < self._until:
            await self._ask(POST, reader, writer)
        writer.close()

    async def upgrade(self) -> None:
        while time.monotonic() < self._until:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            await self._ask(UPGRADE, reader, writer)
            writer.close()

    async def _ask(self, request: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        began = time.monotonic()
        writer.write(request.encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
        self.seconds.append(time.monotonic() - began)
        self.statuses[head.split()[1]] += 1
        self.without_retry_after += "\r\nretry-after:" not in head


async def main(port: int, clients: int, duration: float) -> None:
    flood = Flood(port, time.monotonic() + duration)
    await asyncio.gather(*(flood.post() if number % 2 else flood.upgrade() for number in range(clients)))
    said = {"seconds": flood.seconds, "statuses": flood.statuses, "without_retry_after": flood.without_retry_after}
    print(json.dumps(said))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
