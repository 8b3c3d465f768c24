"""`qlog pipeline` in this process, in the Spark that `conftest` starts."""

import json
from typing import Any

from click.testing import CliRunner, Result

from qlog import main


class Run:
    """Calls `qlog pipeline`."""

    def __call__(self, *arguments: str) -> Result:
        return CliRunner().invoke(main, ["pipeline", *arguments])

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The result as JSON; the exit code must be `code`."""
        done = self(*arguments, "-o", "json")
        assert done.exit_code == code, (done.exit_code, done.stdout, done.stderr)
        return json.loads(done.stdout)
