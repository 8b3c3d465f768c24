"""Errors of a job before it starts, and of its input.

Owns the errors of sources, sink and jobs; must not know any of them. All errors pickle, since Spark
carries them from its workers.
"""

from typing import ClassVar


class PipelineError(Exception):
    """The base: `what` happened, and what to `do`."""

    code: ClassVar[str] = "pipeline.error"
    retryable: ClassVar[bool] = False
    outcome: ClassVar[str] = "not_applied"

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what, do)
        self.what, self.do = what, do

    def __str__(self) -> str:
        return f"{self.what}; {self.do}"


class OptionError(PipelineError, ValueError):
    """An option is missing, unknown or makes no sense."""

    code = "pipeline.bad_option"


class OffsetsError(PipelineError):
    """An offset to begin or to end at is outside of its queue."""

    code = "pipeline.offsets_out_of_range"


class TableTakenError(PipelineError):
    """Another job writes the table."""

    code = "pipeline.table_taken"


class DataLossError(PipelineError):
    """Records that were to be read are gone."""

    code = "pipeline.data_loss"


class BodyError(PipelineError):
    """A body cannot be unpacked: it is damaged, too large, or of an unknown way."""

    code = "pipeline.bad_body"


class RowError(PipelineError, ValueError):
    """A row cannot become a record."""

    code = "pipeline.bad_row"
