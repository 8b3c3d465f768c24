"""The generated code is what proto/ says."""

from deploy.generate_pb import is_current


def test_generated_code_is_current() -> None:
    """`python -m deploy.generate_pb` would change nothing."""
    assert is_current(), "run python -m deploy.generate_pb and commit quorumlog/pb"
