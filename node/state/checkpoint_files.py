"""The replicated state on disk: the files of `config/`, replaced together or not at all.

Owns the way to disk of one generation: texts of `checkpoint_tables` under temporary names, synced;
then the manifest, whose replacement is the moment at which the new generation counts; then the
renames. The manifest (a MetaFile) has the applied index, and size and checksum of each file, so
that after a crash at any step each file is found under its name or its temporary name. As in
RocketMQ the text before is kept as `<name>.bak`; it is for people, never read here. A table that
did not change is not written again. One thread at a time, not the loop's: it waits for syncs.
"""

import os
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from node.state.checkpoint_tables import (
    CHECKPOINT_TABLES,
    decode_group_settings,
    decode_groups,
    decode_members,
    decode_producers,
    decode_topics,
    files_of,
)
from node.state.registry import TABLES, check_tables, decode_table
from node.state.state import StateImage, Versions
from node.state.tables.group_settings import GroupSettingsTable
from store.errors import CorruptionError, LayoutError
from store.files.checksum import crc32c
from store.files.failpoints import hit
from store.files.file_system import FileSystem
from store.files.meta_file import Json, MetaFile, ReadSmall, meta_problems, read_generations
from store.files.staging import TEMPORARY_SUFFIX

DIRECTORY: Final = "config"
MANIFEST: Final = "stateCheckpoint"
BACKUP_SUFFIX: Final = ".bak"
_FILE_TABLES: Final = tuple(kind for kind in TABLES if kind.file_name)


class CheckpointDamagedError(CorruptionError):
    """A file of the checkpoint is missing, or differs from what was written: damage of the disk. An
    undamaged file that this version cannot read raises a plain CorruptionError."""

    text = (
        "{path}: {field} is {actual}, expected {expected}; a log that begins with its first entry "
        "gives this state again, else replace this node, or restore a backup of another one"
    )


class _Written(NamedTuple):
    """One file as the manifest describes it."""

    version: int
    size_bytes: int
    crc: int


class History(NamedTuple):
    """The newest epoch of the log that a state has applied: its number and first byte."""

    number: int
    start: int


