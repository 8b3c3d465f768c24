"""Jobs on Spark, each with its command.

These modules import the tables of `pipeline`, the client and, for a check of histories, the
checkers of `raft.histories`; `qlog pipeline` names them as text.
"""
