"""`qlog serve`: run one node.

Owns the options; settings are `node.config.load`'s, the process's life is `node.lifecycle`'s.
"""

import gc
import sys
from typing import Any

import click

from node.config.load import ConfigError, load
from node.runtime.fail_stop import EXIT_BAD_CONFIG
from qlog import paused_collector
from qlog.server.settings import as_cli_error, settings_options
from quorumlog.standard_output import styled


@click.command()
@click.option("--config", "file", metavar="FILE", help="Settings in TOML.")
@settings_options
def serve(file: str | None, **flags: Any) -> int:
    """Run one node, until it gets SIGTERM, SIGINT or SIGHUP.

    A setting is taken from its option, else from its variable (QUORUMLOG_NODE_ID for --node-id),
    else from the file, else it has its default. docs/configuration.md explains them all. Log lines
    go to stderr: for people on a terminal, JSON elsewhere. The first signal hands leadership over
    and finishes what runs, a second one does not wait for it. DIRECTORY/node.json says where the
    node listens.

    \b
    Examples:
      qlog serve --node-id 1 --directory data
      qlog serve --config node.toml --flush async

    Ends with 0 when it was told to stop, and with a code of docs/operations.md otherwise.
    """
    try:
        settings = load(file, flags).settings
    except ConfigError as error:
        click.echo(str(as_cli_error(error)), err=True)
        return EXIT_BAD_CONFIG
    with paused_collector():
        from node.lifecycle import run

        # Else the collector would look through all these objects as soon as it goes on.
        gc.freeze()
    sys.stderr = styled(sys.stderr)  # The log has its own escapes, and colours.
    return run(settings)
