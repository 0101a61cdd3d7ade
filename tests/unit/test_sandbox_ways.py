"""Which way to a real MySQL is taken, decided on facts."""

from __future__ import annotations

from orbit.sandbox.ways import DSN_VARIABLE, Finding, Plan, Way, plan, report

YES = Finding(usable=True, says="it is there")


def no(says: str) -> Finding:
    return Finding(usable=False, says=says)


def test_ways_are_tried_in_the_order_of_the_design() -> None:
    findings = {Way.DEBIAN: YES, Way.PATH: YES, Way.DOCKER: YES, Way.ENVIRONMENT: no("not set")}

    assert plan(findings).candidates == (Way.DOCKER, Way.PATH, Way.DEBIAN)


def test_a_dsn_in_the_environment_is_the_only_candidate() -> None:
    findings = {Way.ENVIRONMENT: YES, Way.DOCKER: YES, Way.PATH: YES, Way.DEBIAN: YES}

    assert plan(findings) == Plan((Way.ENVIRONMENT,), {})


def test_without_docker_the_mysqld_on_path_comes_before_a_download() -> None:
    findings = {Way.ENVIRONMENT: no("not set"), Way.DOCKER: no("no engine"), Way.PATH: YES, Way.DEBIAN: YES}

    assert plan(findings).candidates == (Way.PATH, Way.DEBIAN)


def test_mariadb_on_path_is_passed_over_and_its_reason_is_kept() -> None:
    findings = {Way.DOCKER: no("no engine"), Way.PATH: no("it is MariaDB"), Way.DEBIAN: YES}

    assert plan(findings) == Plan((Way.DEBIAN,), {Way.DOCKER: "no engine", Way.PATH: "it is MariaDB"})


def test_nothing_usable_leaves_no_candidate() -> None:
    findings = dict.fromkeys(Way, no("no"))

    assert plan(findings).candidates == ()


def test_the_report_names_all_four_ways_in_order_and_what_each_said() -> None:
    said = {Way.DEBIAN: "no apt", Way.PATH: "there is none", Way.DOCKER: "no engine", Way.ENVIRONMENT: "not set"}

    assert report(said).splitlines() == [
        "no way to a real MySQL worked",
        f"  way 1, the server of {DSN_VARIABLE}: not set",
        "  way 2, a container by the Docker engine: no engine",
        "  way 3, the mysqld on PATH: there is none",
        "  way 4, Debian's mysql-server-core downloaded by apt: no apt",
    ]
