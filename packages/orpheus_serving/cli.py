"""`orpheus-serving`: speak, serve, list voices, check a Truss, run it.

Each command is a function of this file or the `main` of the module that it belongs to; heavy imports wait until a
command needs them, so that `--help` is quick.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from . import check
from .bench.cli import add_bench_command
from .errors import OrpheusServingError
from .training.cli import add_train_commands


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status: 0 done, 1 refused or failed (said on standard error), 130 interrupted."""
    parser = _parser()
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO if args.verbose else logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        return args.run(args) or 0
    except OrpheusServingError as error:
        print(f"orpheus-serving {args.command}: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="orpheus-serving", description="Text to streamed speech with Orpheus-style models.")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what is being loaded and done")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    say = commands.add_parser("say", help="speak a text to a file, to standard output or to the loudspeaker")
    say.add_argument("text", help="what to say; - reads it from standard input")
    say.add_argument("-o", "--output", help="FILE.wav or FILE.pcm, or - for PCM on standard output; without it, it is played")
    say.add_argument("--voice", help="see `orpheus-serving voices`")
    say.add_argument("--temperature", type=float)
    say.add_argument("--top-p", type=float)
    say.add_argument("--repetition-penalty", type=float)
    say.add_argument("--max-tokens", type=int, help="cut the speech after so many audio tokens (82.03 are a second)")
    say.add_argument("--max-chunk-size", type=int, help="characters spoken in one go")
    say.add_argument("--seed", type=int, help="the same seed gives the same audio")
    _add_model_arguments(say)
    say.set_defaults(run=_say)

    voices = commands.add_parser("voices", help="list the checkpoint's voices and emotion tags")
    _add_model_arguments(voices)
    voices.set_defaults(run=_voices)

    server = commands.add_parser("serve", help="serve OpenAI's API, WebSockets, gRPC and a page to try it, until a signal comes")
    server.add_argument("--host", help="address to listen on (default: 127.0.0.1, this machine only)")
    server.add_argument("--port", type=int, help="HTTP and WebSocket (default: 8000)")
    server.add_argument("--grpc-port", type=int, help="gRPC, wire-compatible with Riva (default: none)")
    server.add_argument("--voice", help="voice of requests that name none")
    server.add_argument("--max-active", type=int, help="streams that run at once")
    server.add_argument("--max-queued", type=int, help="requests that may wait for a place")
    server.add_argument(
        "--allow-unauthenticated", action="store_true", default=None, help="other addresses than loopback, no keys"
    )
    server.add_argument("--log-text", action="store_true", default=None, help="write what is spoken into the logs")
    _add_model_arguments(server)
    server.set_defaults(run=_serve)

    check_parser = commands.add_parser("check", help="validate config.yaml, and the checkpoint against it")
    check.add_arguments(check_parser)
    check_parser.set_defaults(run=check.main)

    add_train_commands(commands)

    add_bench_command(commands)

    synth = commands.add_parser("synth-checkpoint", help="write an Orpheus-shaped checkpoint of random weights, for load tests")
    synth.add_argument("folder")
    synth.add_argument("--size", choices=("full", "tiny"), default="full", help="full: as Orpheus 3B, 6.6 GB")
    synth.add_argument("--seconds", type=float, default=10.0, help="length of every utterance, 1 to 60 (default: 10)")
    synth.add_argument("--seed", type=int, default=0)
    synth.set_defaults(run=_synth_checkpoint)

    truss = commands.add_parser("truss", help="run this Truss with Baseten's own server, without Docker")
    verbs = truss.add_subparsers(dest="verb", required=True, metavar="VERB")
    serve = verbs.add_parser("serve", help="serve this folder until interrupted")
    serve.add_argument("folder", nargs="?", default=".")
    serve.add_argument("--port", type=int, default=8080)
    _add_model_arguments(serve)
    serve.set_defaults(run=_truss_serve)
    predict = verbs.add_parser("predict", help="send a request to a served Truss and write what it streams")
    predict.add_argument("text", help="what to say, or a whole request as a JSON object; - reads it from standard input")
    predict.add_argument("--target", default="http://127.0.0.1:8080", help="address of a server, or a Truss folder to start")
    predict.add_argument("-o", "--output", required=True, help="FILE.wav or FILE.pcm, or - for PCM on standard output")
    predict.add_argument("--voice")
    predict.add_argument("--seed", type=int)
    predict.set_defaults(run=_truss_predict)
    return parser


def _add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--checkpoint", help="model folder or hub repository; default: the demo voice")
    parser.add_argument("--codec", help="SNAC folder or hub repository; default: the checkpoint's")


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(args, name) for name in ("checkpoint", "codec") if getattr(args, name)}


def _text(argument: str) -> str:
    if argument != "-":
        return argument
    return sys.stdin.buffer.read().decode("utf-8", "replace")


