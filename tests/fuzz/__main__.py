"""`python -m tests.fuzz`: searches inputs that break the claim of a target, or of each.

Owns the process of each search, what its death means (an input that ends the interpreter or hangs
is a finding like any other), and the files of the corpus. The exit code is 1 if there are findings,
2 for wrong options.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Final

import click

CORPUS: Final = Path(__file__).with_name("corpus")
_LINE_DIGITS: Final = 96


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, metavar="[TARGET]...")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the run.")
@click.option("--count", type=click.IntRange(1), default=1_000, help="Inputs of each target.")
@click.option("--atheris", is_flag=True, help="Search with atheris (extra `fuzz`).")
@click.option("--list", "is_list", is_flag=True, help="Show the targets and their claims.")
@click.option("--corpus", type=click.Path(path_type=Path), default=CORPUS, hidden=True)
@click.option("--registry", default="tests.fuzz.targets", hidden=True)
@click.option("--silence-s", default=60.0, hidden=True)
def main(
    names: tuple[str, ...],
    seed: int,
    count: int,
    atheris: bool,
    is_list: bool,
    corpus: Path,
    registry: str,
    silence_s: float,
) -> None:
    """Search for inputs that break the claims of targets, of all if none is named.

    An input that does is written into tests/fuzz/corpus, which the tests replay.
    """
    targets = importlib.import_module(registry).TARGETS
    if is_list:
        for target in targets.values():
            click.echo(f"{target.name:<22} {target.states}")
        return
    if unknown := set(names) - targets.keys():
        raise click.UsageError(f"no target {', '.join(sorted(unknown))}; see --list")
    if atheris and importlib.util.find_spec("atheris") is None:
        raise click.UsageError("atheris is not installed; install quorumlog[fuzz], or leave it out")
    finding_count = 0
    for name in names or targets:
        with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
            held, kept = Path(directory, "input"), Path(directory, "kept")
            kept.mkdir()
            command = [sys.executable, "-m", "tests.fuzz.search", registry, name]
            command += ["--count", str(count), "--seed", str(seed), "--input", str(held)]
            command += ["--silence-s", str(silence_s)]
            # Also what a target leaves there goes with the directory, however the process ends.
            done = subprocess.run(
                [*command, *(("--atheris", str(kept)) if atheris else ())],
                env={**os.environ, "TMPDIR": directory},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
            if done.returncode == 0:
                click.echo(f"{name}: {count} inputs, no finding")
                continue
            finding_count += 1
            click.echo(done.stdout[-8_000:].decode("utf-8", "replace"))
            path = save(name, held.read_bytes(), corpus) if held.exists() else "none was run"
            click.echo(f"{name}: exit code {done.returncode}; the input: {path}")
    sys.exit(1 if finding_count else 0)


def save(target: str, data: bytes, corpus: Path = CORPUS) -> Path:
    """Write an input of a target as hexadecimal digits; return its file, named by its checksum."""
    path = corpus / target / f"{zlib.crc32(data):08x}.hex"
    path.parent.mkdir(parents=True, exist_ok=True)
    digits = data.hex()
    lines = [digits[at : at + _LINE_DIGITS] for at in range(0, len(digits), _LINE_DIGITS)]
    path.write_text("\n".join(lines) + "\n", "ascii")
    return path


if __name__ == "__main__":
    main()
