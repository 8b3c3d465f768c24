"""The replicated state as it is saved and comes back: checkpoints, images, and the log again."""

from pathlib import Path
from random import Random

from node.config.limits import Limits
from node.state.checkpoint_files import CheckpointFiles
from node.state.image import decode_image, encode_image
from node.state.machine import StateMachine
from node.state.state import EMPTY_IMAGE, Member, State, StateImage
from node.state.tables.topic_types import TopicSettings
from store.files.file_system import FileSystem
from tests.node.broker_fakes import Fixture

SMALL = EMPTY_IMAGE._replace(
    topics={"orders": TopicSettings(4, 6), "%RETRY%readers": TopicSettings(1, 4, "FIFO")},
    groups={"readers": {"orders": {0: 123, 3: 120}, "%RETRY%readers": {0: 4}}, "idle": {}},
    producers=((0xFEDCBA9876543210, 9, (100, 200, 300)), (1, 0, (50,))),
    members={1: Member("127.0.0.1:8081", "127.0.0.1:40911"), 2: Member("[::1]:8082", "")},
)
"""A state with rows in each of its own tables."""


def loaded(root: Path, fs: FileSystem | None = None) -> tuple[CheckpointFiles, StateImage | None]:
    files = CheckpointFiles(fs or FileSystem(), str(root))
    return files, files.load()


def saved(root: Path, *images: StateImage, fs: FileSystem | None = None) -> CheckpointFiles:
    files, _ = loaded(root, fs)
    for number, image in enumerate(images):
        files.save(image, 1_700_000_000_000 + number)
    return files


def reloaded(root: Path, image: StateImage) -> StateImage:
    """Return what a node finds that starts after an image was saved."""
    saved(root, image)
    _, saved_image = loaded(root)
    assert saved_image is not None
    return saved_image


def check_images(node: Fixture, limits: Limits, random: Random) -> None:
    """Equal commands in any portions give equal states, and a state comes back from its image."""
    data = encode_image(node.machine.state.image())
    assert encode_image(State(limits, decode_image(data)).image()) == data
    again = StateMachine(node.log.store.reads, limits, None)
    hi = node.machine.applied_index + 1
    while again.applied_index + 1 < hi:
        lo = again.applied_index + 1
        again.apply(lo, random.randint(lo + 1, hi))
    assert encode_image(again.state.image()) == data
