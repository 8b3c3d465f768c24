"""The owner of a directory: the check that a node is not started on the directory of another one.

Owns the check of identities, in both modes; must not know where they are kept.
"""

from collections.abc import Mapping

from node.errors.common import NodeError


class IdentityMismatchError(NodeError):
    """The directory belongs to another node or another cluster. The directory is unchanged."""

    code, status = "node.identity_mismatch", "FAILED_PRECONDITION"
    text = (
        "{directory} belongs to {what} {recorded!r}, this node is configured as {configured!r}; "
        "correct the configuration, or use an empty directory"
    )
    directory: str
    what: str
    configured: str
    recorded: str


def check_identity(
    directory: str, configured: Mapping[str, object], recorded: Mapping[str, object]
) -> None:
    """Compare the configured identity with that of the directory, value by value.

    Raises IdentityMismatchError.
    """
    for what, value in configured.items():
        if value != recorded[what]:
            raise IdentityMismatchError(directory, what, str(value), str(recorded[what]))
