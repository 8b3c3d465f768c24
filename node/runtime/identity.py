"""The owner of a directory: the check that a node is not started on the directory of another one.

Owns the check of identities, in both modes; must not know where they are kept.
"""

from collections.abc import Mapping

from node.errors.common import NodeError


class IdentityMismatchError(NodeError):
    """The directory belongs to another node or another cluster. The directory is unchanged."""

    code, status = "node.identity_mismatch", "FAILED_PRECONDITION"

    def __init__(self, directory: str, what: str, configured: str, recorded: str) -> None:
        super().__init__(directory, what, configured, recorded)
        self.directory, self.what = directory, what
        self.configured, self.recorded = configured, recorded

    def __str__(self) -> str:
        return (
            f"{self.directory} belongs to {self.what} {self.recorded!r}, this node is configured "
            f"as {self.configured!r}; correct the configuration, or use an empty directory"
        )


def check_identity(
    directory: str, configured: Mapping[str, object], recorded: Mapping[str, object]
) -> None:
    """Compare the configured identity with that of the directory, value by value.

    Raises IdentityMismatchError.
    """
    for what, value in configured.items():
        if value != recorded[what]:
            raise IdentityMismatchError(directory, what, str(value), str(recorded[what]))
