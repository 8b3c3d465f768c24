"""No traces of a machine in any text, every link resolves, and planted violations are found."""

import pytest

from tests.tidy import checks, repository

FILES = {"README.md", "docs/cli.md", "docs/decisions/one.md", "store/store.py"}


def test_no_text_names_a_machine_or_a_registry() -> None:
    findings = []
    for name in repository.files():
        text = repository.text(name)
        if text is not None:
            findings += [str(finding) for finding in checks.machine_traces(name, text)]
    assert not findings, "\n".join(["", *findings])


def test_links_between_documents_resolve() -> None:
    findings: list[checks.Finding] = []
    for name in repository.files():
        if name.endswith(".md"):
            text = repository.text(name) or ""
            findings += checks.broken_links(name, text, repository.files())
    assert not findings, "\n".join(["", *map(str, findings)])


# In halves, or this file would be found itself.
@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("machine-path", "cd /" + "home/alice/quorumlog"),
        ("machine-path", '"/' + 'root/store"'),
        ("machine-path", "(/" + "work/main)"),
        ("machine-path", "/" + "Users/bob/x"),
        ("registry", "see pypi" + ".org/project/click"),
        ("registry", "https://files.pythonhosted" + ".org/x.whl"),
        ("registry", "-i https:" + "//mirror.example/simple"),
        ("registry", "-" + "-index-url x"),
        ("registry", "-" + "-extra-index-url x"),
        ("registry", "-" + "-find-links x"),
        ("registry", "-" + "-trusted-host x"),
    ],
)
def test_a_planted_trace_is_found(rule: str, text: str) -> None:
    findings = list(checks.machine_traces("a.txt", f"fine\n{text}\n"))
    assert [(finding.rule, finding.line) for finding in findings] == [(rule, 2)]


@pytest.mark.parametrize(
    "text",
    [
        "store/" + "work/x",
        "$HOME/" + "work/x",
        "./" + "root/x",
        "/var/lib/quorumlog",
        "--no-emit-index-url",
    ],
)
def test_other_paths_are_no_traces(text: str) -> None:
    assert list(checks.machine_traces("a.txt", text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "[a](missing.md)",
        "![a](docs/missing.png 'title')",
        "[a](../README.md)",
        "[a](docs/cli.md) and [b](<docs/no.md#part>)",
        "[a]: missing.md",
        "```\ncode\n```\n[a](/missing)",
    ],
)
def test_a_planted_broken_link_is_found(text: str) -> None:
    assert [f.rule for f in checks.broken_links("README.md", text, FILES)] == ["broken-link"]


@pytest.mark.parametrize(
    "text",
    [
        "[a](cli.md) [b](cli.md#verify) [c](decisions/) [d](../README.md) [e](/store/store.py)",
        "[a](https://example.org/x) [b](mailto:a@b) [c](#part) [d](..)",
        "```\n[a](missing.md)\n```",
        "`[a](missing.md)`",
        "[a]: decisions/one.md",
    ],
)
def test_links_that_resolve_are_not_found(text: str) -> None:
    assert list(checks.broken_links("docs/cli.md", text, FILES)) == []
