"""Way 4: Debian's own mysql-server-core with all its libraries, in a folder of the project.

Stable Debian carries only MariaDB; the unstable suite carries MySQL. apt downloads it with a private state (own
sources, lists, cache and an empty dpkg status), so nothing of the system is read or changed, no root is needed, and
apt checks the signatures against Debian's archive keyring. The program runs under the folder's own loader, because
its libraries are newer than the machine's. The host is the mirror that the machine's own apt already uses.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orbit.sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from orbit.sandbox.cache import Cache

FOLDER = "programs/debian"
PACKAGE = "mysql-server-core"
SUITE = "sid"
DOWNLOAD_DEADLINE_S = 900.0
# Debian's archive key as the package debian-archive-keyring installs it; newer releases name it .pgp.
_KEYRINGS = ("debian-archive-keyring.pgp", "debian-archive-keyring.gpg")
_KEYRING_FOLDER = Path("/usr/share/keyrings")
_UPDATE_URI = re.compile(r"'([a-z+]+://[^']+?)/dists/[^']+/InRelease'")
_INDEX_FORMAT = "$(SITE)|$(ORIGIN)|$(LABEL)"


@dataclass(frozen=True, slots=True)
class AptFacts:
    """What way 4 needs of the machine. `mirrors` in the order to try."""

    missing_programs: tuple[str, ...]
    keyring: Path | None
    architecture: str
    mirrors: tuple[str, ...]

    def obstacle(self) -> str | None:
        """Why this way cannot be gone here, as a clause; None when it can be tried."""
        if self.missing_programs:
            return f"{' and '.join(self.missing_programs)} not found: not a Debian machine"
        if self.keyring is None:
            return f"no {_KEYRINGS[1]} in {_KEYRING_FOLDER}; the package debian-archive-keyring has it"
        if not self.mirrors:
            return "apt on this machine has no Debian mirror configured"
        return None


def read_facts(environ: Mapping[str, str]) -> AptFacts:
    """Look at the machine's apt; downloads nothing."""
    places = environ.get("PATH", os.defpath)
    missing = tuple(name for name in ("apt-get", "dpkg", "dpkg-deb") if shutil.which(name, path=places) is None)
    if missing:
        return AptFacts(missing, None, "", ())
    keyring = next((path for name in _KEYRINGS if (path := _KEYRING_FOLDER / name).is_file()), None)
    mirrors = pick_mirrors(
        _output(["apt-get", "indextargets", "--format", _INDEX_FORMAT]),
        _output(["apt-get", "--print-uris", "update"]),
    )
    return AptFacts((), keyring, _output(["dpkg", "--print-architecture"]).strip(), mirrors)


def pick_mirrors(index_targets: str, update_uris: str) -> tuple[str, ...]:
    """The machine's Debian mirrors, best first, without duplicates.

    `index_targets`: lines `site|origin|label` of apt's downloaded indexes; empty on a machine that never ran
    `apt-get update`, as in a fresh container. `update_uris`: what `apt-get --print-uris update` says it would fetch;
    there always, but without an origin: a Debian mirror serves the archive below a path that ends in /debian.
    """
    known = [line.split("|") for line in index_targets.splitlines() if line.count("|") == 2]
    sites = [site for site, origin, label in known if origin == label == "Debian"]
    sites += [site for site in _UPDATE_URI.findall(update_uris) if site.endswith("/debian")]
    return tuple(dict.fromkeys(site.rstrip("/") for site in sites))


def fetch(cache: Cache, environ: Mapping[str, str], on_progress: Callable[[str], None]) -> Path:
    """The folder with the program; downloaded when it is not there yet. SandboxError when that does not work."""
    return cache.keep(FOLDER, lambda folder: install(folder, read_facts(environ), on_progress))


