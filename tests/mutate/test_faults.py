"""Which faults are found in a text, what they are called, and what planting one changes."""

import ast
import textwrap

import pytest

from tests.mutate.faults import OPERATORS, changes_of, faults_of, planted

SOURCE = textwrap.dedent(
    '''
    """A module."""

    LIMIT = 5

    class Gate:
        """Lets some in."""

        def enter(self, name, count=3):
            """Return whether it may."""
            if count < LIMIT and name not in self.closed:
                self.inside += count
                _log.info("enters", count=count + 1)
                return True
            if not count:
                raise ValueError(f"{name}: {count + 1}")
            assert count > 2
            return False

        def __repr__(self):
            return f"{1 + 1}"

    def pick(rows):
        return max(row for row in rows if row > 0) if rows else {"a": 1, "b": -1}

    def close(path):
        try:
            os.remove(path)
        except (OSError, ValueError):
            pass
    '''
)


def names() -> set[str]:
    return {fault.name.removeprefix("gate.py:") for fault in faults_of("gate.py", SOURCE)}


def text_with(name: str) -> str:
    return ast.unparse(planted(f"gate.py:{name}", "gate.py", SOURCE))


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("Gate.enter:bound:1", "count < LIMIT", "count <= LIMIT"),
        ("Gate.enter:operand:1", "count < LIMIT and name not in", "if name not in"),
        ("Gate.enter:operand:2", "if count < LIMIT and", "if count < LIMIT:"),
        ("Gate.enter:junction:1", "LIMIT and name", "LIMIT or name"),
        ("Gate.enter:opposite:1", "not in self.closed", "name in self.closed"),
        ("Gate.enter:drop:1", "self.inside += count", "pass"),
        ("Gate.enter:never:1", "if count < LIMIT and", "if False"),
        ("Gate.enter:drop:2", "raise ValueError", "if not count:\n            pass"),
        ("Gate.enter:flip:2", "return False", "return True"),
        ("pick:first:1", " if rows else", "return max("),
        ("pick:second:1", "max(", "return {'a'"),
        ("pick:extreme:1", "max((row", "min((row"),
        ("pick:always:1", "if row > 0", "if True"),
        ("pick:item:1", "'a': 1", "{'b': -1}"),
        ("close:uncaught:1", "except (OSError, ValueError)", "except (ValueError,)"),
        ("close:drop:1", "os.remove(path)", "try:\n        pass"),
    ],
)
def test_a_fault_changes_one_place(name: str, old: str, new: str) -> None:
    whole, changed = ast.unparse(ast.parse(SOURCE)), text_with(name)
    assert old in whole, "the case is about this text"
    assert new in changed
    assert changed != whole


def test_logs_texts_and_asserts_are_left_alone() -> None:
    """Logs, texts of errors, asserts, descriptions, docstrings, what stands outside functions."""
    every = {fault.name for fault in faults_of("gate.py", SOURCE)}
    texts = {change.before for change in changes_of("gate.py", SOURCE, every).values()}
    assert not {"5", "3", "count + 1", "count > 2", "2", "1 + 1"} & texts
    assert not any("_log" in text or "Return whether" in text for text in texts)


def test_names_outlive_changes_elsewhere() -> None:
    """They count within the function; what comes before it in the file does not matter."""
    later = SOURCE.replace("LIMIT = 5", "LIMIT = 5\n\ndef other(a):\n    return a + 1 < 2\n")
    names_later = {fault.name for fault in faults_of("gate.py", later)}
    assert {f"gate.py:{name}" for name in names()} < names_later


def test_a_name_that_went_over_to_another_place_has_another_mark() -> None:
    name = "gate.py:Gate.enter:drop:1"
    [here] = changes_of("gate.py", SOURCE, {name}).values()
    assert here == ("self.inside += count", "pass")
    condition = "        if count < LIMIT"
    earlier = SOURCE.replace(condition, f"        self.look()\n{condition}")
    answer = "            return True"
    later = SOURCE.replace(answer, f"            self.look()\n{answer}")
    assert changes_of("gate.py", later, {name})[name].mark == here.mark
    assert changes_of("gate.py", earlier, {name})[name].mark != here.mark


def test_every_fault_is_named_once_and_can_be_planted() -> None:
    names = [fault.name for fault in faults_of("gate.py", SOURCE)]
    assert len(names) == len(set(names)) >= 25
    whole = ast.unparse(ast.parse(SOURCE))
    for fault in faults_of("gate.py", SOURCE):
        assert fault.operator in OPERATORS
        tree = planted(fault.name, "gate.py", SOURCE)
        assert ast.unparse(tree) != whole, fault
        compile(tree, "gate.py", "exec")


def test_a_call_of_the_class_above_can_be_left_out() -> None:
    """Without a word of its class the new code would have a variable less, and fit nowhere."""
    source = "class Low(High):\n    def run(self):\n        super().run()\n        self.look()\n"
    tree = planted("low.py:Low.run:drop:1", "low.py", source)
    body = ast.unparse(tree).partition("self):\n")[2].split()
    assert body == ["__class__", "self.look()"]


def test_a_fault_that_is_not_there_is_an_error() -> None:
    with pytest.raises(KeyError, match="never:9"):
        planted("gate.py:Gate.enter:never:9", "gate.py", SOURCE)
