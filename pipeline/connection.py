"""A blocking client of the SDK that also submits calls now and takes their results later.

Owns the translation of a cluster's options; the thread is that of `quorumlog.sync`. A connection is
made where it is used, in a task of Spark or in the planning process, and never pickled.
"""

import quorumlog
from pipeline.errors import OptionError
from pipeline.options import TLS, TOKEN_FILE, ClusterAddress
from quorumlog.sync import Client
from quorumlog.sync.loop_thread import loop_thread
from quorumlog.user_files import UserFileError, read_user_text


class Connection(Client):
    """A started client. Use it in a `with`, or close it."""

    def __init__(self, cluster: ClusterAddress) -> None:
        """Connect. Raises OptionError for a file that cannot be read, and QuorumlogError."""
        try:
            credentials = cluster.tls.credentials()
        except OSError as error:
            raise OptionError(
                f"{error.filename} cannot be read: {error.strerror}",
                f"files of {', '.join(TLS)} have to be on each machine where Spark runs a task",
            ) from error
        self.client = quorumlog.connect(
            cluster.servers,
            cluster_id=cluster.cluster_id,
            timeout_ms=cluster.timeout_ms,
            credentials=credentials,
            token=_token(cluster.token_file),
        )
        super().__init__(self.client)
        self.start()

    submit = staticmethod(loop_thread.submit)
    call = staticmethod(loop_thread.call)


def _token(path: str) -> str:
    try:
        return read_user_text(path).strip() if path else ""
    except UserFileError as error:
        what = f"option {TOKEN_FILE!r} is {path!r}: {error.what}"
        do = "the file has to be on each machine where Spark runs a task"
        raise OptionError(what, do) from error
