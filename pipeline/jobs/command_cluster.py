"""Which cluster a command of the pipeline means, as options of the source and the sink.

Owns the way from `--server` and the variables of `qlog` to options. Must not know the jobs.
"""

from quorumlog.cli.connection import addresses, tls_files


def cluster_options(server: str | None) -> dict[str, str]:
    """Return the options that `--server` and the variables for TLS stand for. Raises CliError."""
    from pipeline.options import TLS  # Not above: help needs no Spark.

    named = zip(TLS, tls_files(), strict=True)
    return {"servers": addresses(server), **{name: path for name, path in named if path}}