def _say(args: argparse.Namespace) -> int:
    from .request import SpeechRequest

    names = ("voice", "temperature", "top_p", "repetition_penalty", "max_tokens", "max_chunk_size", "seed")
    body = {"prompt": _text(args.text)} | {n: getattr(args, n) for n in names if getattr(args, n) is not None}
    return asyncio.run(_speak(SpeechRequest.parse(body), args.output, _settings(args)))


async def _speak(request: Any, output: str | None, settings: dict[str, Any]) -> int:
    """Speak, with a progress bar and a summary on standard error."""
    began = time.monotonic()
    from tqdm import tqdm

    from .audio.sinks import check_output, open_sink
    from .build import build
    from .settings import Settings

    check_output(output)
    synthesizer = build(Settings.load(over=settings))
    speech = synthesizer.speak(request)  # refused before anything slow happens
    await synthesizer.start()
    loaded = time.monotonic()
    rate = synthesizer.sample_rate
    likely = sum(map(len, speech.chunks)) / 14  # characters of English a second
    bar = tqdm(total=round(likely, 1), unit="s", desc="speaking", bar_format="{desc} |{bar}| {n:.1f} s", leave=False)
    try:
        with open_sink(output, rate) as sink, bar:
            async for samples in speech:
                await asyncio.to_thread(sink.write, samples)
                bar.update(len(samples) / rate)
    finally:
        await speech.aclose()
        done = time.monotonic()
        await synthesizer.stop()
    seconds, first = speech.stats.samples / rate, speech.stats.first_audio
    print(
        f"{seconds:.2f} s of audio by {synthesizer.checkpoint.name}, voice {speech.voice}"
        f"{f', in {output}' if output else ''}\n"
        f"loaded in {loaded - began:.1f} s, first audio after {(first or 0) * 1000:.0f} ms, "
        f"real-time factor {(done - loaded) / max(seconds, 1e-9):.2f}{' (played)' if output is None else ''}",
        file=sys.stderr,
    )
    if speech.outcome == "length":
        print("note: the speech was cut at its token limit", file=sys.stderr)
    return 0


def _voices(args: argparse.Namespace) -> int:
    from .build import DATA, default_checkpoint
    from .checkpoint import Checkpoint
    from .settings import Settings

    settings = Settings.load(over=_settings(args))
    checkpoint = Checkpoint(settings.checkpoint or default_checkpoint(DATA), settings.checkpoint_revision)
    print(f"{checkpoint.name} ({', '.join(checkpoint.languages)})")
    for voice in checkpoint.voices:
        print(f"  {voice}")
    if checkpoint.tags:
        print("tags: " + " ".join(f"<{tag}>" for tag in checkpoint.tags))
    return 0


def _serve(args: argparse.Namespace) -> int:
    from .server.options import ServerOptions
    from .server.serve import serve
    from .settings import Settings

    names = ("host", "port", "grpc_port", "max_active", "max_queued", "allow_unauthenticated", "log_text")
    options = ServerOptions.load({name: getattr(args, name) for name in names if getattr(args, name) is not None})
    settings = _settings(args) | ({"voice": args.voice} if args.voice else {})
    serve(options, Settings.load(over=settings))
    return 0


def _synth_checkpoint(args: argparse.Namespace) -> int:
    from .synth_checkpoint import build_synth_lm

    try:
        folder = build_synth_lm(args.folder, args.size, seconds=args.seconds, seed=args.seed)
    except ValueError as error:
        print(f"orpheus-serving synth-checkpoint: {error}", file=sys.stderr)
        return 1
    print(f"{folder}: random weights in the shape of Orpheus, for load tests; not a voice", file=sys.stderr)
    return 0


def _truss_serve(args: argparse.Namespace) -> int:
    from . import truss_local

    settings = {k: str(Path(v).resolve()) if Path(v).exists() else v for k, v in _settings(args).items()}
    return truss_local.serve(args.folder, port=args.port, settings=settings or None)


def _truss_predict(args: argparse.Namespace) -> int:
    from . import truss_local
    from .audio.sinks import check_output

    check_output(args.output)
    text = _text(args.text)
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    payload = body if isinstance(body, dict) else {"prompt": text}
    payload |= {name: getattr(args, name) for name in ("voice", "seed") if getattr(args, name) is not None}
    if args.output.lower().endswith(".wav"):
        payload["response_format"] = "wav"
    if args.output == "-":
        truss_local.predict(args.target, payload, sys.stdout.buffer)
        return 0
    partial = Path(args.output + ".part")
    out: BinaryIO
    try:
        with partial.open("wb") as out:
            count = truss_local.predict(args.target, payload, out)
        partial.replace(args.output)
    finally:
        partial.unlink(missing_ok=True)
    print(f"{count} bytes in {args.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
