"""A Pipecat pipeline whose voice is this server: text frames in, speech into a WAV as it is made.

python examples/pipecat_pipeline.py TEXT FILE.wav [--voice NAME] [--url ws://127.0.0.1:8000]

In a bot the service stands between the language model and the transport's output, and nothing else changes:
Pipeline([transport.input(), stt, context.user(), llm, tts, transport.output(), context.assistant()]).
The API key, if the server has keys: ORPHEUS_API_KEY. Needs pipecat-ai.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import wave

from pipecat.frames.frames import EndFrame, ErrorFrame, Frame, TTSAudioRawFrame, TTSSpeakFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineWorker
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.together.tts import TogetherTTSService
from pipecat.workers.runner import WorkerRunner

SAMPLE_RATE = 24_000


def orpheus(url: str, voice: str) -> TogetherTTSService:
    """The service: Together's, which was made for Orpheus, pointed here. No voice is refused on the client's side."""
    return TogetherTTSService(
        api_key=os.environ.get("ORPHEUS_API_KEY", "none"),
        url=f"{url}/v1/audio/speech/websocket",
        sample_rate=SAMPLE_RATE,
        settings=TogetherTTSService.Settings(voice=voice, model="orpheus"),
    )


class WavWriter(FrameProcessor):
    """Stands where a transport's output would: writes the audio that reaches it."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path
        self.audio = bytearray()

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, TTSAudioRawFrame):
            self.audio += frame.audio
        await self.push_frame(frame, direction)

    def save(self) -> float:
        with wave.open(self._path, "wb") as file:
            file.setparams((1, 2, SAMPLE_RATE, 0, "NONE", ""))
            file.writeframes(self.audio)
        return len(self.audio) / 2 / SAMPLE_RATE


async def speak(args: argparse.Namespace) -> int:
    writer = WavWriter(args.file)
    worker = PipelineWorker(Pipeline([orpheus(args.url, args.voice), writer]))
    errors: list[str] = []

    @worker.event_handler("on_pipeline_error")
    async def on_error(worker: PipelineWorker, frame: ErrorFrame) -> None:
        errors.append(frame.error)

    await worker.queue_frames([TTSSpeakFrame(args.text), EndFrame()])
    runner = WorkerRunner()
    await runner.add_workers(worker)
    await runner.run()
    print(f"{args.file}: {writer.save():.2f} s of sound")
    for error in errors:
        print(error, file=sys.stderr)
    return 1 if errors or not writer.audio else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("file")
    parser.add_argument("--voice", default="tara")
    parser.add_argument("--url", default="ws://127.0.0.1:8000")
    return asyncio.run(speak(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
