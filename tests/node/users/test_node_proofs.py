"""What nodes show each other at the ports for clients: worth nothing to who overhears it."""

import pytest

from node.users.node_proofs import WINDOW_MS, BadProofError, NodeProofs, SignedBy

SECRET, OTHER = b"secret of a cluster", b"secret of another"
NAMED = (("x-mq-client-id", "c"), ("x-quorumlog-user", "shop"), ("user-agent", "any"))
METHOD = "MessagingService/SendMessage"


class World:
    """One clock and two nodes; the second one is called."""

    def __init__(self, *secrets: bytes) -> None:
        self.now_ms = 1_000_000
        self.secrets = secrets
        self.one, self.two = self.node(1, b"token 1"), self.node(2, b"token 2")

    def node(self, node_id: int, token: bytes) -> NodeProofs:
        made = NodeProofs("c", node_id, lambda: self.now_ms, token)
        made.secrets = self.secrets
        return made

    def shown(self, token: bytes = b"token 2", body: bytes = b"x") -> dict[str, str]:
        return dict(self.one.signed(token, METHOD, body, NAMED))


@pytest.mark.parametrize("secrets", [(), (SECRET,), (SECRET, OTHER)])
def test_a_call_is_taken_once_and_no_part_of_it_is_another_one(secrets: tuple[bytes, ...]) -> None:
    world = World(*secrets)
    shown = world.shown()
    for method, body, changed in (
        ("MessagingService/EndTransaction", b"x", {}),
        (METHOD, b"y", {}),
        *((METHOD, b"x", {name: "hers"}) for name in ("x-mq-client-id", "x-quorumlog-user")),
        (METHOD, b"x", {"x-quorumlog-client": "10.0.0.1:1"}),
        (METHOD, b"x", {"authorization": "MQv2"}),
        (METHOD, b"x", {"x-quorumlog-node": "2" + shown["x-quorumlog-node"][1:]}),
        (METHOD, b"x", {"x-quorumlog-node": ""}),
    ):
        with pytest.raises(BadProofError):
            world.two.signer(method, body, shown | changed)
    restarted = world.node(2, b"token of the new process")
    for elsewhere in (world.node(3, b"token 3"), restarted):
        with pytest.raises(BadProofError, match="another call, secret or process"):
            elsewhere.signer(METHOD, b"x", shown)
    assert world.two.signer(METHOD, b"x", shown) == SignedBy(1, is_peer=True)
    with pytest.raises(BadProofError, match="shown before"):
        world.two.signer(METHOD, b"x", shown)


def test_a_call_is_good_for_the_window_and_not_before_the_start_of_the_process() -> None:
    world = World(SECRET)
    shown = world.shown(b"")
    world.now_ms += WINDOW_MS
    assert not world.two.signer(METHOD, b"x", world.shown(b"")).is_peer
    with pytest.raises(BadProofError, match="by the clock"):
        world.node(2, b"").signer(METHOD, b"x", shown)
    world.two.signer(METHOD, b"x", shown)
    world.now_ms += 1
    for late in (shown, world.shown() | {"x-quorumlog-node": shown["x-quorumlog-node"]}):
        with pytest.raises(BadProofError, match="by the clock"):
            world.two.signer(METHOD, b"x", late)


def test_calls_that_overtake_each_other_are_taken_and_the_memory_is_bounded() -> None:
    world = World(SECRET)
    calls = [world.shown() for _ in range(200)]
    for call in calls[::-2] + calls[::2]:
        world.two.signer(METHOD, b"x", call)
    for call in calls:
        with pytest.raises(BadProofError, match="shown before"):
            world.two.signer(METHOD, b"x", call)

    def show_another() -> None:
        call = dict(world.node(3, b"").signed(b"", METHOD, b"x"))
        world.two.signer(METHOD, b"x", call)

    for _ in range(1_023):
        show_another()
    with pytest.raises(BadProofError, match="too many"):
        show_another()
    world.now_ms += WINDOW_MS + 1
    show_another()
    assert len(world.two._seen) == 1


def test_without_secret_and_token_nothing_is_signed_and_nothing_believed() -> None:
    world = World()
    assert world.one.signed(b"", METHOD, b"x", NAMED) == NAMED
    nameserver = world.node(1, b"")
    with pytest.raises(BadProofError):
        nameserver.signer(METHOD, b"x", world.shown())
    assert not nameserver.is_answer(b"", b"challenge")
