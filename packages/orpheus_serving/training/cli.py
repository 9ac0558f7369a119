"""`orpheus-serving train ...`: one subcommand a module."""

from __future__ import annotations

import argparse
from importlib import import_module
from typing import Any

COMMANDS = {
    "sentences": "sentences for a teacher to read",
    "teacher": "speech from a teacher voice",
    "prepare": "recordings and texts to training data",
    "codec": "a small codec: codes, decoder, polish",
    "lm": "a small language model",
    "guide": "a voice that listens harder to its text",
    "ends": "a voice that stops when it has said all",
    "prefer": "a voice that unlearns what was misheard",
    "finetune": "another voice on a model that exists",
    "evaluate": "word error rate, rate, silence and speed",
}


class _ModuleParser(argparse.ArgumentParser):
    """Takes its arguments from a module, imported only when its command is named: other commands start quickly."""

    module: str | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self.module is not None:
            module, self.module = import_module(f"{__package__}.{self.module}"), None
            self.description, self.formatter_class = module.__doc__, argparse.RawDescriptionHelpFormatter
            module.add_arguments(self)
            self.set_defaults(run=module.main)
        return super().parse_known_args(args, namespace)


def add_train_commands(subparsers: Any) -> None:
    """Add `train` and its subcommands to the result of `add_subparsers`; a parsed command is `args.run(args)`."""
    train = subparsers.add_parser("train", help="make or fine-tune a voice (needs requirements/train.txt)")
    commands = train.add_subparsers(required=True, metavar="STEP", parser_class=_ModuleParser)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text).module = name


def main() -> None:
    parser = argparse.ArgumentParser(prog="orpheus-serving")
    add_train_commands(parser.add_subparsers(required=True))
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
