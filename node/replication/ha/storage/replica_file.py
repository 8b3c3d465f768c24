"""The owner of a directory: cluster, group, replica, and the numbers that make the fence.

Owns the meta file `haReplica`; must not know the replica's promises (`epoch_file`). The replicas
and the number of copies decide which replicas a fence has to meet (fault-matrix C3), so they are
the same for the life of a group: a change is a step of its own, which is not offered.
"""

from node.replication.ha.core.types import HaError, HaSettings
from node.runtime.identity import check_identity
from store.errors import LayoutError
from store.files.file_system import FileSystem
from store.files.meta_file import Json, MetaFile
from store.opening import SHIPPED_META_NAME


class GroupChangedError(HaError):
    """The group was founded with other replicas or another number of copies. Nothing changed."""

    code, status = "ha.group_changed", "FAILED_PRECONDITION"
    text = (
        "the group was founded with {what} {recorded}, configured are {configured}; put the old "
        "value back: changing it takes a fenced step, which is not offered"
    )
    what: str
    configured: str
    recorded: str


def open_replica_file(
    fs: FileSystem,
    directory: str,
    *,
    cluster_id: str,
    node_id: int,
    group: HaSettings,
    must_exist: bool,
) -> None:
    """Compare the file with the configuration of the replica, or make it; durable on return.

    Raises IdentityMismatchError, GroupChangedError; LayoutError or CorruptionError as `MetaFile`.
    """
    file = MetaFile(fs, directory, SHIPPED_META_NAME)
    own: dict[str, Json] = {
        "cluster": cluster_id,
        "group": group.group,
        "node": node_id,
        "replicas": list(group.replica_ids),
        "copies": group.copies,
    }
    payload = file.load(must_exist=must_exist)
    if payload is None:
        file.save(own)
        return
    if payload.keys() != own.keys():
        raise LayoutError(f"{directory}/{SHIPPED_META_NAME}", ", ".join(own), ", ".join(payload))
    check_identity(directory, {name: own[name] for name in ("cluster", "group", "node")}, payload)
    for name in ("replicas", "copies"):
        if own[name] != payload[name]:
            raise GroupChangedError(name, str(own[name]), str(payload[name]))


def read_replica_file(fs: FileSystem, directory: str) -> tuple[str, int, tuple[int, ...]]:
    """Return the cluster, the node and all replicas of its group, from the file of a stopped node.

    Raises LayoutError or CorruptionError as `MetaFile`."""
    payload = MetaFile(fs, directory, SHIPPED_META_NAME).load(must_exist=True)
    match payload:
        case {"cluster": str(cluster), "node": int(node), "replicas": list(replicas)}:
            return cluster, node, tuple(one for one in replicas if isinstance(one, int))
    found = ", ".join(payload or ())
    raise LayoutError(f"{directory}/{SHIPPED_META_NAME}", "cluster, node and replicas", found)
