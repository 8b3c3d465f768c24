"""What nodes did to their messages is known at any moment, also while they write it down."""

from pathlib import Path

from chaos.interceptor import Interceptor


def test_a_count_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "link-faults.json"
    path.with_name("link-faults.json.1").write_text('{"dropped": 3}', "utf-8")
    path.with_name("link-faults.json.12").write_text('{"dropped": 4, "late": 1}', "utf-8")
    path.with_name("link-faults.json.1.tmp").write_text('{"dropp', "utf-8")
    assert Interceptor(path).counts() == {"dropped": 7, "late": 1}
