"""What way 4 reads out of the machine's apt, and what it tells its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from orbit.sandbox.debian import AptFacts, apt_configuration, pick_mirrors, program
from orbit.sandbox.errors import SandboxError

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
URIS = """\
'http://mirror.test/debian/dists/bookworm/InRelease' mirror.test_debian_dists_bookworm_InRelease 0
'http://mirror.test/debian/dists/bookworm-updates/InRelease' mirror.test_debian_dists_bookworm-updates_InRelease 0
'http://security.test/debian-security/dists/bookworm-security/InRelease' security.test_InRelease 0
'https://vendor.test/node_22.x/dists/nodistro/InRelease' vendor.test_InRelease 0
'http://mirror.test/debian/dists/bookworm/main/binary-amd64/Packages.xz' mirror.test_Packages 0
"""


def test_the_mirror_of_debian_itself_is_taken_and_not_security_or_a_vendor() -> None:
    targets = (
        "http://security.test/debian-security|Debian|Debian-Security\n"
        "https://vendor.test/apt|Vendor|Vendor\n"
        "http://mirror.test/debian|Debian|Debian\n"
        "http://mirror.test/debian|Debian|Debian\n"
    )

    assert pick_mirrors(targets, "") == ("http://mirror.test/debian",)


def test_a_machine_that_never_updated_is_asked_what_it_would_fetch() -> None:
    assert pick_mirrors("", URIS) == ("http://mirror.test/debian",)


def test_an_index_that_names_its_origin_comes_before_a_guess_from_the_path() -> None:
    assert pick_mirrors("http://pool.test/snapshot/|Debian|Debian\n", URIS) == (
        "http://pool.test/snapshot",
        "http://mirror.test/debian",
    )


def test_ubuntu_has_no_debian_mirror() -> None:
    targets = "http://archive.test/ubuntu|Ubuntu|Ubuntu\n"

    assert pick_mirrors(targets, "'http://archive.test/ubuntu/dists/x/InRelease' a 0") == ()


@pytest.mark.parametrize(
    ("facts", "obstacle"),
    [
        (AptFacts(("apt-get", "dpkg-deb"), None, "", ()), "apt-get and dpkg-deb not found: not a Debian machine"),
        (
            AptFacts((), None, "amd64", ("http://mirror.test/debian",)),
            "no debian-archive-keyring.gpg in /usr/share/keyrings; the package debian-archive-keyring has it",
        ),
        (AptFacts((), KEYRING, "amd64", ()), "apt on this machine has no Debian mirror configured"),
        (AptFacts((), KEYRING, "amd64", ("http://mirror.test/debian",)), None),
    ],
)
def test_what_is_missing_is_said_in_one_clause(facts: AptFacts, obstacle: str | None) -> None:
    assert facts.obstacle() == obstacle


def test_apt_reads_and_writes_nothing_outside_its_folder() -> None:
    configuration = apt_configuration(Path("/work-folder"), "arm64")

    directories = [line for line in configuration.splitlines() if line.startswith("Dir::")]
    assert len(directories) == 10
    for line in directories:
        assert '"/work-folder/' in line or line.endswith('"/dev/null";'), line
    assert "#clear APT::Update::Post-Invoke;" in configuration
    assert 'APT::Architecture "arm64";' in configuration


@pytest.mark.parametrize(
    ("triplet", "loader"),
    [("x86_64-linux-gnu", "ld-linux-x86-64.so.2"), ("aarch64-linux-gnu", "ld-linux-aarch64.so.1")],
)
def test_the_program_runs_under_the_loader_of_its_own_folder(tmp_path: Path, triplet: str, loader: str) -> None:
    libraries = tmp_path / "usr/lib" / triplet
    libraries.mkdir(parents=True)
    (libraries / loader).touch()

    command, options = program(tmp_path)

    assert command == (
        str(libraries / loader),
        "--library-path",
        f"{libraries}:{tmp_path / 'lib' / triplet}",
        str(tmp_path / "usr/sbin/mysqld"),
    )
    assert f"--basedir={tmp_path / 'usr'}" in options


def test_a_folder_without_a_loader_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="0 dynamic loaders"):
        program(tmp_path)
