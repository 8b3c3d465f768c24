"""The files of a table, wherever Spark can write: a disk, a share, HDFS.

Owns listing, moving and deleting through Hadoop's file system, so that a job runs on a cluster as
it does here. Must not know what is in the files.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARQUET = ".parquet"


class File(NamedTuple):
    """A file below a root: its directory relative to it, its name, and its size."""

    directory: str
    name: str
    size_bytes: int

    @property
    def path(self) -> str:
        """Path relative to the root."""
        return f"{self.directory}/{self.name}" if self.directory else self.name


class Files:
    """The files below one root. Names that begin with `_` or `.` are not part of the table."""

    def __init__(self, spark: "SparkSession", root: str) -> None:
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._root: Any = self._jvm.org.apache.hadoop.fs.Path(root)
        jsc: Any = spark.sparkContext._jsc
        configuration: Any = jsc.hadoopConfiguration()
        self._fs: Any = self._root.getFileSystem(configuration)
        self.root: str = self._fs.makeQualified(self._root).toString()

    def data(self, below: str = "") -> Iterator[File]:
        """Yield the Parquet files below a directory, in no order."""
        path = self._path(below) if below else self._root
        if not self._fs.exists(path):
            return
        for status in self._fs.listStatus(path):
            name: str = status.getPath().getName()
            if name.startswith(("_", ".")):
                continue
            if status.isDirectory():
                yield from self.data(f"{below}/{name}" if below else name)
            elif name.endswith(PARQUET):
                yield File(below, name, status.getLen())

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return bool(self._fs.exists(self._path(path)))

    def delete(self, path: str) -> None:
        """Delete a file, or a directory with its content, if it exists. Raises OSError."""
        if not self._fs.delete(self._path(path), True) and self.exists(path):
            raise OSError(f"{path} cannot be deleted below {self.root}")

    def move(self, path: str, to: str) -> None:
        """Move a file, in one step. Raises OSError if it fails."""
        target = self._path(to)
        self._fs.mkdirs(target.getParent())
        if not self._fs.rename(self._path(path), target):
            raise OSError(f"{path} cannot be moved to {to} below {self.root}")

    def read(self, path: str) -> str | None:
        """Return the text of a small file; None if it does not exist."""
        if not self.exists(path):
            return None
        stream = self._fs.open(self._path(path))
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def write(self, path: str, text: str) -> None:
        """Write a small text file that appears whole or not at all."""
        made = f"{path}.made"
        stream = self._fs.create(self._path(made), True)
        try:
            stream.write(bytearray(text.encode()))
            stream.hsync()
        finally:
            stream.close()
        self.delete(path)
        self.move(made, path)

    def _path(self, path: str) -> Any:
        # Two arguments: a path alone would be parsed, and `%` and `:` would have a meaning.
        return self._jvm.org.apache.hadoop.fs.Path(self._root, path)
