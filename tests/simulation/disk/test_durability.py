"""The model of what a power loss leaves: names, pages, and syncs that overtake each other."""

from pathlib import Path
from random import Random

import pytest

from simulation.disk.content import PAGE, Content, copy_file, read_file, write_file
from simulation.disk.durability import Durability, File

SEEDS = range(40)


class Tree:
    """A directory and its model, changed together."""

    def __init__(self, parent: Path) -> None:
        self.parent, self.root = parent, parent / "root"
        self.root.mkdir()
        self.model = Durability()
        self.model.adopt(str(self.root))

    def write(self, name: str, data: bytes, *, is_synced: bool = True) -> File:
        path = self.root / name
        is_new = not path.exists()
        path.write_bytes(data)
        file = self.model.created(str(path)) if is_new else self.model.file(str(path))
        if is_synced:
            file.finish_sync(file.begin_sync(), file.current())
        return file

    def make_directory(self, name: str) -> None:
        (self.root / name).mkdir()
        self.model.made_directory(str(self.root / name))

    def rename(self, source: str, target: str) -> None:
        old, new = self.root / source, self.root / target
        replaced = self.model.content_at(str(new))
        old.replace(new)
        self.model.renamed(str(old), str(new), replaced)

    def sync(self, name: str = "") -> None:
        directory = self.model.directory(str(self.root / name) if name else str(self.root))
        directory.finish_sync(directory.begin_sync())

    def images(self) -> list[dict[str, bytes]]:
        """Return the files of an image for each seed, by path."""
        found = []
        for seed in SEEDS:
            image = self.parent / f"image{seed}"
            self.model.build_image(str(self.root), str(image), Random(seed))
            files = sorted(path for path in image.rglob("*") if path.is_file())
            found.append({str(one.relative_to(image)): one.read_bytes() for one in files})
        return found


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_directory_that_was_not_synced_takes_all_in_it_along(tree: Tree) -> None:
    tree.make_directory("inner")
    tree.write("inner/file", b"x")
    tree.sync("inner")
    images = tree.images()
    assert {} in images
    assert {"inner/file": b"x"} in images
    tree.sync()
    for seed in SEEDS:
        (tree.parent / f"image{seed}").rename(tree.parent / f"old{seed}")
    assert all(image == {"inner/file": b"x"} for image in tree.images())


def test_a_file_that_is_replaced_has_one_content_or_the_other(tree: Tree) -> None:
    tree.write("file", b"old")
    tree.sync()
    tree.write("file.new", b"new")
    tree.rename("file.new", "file")
    seen = {image["file"] for image in tree.images()}
    assert seen == {b"old", b"new"}


def test_a_rename_into_another_directory_loses_no_file(tree: Tree) -> None:
    for name in ("a", "b"):
        tree.make_directory(name)
    tree.write("a/file", b"x")
    tree.sync("a")
    tree.sync()
    tree.rename("a/file", "b/file")
    images = tree.images()
    assert all(b"x" in image.values() for image in images)
    assert {"a/file": b"x"} in images
    assert {"b/file": b"x"} in images


def test_a_directory_that_is_renamed_keeps_its_files(tree: Tree) -> None:
    tree.make_directory("old")
    tree.write("old/file", b"x")
    tree.sync("old")
    tree.sync()
    tree.rename("old", "new")
    tree.sync()
    assert all(image == {"new/file": b"x"} for image in tree.images())
    file = tree.write("new/file", b"y")
    assert file.path == str(tree.root / "new/file")


def test_an_earlier_sync_that_ends_later_takes_nothing_back(tree: Tree) -> None:
    file = tree.write("file", b"", is_synced=False)
    first, second = file.begin_sync(), file.begin_sync()
    file.finish_sync(second, Content(b"new", 3))
    file.finish_sync(first, Content(b"old", 3))
    assert file.synced == (b"new", 3)


def test_files_with_holes_cost_what_they_hold(tmp_path: Path) -> None:
    path, copy = str(tmp_path / "file"), str(tmp_path / "copy")
    write_file(path, Content(b"x" * PAGE, 64 << 20))
    found = read_file(path)
    assert found.size_bytes == 64 << 20
    assert len(found.data) <= 1 << 20
    assert found.part(0, 2 * PAGE) == b"x" * PAGE + bytes(PAGE)
    copy_file(path, copy)
    assert read_file(copy) == found
    assert Path(copy).stat().st_blocks * 512 <= 1 << 20
