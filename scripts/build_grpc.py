"""Make the generated code of packages/orpheus_serving/server/grpc from its .proto files.

python scripts/build_grpc.py            write it
python scripts/build_grpc.py --check    exit with 1, naming the files, if what is there is not what would be written

Needs grpcio-tools (requirements/dev.txt), whose version decides the oldest protobuf that can load the result.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "packages"
FOLDER = "orpheus_serving/server/grpc"
HEADER = "# fmt: off\n# ruff: noqa\n# mypy: ignore-errors\n"


def build() -> dict[Path, str]:
    """The generated files, by the path that each belongs to. Raises SystemExit where the compiler refuses a .proto."""
    from grpc_tools import protoc

    protos = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / FOLDER).glob("*.proto"))
    services = [proto for proto in protos if "\nservice " in (ROOT / proto).read_text("utf-8")]
    with tempfile.TemporaryDirectory() as work:
        common = ["protoc", f"-I{ROOT}", f"-I{files('grpc_tools') / '_proto'}"]
        for arguments in (
            [f"--python_out={work}", f"--pyi_out={work}", *protos],
            [f"--grpc_python_out={work}", *services],
        ):
            if protoc.main([*common, *arguments]) != 0:
                raise SystemExit("build_grpc: protoc refused the .proto files")
        return {ROOT / path.relative_to(work): HEADER + path.read_text("utf-8") for path in sorted(Path(work).rglob("*.py*"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args()
    stale = {p: text for p, text in build().items() if not p.is_file() or p.read_text("utf-8") != text}
    for path, text in stale.items():
        print(f"{'stale' if args.check else 'wrote'}: {path.relative_to(ROOT)}")
        if not args.check:
            path.write_text(text, "utf-8")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
