"""Meanings of the codes that have no class of their own where `qlog explain` looks for one.

Owns the codes that a client gives an error of a wider family, and those of commands and of the
start of a node: their classes are in programs that a client need not have. A test compares them
with the sources.
"""

from typing import Final

MEANINGS: Final[dict[str, str]] = {
    "bench.catch_up": "A node that was away did not become level.",
    "bench.not_back": "The cluster missed a deadline of the measurement.",
    "bench.other_run": "The directory holds a run of another plan.",
    "bench.run_under_way": "Another process adds sessions to the journal.",
    "chaos.cannot": "A run cannot be made as asked.",
    "client.bad_frame": "A node or a proxy sent bytes that are no frame.",
    "client.bad_polling": "The program chose an engine of gRPC that cannot serve the client.",
    "client.bad_strategy": "The strategy of a consumer raised an error, or gave no queues.",
    "client.bad_topic": "The name of a topic has characters or a length that the log cannot keep.",
    "client.blocking_call": "A call that blocks was made on the thread that has to answer it.",
    "client.forked": "A client of the parent process was used after a fork.",
    "client.framed_port_of_other_node": "The framed port of a node belongs to another node.",
    "client.internal": "A defect of the client: the message was not sent.",
    "client.no_descriptors": "The process has too few file descriptors left to connect.",
    "client.no_framed_port": "The node has no framed port.",
    "client.no_package": "A Python package that the call needs is not installed.",
    "client.offsets_file": "The file of a consumer's offsets cannot be written.",
    "client.offsets_in_use": "Another consumer stores its offsets in the same file.",
    "client.other_group": "The queues of one transaction are of two broker groups.",
    "config.invalid": "Settings are unusable; nothing was started.",
    "ha.binding_refused": "The replica's binding forbids this one. Nothing changed.",
    "ha.busy": "Too many appends wait for copies. Nothing was appended; try again after a pause.",
    "ha.checksum": "Bytes changed on the way. Nothing was changed; the peer dials again.",
    "ha.epoch_jump": "A peer showed an epoch that no promotions explain. It was refused.",
    "ha.frame": "The peer sent bytes that are no frame. Nothing was changed.",
    "ha.group_changed": "The group was founded with other replicas or another number of copies.",
    "ha.image_needed": "The empty log cannot begin at these bytes without an image of the sender.",
    "ha.loss_file": "The file of losses is not in the form of this version. No record is in it.",
    "ha.protocol": "A peer's message is impossible. Nothing was changed; the link is closed.",
    "node.bad_frame": "Bytes that are no frame of this link. The link drops the connection.",
    "node.fetch_failed": "A peer did not give the requested entries. Another one may.",
    "node.identity_mismatch": "The directory belongs to another node or another cluster.",
    "node.none": "No node has the message. It may have expired.",
    "node.port_taken": "An address cannot be listened on. No service was started.",
    "node.reset_refused": "The admin is not reset. No directory was changed.",
    "node.restore_refused": "A backup was not restored. It is unchanged.",
    "node.snapshot_format": "Bytes that claim to be a snapshot are not one. Nothing was changed.",
    "node.strange_file": "A directory to be copied holds what is neither a file nor a directory.",
    "node.sync_hangs": "A sync does not end, so the node cannot tell what is durable, and ends.",
    "node.term_end": "The term on the disk is the last of its range: no node can be elected.",
    "node.tls_file": "A TLS file cannot be used. The node does not start.",
    "pipeline.bad_body": "A body cannot be unpacked: it is damaged, large, or packed otherwise.",
    "pipeline.bad_history": "A history cannot be read. The check did not begin, or was broken off.",
    "pipeline.bad_option": "An option is missing, unknown or makes no sense.",
    "pipeline.bad_row": "A row cannot become a record.",
    "pipeline.data_loss": "Records that were to be read are gone.",
    "pipeline.job_failed": "A task of Spark failed. The job's own page says what was done by then.",
    "pipeline.no_spark": "Spark, or the Java that it runs on, is not installed or does not start.",
    "pipeline.offsets_out_of_range": "An offset to begin or to end at is outside of its queue.",
    "pipeline.table_taken": "Another job writes the table.",
    "store.loss_refused": "A repair would drop records once acknowledged. No byte changed.",
    "store.stale_plan": "A repair plan was made for other bytes than those in the file.",
}

_RETRYABLE: Final = {
    *("bench.run_under_way", "client.no_descriptors", "ha.busy"),
    *("node.fetch_failed", "node.port_taken"),
}


def own_codes() -> dict[str, tuple[str, str, str, str]]:
    """Return status (empty), retry, outcome and meaning of the codes that no node's call has."""
    from quorumlog import errors
    from quorumlog.local_cluster import CAUSES

    causes = {code: f"{cause[:1].upper()}{cause[1:]}." for code, cause in CAUSES.items()}
    rows = {
        code: ("", "yes" if code in _RETRYABLE else "no", "not applied", meaning)
        for code, meaning in {**MEANINGS, **causes}.items()
    }
    rows["client.bad_frame"] = ("", "no", "unknown", MEANINGS["client.bad_frame"])
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.QuorumlogError):
            outcome = kind.outcome.value.replace("_", " ")
            meaning = " ".join((kind.__doc__ or "").split())
            rows[kind.code] = ("", "yes" if kind.retryable else "no", outcome, meaning)
    return rows
