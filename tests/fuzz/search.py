"""The search of one target, in the process that `python -m tests.fuzz` starts for it.

Owns the inputs that Hypothesis draws, those that atheris makes, and the limits of the process. Must
not know what a finding means: the input in hand is in a file, and the process ends with an error.
Hypothesis reduces an input before; atheris is guided by the lines that an input reaches.
"""

import argparse
import faulthandler
import importlib
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, Final

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from tests.fuzz.target import FuzzTarget

MEMORY_BYTES_MAX: Final = 2 << 30
"""Address space of the process. Imports take less than half of it."""
_EDIT_COUNT_MAX: Final = 6
_SEEDS: Final = st.integers(0, (1 << 64) - 1)
_NUMBERS: Final = (0, 1, 2, 7, 9, 32, 64, 127, 128, 255, 256, 1 << 15, 1 << 20, -1, -2, -128)


@st.composite
def inputs(draw: st.DrawFn, target: FuzzTarget) -> bytes:
    """Draw a good input of a target after some changes, most with sizes and checksums right.

    A change is a seed, so that Hypothesis can leave it out."""
    random = Random(draw(_SEEDS))
    data = random.choice(target.examples(random))
    for number in draw(st.lists(_SEEDS, max_size=_EDIT_COUNT_MAX)):
        change = Random(number)
        if target.mutated is not None and change.random() < 0.5:
            data = target.mutated(change, data)
        else:
            data = _edited(change, data, target)
    if target.repaired is not None and random.random() < 0.8:
        data = target.repaired(data)
    return data[: target.size_bytes_max]


def _edited(random: Random, data: bytes, target: FuzzTarget) -> bytes:
    """Return the bytes with some replaced: by nothing, a number, a word, other bytes or a part."""
    lo, size = random.randint(0, len(data)), random.choice((0, 1, 1, 1, 2, 4, 8))
    match random.randrange(5):
        case 0:
            piece = b""
        case 1 if size:
            value = random.choice((*_NUMBERS, len(data) - lo, random.getrandbits(64)))
            piece = (value % (1 << 8 * size)).to_bytes(size, random.choice(("big", "little")))
        case 2 if target.words:
            piece = random.choice(target.words)
        case 3:
            piece = data[random.randint(0, len(data)) :][: random.randint(0, 64)]
        case _:
            piece = random.randbytes(size)
    removed_count = random.choice((len(piece), len(piece), 0, random.randrange(9), len(data)))
    return data[:lo] + piece + data[lo + removed_count :]


def run_hypothesis(
    target: FuzzTarget, count: int, *, seed: int, check: Callable[[bytes], None]
) -> None:
    """Check `count` inputs. Raises what breaks the claim; the last one checked is small then."""

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs(target))
    def run(data: bytes) -> None:
        check(data)

    run()


def run_atheris(
    target: FuzzTarget, count: int, *, seed: int, check: Callable[[bytes], None], corpus: Path
) -> None:
    """Check `count` inputs that libFuzzer makes, from examples in an empty directory; ends the
    process. The import of the target's modules has instrumented them."""
    atheris: Any = importlib.import_module("atheris")

    def mutated(data: bytes, size_bytes_max: int, number: int) -> bytes:
        random = Random(number)
        if target.mutated is not None and random.random() < 0.5:
            made = target.mutated(random, bytes(data))
        else:
            made = bytes(atheris.Mutate(data, size_bytes_max))
        if target.repaired is not None and random.random() < 0.8:
            made = target.repaired(made)
        return made[:size_bytes_max]

    for number, data in enumerate(target.examples(Random(seed))):
        (corpus / str(number)).write_bytes(data)
    # No file of its own for a finding; the watch of `main` is for an input that hangs.
    options = [f"-runs={count}", f"-seed={seed}", f"-max_len={target.size_bytes_max}"]
    options += ["-timeout=86400", "-rss_limit_mb=0", "-verbosity=0", f"-artifact_prefix={corpus}/"]
    atheris.Setup(["atheris", *options, str(corpus)], check, custom_mutator=mutated)
    atheris.Fuzz()


def main(arguments: Sequence[str]) -> None:
    """Search one target; the exit code is 0 if all inputs were checked and none broke its claim."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.search", description=__doc__)
    parser.add_argument("registry", help="module with TARGETS")
    parser.add_argument("target")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--input", type=Path, required=True, help="file for the input in hand")
    parser.add_argument("--silence-s", type=float, required=True, help="time that one may take")
    parser.add_argument("--atheris", type=Path, help="empty directory for what atheris keeps")
    options = parser.parse_args(arguments)
    if options.atheris is None:
        target: FuzzTarget = importlib.import_module(options.registry).TARGETS[options.target]
    else:
        atheris: Any = importlib.import_module("atheris")
        ours = ["node", "raft", "store", "quorumlog", options.registry]
        with atheris.instrument_imports(include=ours):
            target = importlib.import_module(options.registry).TARGETS[options.target]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))

    @contextmanager
    def held(data: bytes) -> Iterator[None]:
        options.input.write_bytes(data)
        faulthandler.dump_traceback_later(options.silence_s, exit=True)
        yield
        faulthandler.cancel_dump_traceback_later()

    def check(data: bytes) -> None:
        with held(data):
            target.check(bytes(data))

    for data in target.examples(Random(options.seed)):  # Caches of a parser are no input's memory.
        with held(data), suppress(Exception):
            target.run(data)
    if options.atheris is None:
        run_hypothesis(target, options.count, seed=options.seed, check=check)
    else:
        run_atheris(target, options.count, seed=options.seed, check=check, corpus=options.atheris)


if __name__ == "__main__":
    main(sys.argv[1:])
