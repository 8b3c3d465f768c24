"""The cluster of a command of the pipeline, as options of the source and the sink.

Owns the translation of `--server` and the variables of `qlog` to options. Must not know the jobs.
"""

from qlog.connection import addresses, connected, run, tls_files, token_path


def cluster_options(server: str | None) -> dict[str, str]:
    """Return the options for `--server`, else for the context, for TLS and the token.

    Raises CliError, and QuorumlogError when no node answers in the time of all commands: Spark,
    which takes seconds to start, waits longer for one.
    """
    from pipeline.options import TLS, TOKEN_FILE  # Not above: help needs no Spark.

    async def look() -> None:
        async with connected(server):
            pass

    run(look())
    named = [*zip(TLS, tls_files(server), strict=True), (TOKEN_FILE, token_path(server))]
    return {"servers": addresses(server), **{name: path for name, path in named if path}}
