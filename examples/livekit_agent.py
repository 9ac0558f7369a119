"""A LiveKit agent whose voice is this server.

python examples/livekit_agent.py say TEXT FILE.wav [--voice NAME] [--url ws://127.0.0.1:8000]
    a session without a room, which says TEXT into a WAV: it needs neither LiveKit's cloud nor a language model
python examples/livekit_agent.py dev
    the agent in rooms: LIVEKIT_URL, LIVEKIT_API_KEY and LIVEKIT_API_SECRET say where, ORPHEUS_URL and ORPHEUS_VOICE what speaks

The API key of this server, if it has keys: ORPHEUS_API_KEY. Needs livekit-agents and livekit-plugins-baseten.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import wave
from typing import Any

import aiohttp
from livekit import rtc
from livekit.agents import Agent, AgentServer, AgentSession, JobContext, cli
from livekit.agents.voice.io import AudioOutput, AudioOutputCapabilities
from livekit.plugins import baseten

GREETING = "Hello! You hear this while it is still being generated."


def orpheus(url: str, voice: str, **more: Any) -> baseten.TTS:
    """The plugin for Baseten's Orpheus, pointed here: it sends words while the language model is still writing them."""
    key = os.environ.get("ORPHEUS_API_KEY", "none")
    return baseten.TTS(api_key=key, model_endpoint=f"{url}/v1/websocket", voice=voice, **more)


# ------------------------------------------------------------------------------------------------------------- in rooms

server = AgentServer()


@server.rtc_session()
async def in_a_room(context: JobContext) -> None:
    """Greets whoever comes in. To converse, give the session an stt, an llm and a vad as well."""
    voice = orpheus(os.environ.get("ORPHEUS_URL", "ws://127.0.0.1:8000"), os.environ.get("ORPHEUS_VOICE", "tara"))
    session: AgentSession = AgentSession(tts=voice)
    await session.start(Agent(instructions="Greet people."), room=context.room)
    await session.say(GREETING)


# ------------------------------------------------------------------------------------------------------- without a room


class WavOutput(AudioOutput):
    """Where a room's loudspeakers would be: keeps what the session plays."""

    def __init__(self) -> None:
        super().__init__(label="wav", capabilities=AudioOutputCapabilities(pause=False))
        self.audio = bytearray()
        self.rate = 0
        self._seconds = 0.0

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        self.rate = frame.sample_rate
        self.audio += frame.data
        self._seconds += frame.duration

    def flush(self) -> None:
        super().flush()
        self._finish(interrupted=False)

    def clear_buffer(self) -> None:
        self._finish(interrupted=True)

    def _finish(self, interrupted: bool) -> None:
        if self._seconds:
            self.on_playback_finished(playback_position=self._seconds, interrupted=interrupted)
        self._seconds = 0.0


async def say(args: argparse.Namespace) -> int:
    output = WavOutput()
    async with aiohttp.ClientSession() as http:
        session: AgentSession = AgentSession(tts=orpheus(args.url, args.voice, http_session=http))
        session.output.audio = output
        await session.start(Agent(instructions="Speak."), record=False)
        await session.say(args.text)
        await session.aclose()
    if not output.audio:
        print("nothing was spoken; the log above says why", file=sys.stderr)
        return 1
    with wave.open(args.file, "wb") as file:
        file.setparams((1, 2, output.rate, 0, "NONE", ""))
        file.writeframes(output.audio)
    print(f"{args.file}: {len(output.audio) / 2 / output.rate:.2f} s of sound")
    return 0


def main() -> int:
    if sys.argv[1:2] != ["say"]:
        cli.run_app(server)
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("say")
    parser.add_argument("text")
    parser.add_argument("file")
    parser.add_argument("--voice", default="tara")
    parser.add_argument("--url", default="ws://127.0.0.1:8000")
    return asyncio.run(say(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
