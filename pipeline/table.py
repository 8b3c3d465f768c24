"""A table of Parquet files that grows by numbered batches, each of which is in it once.

Owns how a batch becomes visible and how small files become large ones. Must not know where rows
come from. A batch is written aside, then moved in file by file under names that carry its number; a
job that writes it again, because an earlier one died, first removes the files with the number. Only
the last batch can be unfinished, so readers see no row twice, and miss some only until the job runs
again. A merge is recorded before files change places, and finished by the next job. A job that
comes writes its name into the table; an earlier one that still runs finds it there, and ends.
"""

import json
import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from pipeline.errors import TableTakenError
from pipeline.files import PARQUET, File, Files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = ("topic", "date")
SMALL_SIZE_BYTES: Final = 32 * 1024 * 1024
MERGED_SIZE_BYTES: Final = 128 * 1024 * 1024
MERGE_COUNT_MIN: Final = 8
"""Merging fewer small files is not worth it."""

CHECKPOINT: Final = "_checkpoint"
_STAGED: Final = "_staged"
_MERGE: Final = "_merge.json"
_JOB: Final = "_job"
_NAME: Final = re.compile(r"batch-(\d+)(?:-(\d+))?-(\d+)\.parquet")


class LakeTable:
    """A table with one writer at a time and any number of readers."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        self._spark = spark
        self.files: Final = Files(spark, path)
        self.path: Final = self.files.root
        self._is_checked = False
        self._job = secrets.token_hex(8)

    def take(self) -> None:
        """Become the one writer, and finish what the one before left. Its `add` and `compact` raise
        TableTakenError from now on."""
        self.files.write(_JOB, self._job)
        self.recover()

    def _check_job(self) -> None:
        if self.files.read(_JOB) != self._job:
            raise TableTakenError(
                f"another job has begun to write {self.path}, so this one stops",
                "give each job a table of its own, or end the other one and run this one again",
            )

    @property
    def checkpoint(self) -> str:
        """Path of the stream's progress: with the table, because neither is worth anything without
        the other."""
        return f"{self.path}/{CHECKPOINT}"

    def is_begun(self) -> bool:
        """Whether a stream has recorded its start."""
        return self.files.exists(f"{CHECKPOINT}/offsets")

    def add(self, batch: int, rows: "DataFrame") -> None:
        """Add a batch, again if it was added before or in part. Raises TableTakenError."""
        staged = f"{_STAGED}/{batch}"
        rows.write.mode("overwrite").partitionBy(*PARTITIONS).parquet(f"{self.path}/{staged}")
        self._check_job()
        if not self._is_checked:  # The first batch since the start may be there already.
            self.recover()
            self._remove(batch)
            self._is_checked = True
        for number, file in enumerate(sorted(self.files.data(staged))):
            directory = file.directory.removeprefix(staged).strip("/")
            self.files.move(file.path, f"{directory}/batch-{batch}-{number}{PARQUET}")
        self.files.delete(_STAGED)

    def _remove(self, batch: int) -> None:
        for file in self.files.data():
            match = _NAME.fullmatch(file.name)
            if match is not None and match[2] is None and int(match[1]) == batch:
                self.files.delete(file.path)

    # --- Small files to large ones ---

    def compact(self, below_batch: int, is_due: Callable[[int], bool] | None = None) -> int:
        """Merge small files of batches before a number; return by how many the files decrease.

        These batches must be final: a merged batch that is added again has its rows twice. Readers
        that list the files just while a merge changes places may see rows of it twice.
        """
        self._check_job()
        self.recover()
        groups: dict[str, list[File]] = defaultdict(list)
        highest: dict[str, int] = defaultdict(int)
        for file in self.files.data():
            match = _NAME.fullmatch(file.name)
            if match is None:
                continue
            highest[file.directory] = max(highest[file.directory], int(match[3]))
            is_small = file.size_bytes < SMALL_SIZE_BYTES
            if is_small and int(match[2] or match[1]) < below_batch:
                groups[file.directory].append(file)
        is_due = is_due or (lambda count: count >= MERGE_COUNT_MIN)
        due = {where: files for where, files in groups.items() if is_due(len(files))}
        return sum(
            self._merge(where, files, highest[where] + 1) for where, files in sorted(due.items())
        )

    def _merge(self, directory: str, files: list[File], first: int) -> int:
        """Merge files into one, or a few; `first` is a number above those of the names there."""
        size_bytes = sum(file.size_bytes for file in files)
        count = max(1, round(size_bytes / MERGED_SIZE_BYTES))
        paths = [f"{self.path}/{file.path}" for file in files]
        # Files of an older table lack columns that there are now.
        files_read = self._spark.read.option("mergeSchema", "true").parquet(*paths)
        merged = files_read.coalesce(count)
        merged.write.mode("overwrite").parquet(f"{self.path}/{_STAGED}/merge")
        numbers = [number for file in files for number in _batches(file)]
        name = f"batch-{min(numbers)}-{max(numbers)}"
        made = sorted(self.files.data(f"{_STAGED}/merge"))
        moves = {
            file.path: f"{directory}/{name}-{first + n}{PARQUET}" for n, file in enumerate(made)
        }
        self._check_job()
        plan = {"moves": moves, "deletes": [file.path for file in files]}
        self.files.write(_MERGE, json.dumps(plan))
        self.recover()
        return len(files) - len(made)

    def recover(self) -> None:
        """Finish a recorded merge, if there is one."""
        text = self.files.read(_MERGE)
        if text is None:
            return
        plan = json.loads(text)
        for path in plan["deletes"]:
            self.files.delete(path)
        for path, to in plan["moves"].items():
            if self.files.exists(path):
                self.files.move(path, to)
        self.files.delete(_MERGE)
        self.files.delete(f"{_STAGED}/merge")


def read_table(spark: "SparkSession", path: str) -> "DataFrame":
    """Read a table; a topic is text, as it was written. Spark guesses the types of columns that are
    names of directories, so topic 007 would be the number 7. Raises AnalysisException."""
    from pyspark.sql.types import StringType, StructField, StructType

    fields = [
        StructField(one.name, StringType() if one.name == "topic" else one.dataType)
        for one in spark.read.parquet(path).schema.fields
    ]
    return spark.read.schema(StructType(fields)).parquet(path)


def _batches(file: File) -> Iterable[int]:
    match = _NAME.fullmatch(file.name)
    assert match is not None, f"{file.name} is none of ours"
    return (int(match[1]), int(match[2] or match[1]))
