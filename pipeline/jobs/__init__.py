"""Jobs on Spark.

These modules import the tables of `pipeline`, the client and, for a check of histories, the
checkers of `raft.histories`. Their commands are in `qlog.pipeline`.
"""
