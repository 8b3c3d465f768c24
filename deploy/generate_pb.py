"""Generates quorumlog/pb/ from proto/: `python -m deploy.generate_pb`; `--check` only compares.

Owns the one difference from plain protoc: the packages are imported as `quorumlog.pb`, because an
importable `quorumlog.v1` (or `proto`) would clash with other packages. Messages only: clients and
servers take the methods of a service from its descriptor.
"""

import filecmp
import sys
import tempfile
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
_SOURCE = _ROOT / "proto"
_TARGET = _ROOT / "quorumlog" / "pb"
_HEADER = '"""Generated from proto/quorumlog/v1 by deploy/generate_pb.py. Do not edit."""\n'


def generate(target: Path) -> None:
    """Write all modules into `target`, which is made. Needs grpcio-tools (extra `dev`)."""
    import grpc_tools
    from grpc_tools import protoc

    sources = sorted(_SOURCE.glob("quorumlog/v1/*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        paths = [f"-I{_SOURCE}", f"-I{well_known}"]
        outputs = [f"--python_out={scratch}", f"--pyi_out={scratch}"]
        if protoc.main(["protoc", *paths, *outputs, *map(str, sources)]) != 0:
            raise SystemExit("protoc failed; its message is above")
        target.mkdir(parents=True, exist_ok=True)
        for old in target.glob("*.py*"):
            old.unlink()
        (target / "__init__.py").write_text(_HEADER, "utf-8")
        for made in sorted(Path(scratch, "quorumlog", "v1").iterdir()):
            text = made.read_text("utf-8")
            text = text.replace("from quorumlog.v1 import", "from quorumlog.pb import")
            (target / made.name).write_text(text, "utf-8")


def is_current() -> bool:
    """Whether the committed modules are those that `generate` would make."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generate(fresh)
        names = {path.name for path in fresh.iterdir()}
        committed = {path.name for path in _TARGET.glob("*.py*")}
        same, _, _ = filecmp.cmpfiles(fresh, _TARGET, names, shallow=False)
        return names == committed == set(same)


def main() -> None:
    """Generate, or with `--check` exit with 1 when quorumlog/pb is stale."""
    if "--check" in sys.argv[1:]:
        if not is_current():
            raise SystemExit("quorumlog/pb is stale; run python -m deploy.generate_pb")
        return
    generate(_TARGET)


if __name__ == "__main__":
    main()
