"""`qlog completion`: the script with which a shell completes `qlog` and `quorumlog`.

Owns the command only; the script and the protocol behind it are click's.
"""

import click
from click.shell_completion import get_completion_class

from quorumlog.command_errors import ExitCode

_NAMES = ("qlog", "quorumlog")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the completion script of a shell.

    \b
    Examples:
      eval "$(qlog completion bash)"      now; in ~/.bashrc for always
      qlog completion zsh > ~/.qlog.zsh   then source it in ~/.zshrc
      qlog completion fish > ~/.config/fish/completions/qlog.fish
    """
    from qlog import main

    kind = get_completion_class(shell)
    assert kind is not None, f"click does not know {shell}"
    for name in _NAMES:
        variable = f"_{name.upper()}_COMPLETE"
        script = kind(main, {}, name, variable)
        # Not source(): it runs the shell to ask for its version, which the script does not need.
        click.echo(script.source_template % script.source_vars())
    return ExitCode.OK
