"""A majority of all voters decides, and nothing less."""

import pytest

from node.replication.raft.digests.checks import Reports
from node.state.digest import FORM, Digest

A = Digest(7, FORM, (("topics", b"a" * 16),))
B = Digest(7, FORM, (("topics", b"b" * 16),))
C = Digest(7, FORM, (("topics", b"c" * 16),))
LATER = Digest(9, FORM, (("topics", b"a" * 16),))


def reports(**found: Digest) -> Reports:
    made = Reports()
    for name, digest in found.items():
        made.add(int(name[1:]), digest)
    return made


@pytest.mark.parametrize(
    ("found", "voters", "expected"),
    [
        ({"n1": A, "n2": A, "n3": B}, (1, 2, 3), A),
        ({"n1": B, "n2": A, "n3": A}, (1, 2, 3), A),
        ({"n1": A, "n2": A}, (1, 2, 3), A),
        ({"n1": A}, (1, 2, 3), None),
        ({"n1": A, "n2": B}, (1, 2, 3), None),
        ({"n1": A, "n2": B, "n3": C}, (1, 2, 3), None),
        ({"n1": A, "n2": B}, (1, 2), None),
        ({"n1": A, "n2": A}, (1, 2), A),
        ({"n1": A}, (1,), A),
        ({"n1": A, "n2": A, "n3": B, "n4": B}, (1, 2, 3, 4), None),
        ({"n1": A, "n8": B, "n9": B}, (1, 2, 3), None),
        ({"n1": A, "n2": A, "n8": B, "n9": B}, (1, 2, 3), A),
        ({"n1": A, "n2": A._replace(form=A.form + 1)}, (1, 2, 3), None),
        ({"n1": A, "n2": LATER, "n3": LATER}, (1, 2, 3), None),
        ({}, (1, 2, 3), None),
    ],
)
def test_majority_is_one_of_all_voters(
    found: dict[str, Digest], voters: tuple[int, ...], expected: Digest | None
) -> None:
    assert reports(**found).majority(7, voters) == expected


def test_newest_report_of_a_node_counts() -> None:
    made = reports(n1=LATER)
    made.add(1, A)
    assert made.at(9) == {1: LATER}
    assert made.at(7) == {}
    made.add(1, LATER._replace(tables=()))
    assert made.at(9) == {1: LATER._replace(tables=())}


def test_nodes_that_are_no_members_any_more_are_forgotten() -> None:
    made = reports(n1=A, n2=A, n3=A)
    made.keep((1, 3))
    assert set(made.at(7)) == {1, 3}
