"""Who a server says it is: MySQL new enough, MySQL too old, or MariaDB."""

from __future__ import annotations

import pytest

from orbit.sandbox.versions import parse_program_version, parse_version


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8.4.3", (8, 4, 3)),
        ("9.7.4-2", (9, 7, 4)),
        ("8.4.10-0ubuntu0.25.10.1", (8, 4, 10)),
        ("8.4.3-3 Percona", (8, 4, 3)),
    ],
)
def test_a_new_enough_mysql_is_accepted(text: str, number: tuple[int, int, int]) -> None:
    version = parse_version(text)

    assert version.number == number
    assert version.refusal() is None


@pytest.mark.parametrize("text", ["8.3.0", "8.0.46-0ubuntu0.24.04.1", "5.7.44-log"])
def test_an_older_mysql_is_refused_with_the_version_that_is_needed(text: str) -> None:
    assert parse_version(text).refusal() == f"it is MySQL {text}, and 8.4 or newer is needed"


@pytest.mark.parametrize(
    "text", ["10.11.6-MariaDB-0+deb12u1", "11.8.3-MariaDB-ubu2404", "5.5.5-10.11.6-MariaDB", "12.0.2-mariadb"]
)
def test_mariadb_is_refused_by_name_although_its_number_is_higher(text: str) -> None:
    refusal = parse_version(text).refusal()

    assert refusal == f"it is MariaDB {text}, which is not MySQL: MySQL 8.4 or newer is needed"


def test_the_number_in_front_of_mariadbs_greeting_is_not_taken_for_its_version() -> None:
    assert parse_version("5.5.5-10.11.6-MariaDB").number == (10, 11, 6)


@pytest.mark.parametrize(
    ("output", "number", "mariadb"),
    [
        ("mysqld  Ver 8.4.3 for Linux on x86_64 (MySQL Community Server - GPL)\n", (8, 4, 3), False),
        ("/opt/mysql-5.7.1/bin/mysqld  Ver 9.7.4-2 for Linux on x86_64 ((Debian))\n", (9, 7, 4), False),
        ("mysqld  Ver 10.11.6-MariaDB-0+deb12u1 for debian-linux-gnu on x86_64 (Debian 12)\n", (10, 11, 6), True),
        ("mariadbd  Ver 11.8.3-MariaDB-0+deb13u1 for debian-linux-gnu on aarch64\n", (11, 8, 3), True),
    ],
)
def test_a_program_is_known_by_what_follows_ver(output: str, number: tuple[int, int, int], mariadb: bool) -> None:
    version = parse_program_version(output)

    assert (version.number, version.mariadb) == (number, mariadb)


@pytest.mark.parametrize("output", ["", "mysqld: command not found", "mysqld  Ver unknown"])
def test_output_without_a_version_is_an_error(output: str) -> None:
    with pytest.raises(ValueError, match="no"):
        parse_program_version(output)
