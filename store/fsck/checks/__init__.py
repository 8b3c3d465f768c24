"""The checks of a store directory, one file a subject.

Log, records, queues, index, small files. These modules import the files and the layout that fsck
reads and judge nothing beyond their subject; `store.fsck.check` and the plan import them, and raft
replication and the pipeline single ones.
"""