def install(folder: Path, facts: AptFacts, on_progress: Callable[[str], None]) -> None:
    """Fill an empty folder with the program and its libraries; SandboxError when no mirror gives it."""
    obstacle = facts.obstacle()
    if obstacle is not None or facts.keyring is None:
        raise SandboxError(obstacle or "no keyring")
    on_progress(f"downloading {PACKAGE} of Debian {SUITE} (about 60 MB, once)")
    failures = []
    for mirror in facts.mirrors:
        work = folder / "apt"
        try:
            packages = _download(work, mirror, facts.keyring, facts.architecture)
            on_progress(f"unpacking {len(packages)} packages")
            for package in packages:
                _run(["dpkg-deb", "--extract", package, folder])
        except SandboxError as error:
            failures.append(str(error))
        else:
            return
        finally:
            shutil.rmtree(work, ignore_errors=True)
    raise SandboxError("; ".join(failures))


def _download(work: Path, mirror: str, keyring: Path, architecture: str) -> list[Path]:
    for part in ("lists/partial", "cache/archives/partial", "state"):
        (work / part).mkdir(parents=True)
    (work / "status").touch()
    (work / "sources.list").write_text(f"deb [arch={architecture} signed-by={keyring}] {mirror} {SUITE} main\n")
    (work / "apt.conf").write_text(apt_configuration(work, architecture))
    # The file is read after the machine's own configuration, so proxies stay and what it clears is gone.
    apt = ["apt-get", f"--config-file={work / 'apt.conf'}", "--quiet", "--quiet"]
    _run([*apt, "update"])
    _run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", PACKAGE])
    packages = sorted((work / "cache/archives").glob("*.deb"))
    if not packages:
        raise SandboxError(f"apt downloaded nothing for {PACKAGE}")
    return packages


def apt_configuration(work: Path, architecture: str) -> str:
    """The configuration that keeps apt inside `work`, in the form of apt.conf(5)."""
    return f"""\
#clear APT::Architectures;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
APT::Architecture "{architecture}";
APT::Architectures {{ "{architecture}"; }};
APT::Sandbox::User "root";
Acquire::Languages "none";
APT::Update::Error-Mode "any";
Acquire::Retries "3";
Dir::Etc::sourcelist "{work}/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State "{work}/state";
Dir::State::lists "{work}/lists";
Dir::State::status "{work}/status";
Dir::Cache "{work}/cache";
Dir::Cache::archives "{work}/cache/archives";
Dir::Log "{work}/state";
"""


def program(root: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """How to run the mysqld below `root`: its command under its own loader, and the options for its files.

    The loader stands in the folder of the machine's triplet (x86_64-linux-gnu, aarch64-linux-gnu, ...).
    """
    loaders = sorted(root.glob("usr/lib/*-linux-gnu*/ld-linux*.so.*")) or sorted(
        root.glob("lib/*-linux-gnu*/ld-linux*.so.*")
    )
    if len(loaders) != 1:
        raise SandboxError(f"{len(loaders)} dynamic loaders in {root}, expected one")
    triplet = loaders[0].parent.name
    libraries = f"{root / 'usr/lib' / triplet}:{root / 'lib' / triplet}"
    command = (str(loaders[0]), "--library-path", libraries, str(root / "usr/sbin/mysqld"))
    share = root / "usr/share/mysql"
    options = (
        f"--basedir={root / 'usr'}",
        f"--lc-messages-dir={share}",
        f"--character-sets-dir={share / 'charsets'}",
        f"--plugin-dir={root / 'usr/lib/mysql/plugin'}",
    )
    return command, options


def _output(command: Sequence[str]) -> str:
    """The output of a question to apt; empty when it has no answer."""
    answer = subprocess.run(  # noqa: S603 - the sandbox's own command
        command, capture_output=True, text=True, check=False, timeout=60, stdin=subprocess.DEVNULL
    )
    return answer.stdout if answer.returncode == 0 else ""


def _run(command: Sequence[str | Path]) -> None:
    try:
        answer = subprocess.run(  # noqa: S603 - the sandbox's own command
            command, capture_output=True, text=True, check=False,
            timeout=DOWNLOAD_DEADLINE_S, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"{command[0]} did not end in {DOWNLOAD_DEADLINE_S:.0f} s") from error
    if answer.returncode != 0:
        words = [line for line in answer.stderr.splitlines() if line.startswith(("E:", "W:", "Err"))]
        raise SandboxError(f"{command[0]} failed: {' '.join(words[:3]) or answer.returncode}")