class CheckpointFiles:
    """The checkpoint of one node. Load it once, before it is saved."""

    def __init__(self, fs: FileSystem, root: str) -> None:
        self._fs = fs
        self.directory: Final = os.path.join(root, DIRECTORY)
        fs.make_directory(self.directory)
        self._manifest = MetaFile(fs, self.directory, MANIFEST)
        self._written: dict[str, _Written] = {}
        self._to_install: list[str] = []
        """Files of the newest generation that may still have their temporary name."""
        self.applied_index = -1
        """Last entry of the newest generation: no later one may be deleted from the log."""
        self.history: History | None = None
        """The history that the newest generation is of; None where a log has only one."""

    # --- Reading ---

    def load(self) -> StateImage | None:
        """Return the newest generation, None when nothing was ever saved; finish its renames.

        Raises CheckpointDamagedError, CorruptionError for what this version cannot read,
        FileSystemError.
        """
        try:
            manifest: dict[str, Any] | None = self._manifest.load(must_exist=False)
        except (CorruptionError, LayoutError) as error:
            what = f"{MANIFEST}.0 and .1"
            raise CheckpointDamagedError(
                self.directory, 0, what, "one manifest after the other", str(error)
            ) from error
        if manifest is None:
            return None
        try:
            image = self._image(manifest)
            history = History(*manifest["history"]) if "history" in manifest else None
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise CorruptionError(
                self.directory, 0, "checkpoint", "tables of a state", repr(error)
            ) from error
        self._install()
        self.applied_index, self.history = image.applied_index, history
        return image

    def _image(self, manifest: dict[str, Any]) -> StateImage:
        """Return the state that a manifest names. Raises CorruptionError; as `decode_topics` for a
        manifest or table of another shape."""
        files, texts = manifest["files"], dict[str, str]()
        lacking = [table.name for table in CHECKPOINT_TABLES if table.name not in files]
        if lacking:
            raise CorruptionError(
                self.directory, 0, "checkpoint", "every table", f"none of {', '.join(lacking)}"
            )
        # A table has no file if it never changed.
        names = [table.name for table in CHECKPOINT_TABLES]
        names += [kind.file_name for kind in _FILE_TABLES if kind.file_name in files]
        unknown = files.keys() - set(names)
        if unknown:  # Of a newer version; a replica without them would differ permanently.
            expected, more = "tables that this version knows", ", ".join(sorted(unknown))
            raise CorruptionError(self.directory, 0, "checkpoint", expected, more)
        for name in names:
            written = self._written[name] = _Written(*files[name])
            texts[name] = self._find(name, written)
        versions = Versions(**manifest["versions"])
        groups_text = texts["subscriptionGroup.json"]
        settings = decode_group_settings(groups_text, versions.groups)
        return StateImage(
            manifest["applied_index"],
            manifest["next_command_offset"],
            versions,
            decode_topics(texts["topics.json"]),
            decode_groups(groups_text, texts["consumerOffset.json"]),
            decode_producers(texts["producers.json"]),
            decode_members(texts["members.json"]),
            manifest["refused_count"],
            check_tables(
                {
                    kind.name: decode_table(kind, texts[kind.file_name])
                    for kind in _FILE_TABLES
                    if kind.file_name in texts
                }
                | ({GroupSettingsTable.name: settings} if settings.version else {})
            ),
        )

    def _find(self, name: str, written: _Written) -> str:
        """Return the text that the manifest describes, under its name or its temporary name."""
        data, suffix = _find(self._path(name), written, self._read)
        if suffix:
            self._to_install.append(name)
        return data.decode()

    def _read(self, path: str) -> bytes | None:
        return self._fs.read_file(path) if os.path.exists(path) else None

    # --- Writing ---

    def save(self, image: StateImage, written_unix_ms: int, history: History | None = None) -> None:
        """Replace the checkpoint; the new one is durable on return.

        Its applied index may go back only with a `history`: where a log can be cut below that
        index. Raises StoreFullError or FileSystemError: the old generation counts, try again later.
        SyncFailedError: the generation that a restart will find is unknown; stop the process.
        """
        goes_back = image.applied_index < self.applied_index
        assert history is not None or not goes_back, f"{image.applied_index} goes back"
        self._install()
        # Versions count the changes of one history: between two histories they cannot be compared.
        written_before = self._written if history == self.history else {}
        written: dict[str, _Written] = {}
        changed = []
        for name, version_of, encode in files_of(image):
            version, before = version_of(image), written_before.get(name)
            if before is not None and before.version == version:
                written[name] = before
            else:
                data = encode(image, written_unix_ms).encode()
                self._fs.write_file(self._path(name) + TEMPORARY_SUFFIX, data)
                written[name] = _Written(version, len(data), crc32c(data))
                changed.append(name)
        if changed:
            self._fs.sync_directory(self.directory)
        hit("state_checkpoint.before_manifest")
        files: Json = {name: list(row) for name, row in written.items()}
        versions: Json = dict(image.versions._asdict())
        manifest: dict[str, Json] = {
            "applied_index": image.applied_index,
            "next_command_offset": image.next_command_offset,
            "refused_count": image.refused_count,
            "versions": versions,
            "files": files,
        }
        if history is not None:
            manifest["history"] = list(history)
        self._manifest.save(manifest)
        self.applied_index, self.history = image.applied_index, history
        self._written, self._to_install = written, changed
        self._install()

    def _install(self) -> None:
        """Give the files of the newest generation their names; durable on return."""
        if not self._to_install:
            return
        for name in self._to_install:
            path = self._path(name)
            if not os.path.exists(path + TEMPORARY_SUFFIX):
                continue  # An earlier attempt got further.
            if os.path.exists(path):
                self._fs.rename(path, path + BACKUP_SUFFIX)
            hit("state_checkpoint.before_rename")
            self._fs.rename(path + TEMPORARY_SUFFIX, path)
        self._fs.sync_directory(self.directory)
        self._to_install = []

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def checkpoint_problems(read: ReadSmall) -> Iterator[CorruptionError]:
    """Yield what is wrong with the files of a checkpoint; `read` gets names below the root."""
    base = f"{DIRECTORY}/{MANIFEST}"
    generations = read_generations(base, read)
    yield from meta_problems(base, generations)
    manifest = next(
        (newest.payload for newest in reversed(generations) if not newest.problem), None
    )
    if manifest is None:
        return
    files = manifest.get("files")
    if not isinstance(files, dict):
        yield CorruptionError(f"{base}.0", 0, "files", "a table of files", repr(files)[:40])
        return
    for table, row in files.items():
        try:
            _find(f"{DIRECTORY}/{table}", _Written(*row), read)
        except CheckpointDamagedError as error:
            yield error


def _find(path: str, written: _Written, read: ReadSmall) -> tuple[bytes, str]:
    """Return (bytes that the manifest describes, "" or the suffix of their temporary name)."""
    actual = "no such file"
    for suffix in ("", TEMPORARY_SUFFIX):
        data = read(path + suffix)
        if data is None:
            continue
        if (len(data), crc32c(data)) == (written.size_bytes, written.crc):
            return data, suffix
        if not suffix:
            actual = f"{len(data)} bytes, CRC-32C {crc32c(data):08x}"
    expected = f"{written.size_bytes} bytes, CRC-32C {written.crc:08x}"
    raise CheckpointDamagedError(path, 0, "content", expected, actual)
