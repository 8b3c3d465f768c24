"""Jobs on Spark.

These modules import the tables of `pipeline`, the client and, for a check of histories, the
rules of `checkers`. Their commands are in `pipeline.commands`.
"""
