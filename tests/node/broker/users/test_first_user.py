"""The leader resets the admin once a majority of the voters shows the same file, and not before."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from node.broker.users import first_user
from node.broker.users.first_user import AdminReset, FirstUser
from node.config.users import read_first_user, reset_id_of
from node.state.tables.users import UsersTable, to_pb
from quorumlog.pb.state_pb2 import Command
from quorumlog.user_tokens import first_user_text
from tests.node.broker_fakes import Fixture
from tests.patience import eventually


async def test_one_voter_of_three_resets_nothing(
    node: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_user, "_AGAIN_S", 0.001)
    path = tmp_path / "reset-admin.json"
    path.write_text(first_user_text("admin", b"t" * 32))
    user, asked = read_first_user(path).SerializeToString(), list[int]()
    other = user.replace(b"t" * 32, b"u" * 32)
    shown = {1: user, 2: other, 4: user, 5: user}

    def shown_by(voter: int) -> bytes:
        asked.append(voter)
        return shown.get(voter, b"")

    own, table = node.broker.own_appends, node.broker.context.state.table(UsersTable)
    reset = AdminReset(node.broker.context, own, path, user, lambda: (1, 2, 3), shown_by)
    made = list[tuple[str, Command.PutUser]]()
    reset.on_made = lambda work, put: made.append((work, put))
    count = node.driver.append_count
    node.broker.add_leader_work(reset)
    await eventually(lambda: asked.count(3) > 2)
    assert (node.driver.append_count, path.exists()) == (count, True)
    shown[2] = user
    await eventually(lambda: not path.exists(), "the reset")
    assert table.reset_ids == (reset_id_of(user),)
    await eventually(lambda: made, "a row of the audit")
    assert (made[0][0], made[0][1].reset_id) == ("AdminReset", reset_id_of(user))
    assert table.users.by_token[b"t" * 32].user == "admin"
    shown.update({1: b"", 2: other, 3: other})
    await eventually(lambda: b"u" * 32 in table.users.by_token, "one that this node lacks")
    path.touch()
    with capture_logs() as lines:
        AdminReset(node.broker.context, own, path, user, lambda: (), shown_by)
    assert "the admin stays" in lines[0]["event"]
    assert not path.exists()
    assert b"u" * 32 in table.users.by_token


async def test_a_file_of_another_first_user_is_warned_of(
    node: Fixture, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context, own = node.broker.context, node.broker.own_appends
    path = tmp_path / "first.json"
    for digest, is_other in ((b"t" * 32, False), (b"u" * 32, True)):
        path.write_text(first_user_text("admin", digest))
        first = FirstUser(context, own, read_first_user(path))
        first.on_ready(True)
        first.begin()
        await eventually(lambda: context.state.table(UsersTable).has_begun, "the first user")
        first.on_ready(True)
        assert ("users_file has no effect" in caplog.text) is is_other
    caplog.clear()
    table = context.state.table(UsersTable)
    admin = to_pb(table.users.users["admin"])
    admin.revision, admin.credentials[0].token_sha256 = 2, b"v" * 32
    await own.submit(Command(put_user=Command.PutUser(user=admin)))
    first.on_ready(True)
    assert "no effect" not in caplog.text, "the token was renewed: the file may stay"
