"""A mysqld of one's own: started on a copy of a template, killed, paused and restarted for fault tests."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pymysql

from orbit.mysql.dsn import DSN
from orbit.sandbox.errors import SandboxError
from orbit.sandbox.ports import free_port
from orbit.sandbox.process import STOP_DEADLINE_S, end, spawn, tail
from orbit.sandbox.server import read_version
from orbit.sandbox.versions import ServerVersion, parse_program_version

if TYPE_CHECKING:
    from pathlib import Path

    from orbit.sandbox.cache import Cache

INITIALISE_DEADLINE_S = 180.0
START_DEADLINE_S = 90.0
_POLL_S = 0.05
_PORT_TRIES = 5
_PORT_TAKEN = "Address already in use"
_ADMIN = "sandbox"

# A small server for tests and demos. The two durability settings stand here although they are the defaults: a
# commit that was acknowledged must survive SIGKILL, and what is tested rests on that.
SETTINGS = (
    "--innodb-flush-log-at-trx-commit=1",
    "--sync-binlog=1",
    "--innodb-buffer-pool-size=128M",
    "--innodb-redo-log-capacity=48M",
    "--max-connections=400",
    "--character-set-server=utf8mb4",
    # Accounts are for any host; looking up the client's name would make every connection wait for a DNS server.
    "--skip-name-resolve",
)
_LOCAL_ONLY = ("--bind-address=127.0.0.1", "--mysqlx=OFF", "--secure-file-priv=NULL")


@dataclass(frozen=True, slots=True)
class MysqldProgram:
    """A mysqld that can be run: the command before its options, and the options that say where its own files are."""

    command: tuple[str, ...]
    options: tuple[str, ...]
    banner: str
    version: ServerVersion

    @property
    def key(self) -> str:
        """A name for this version's template folder."""
        slug = re.sub(r"[^0-9A-Za-z.-]", "-", self.version.text)
        return f"{slug}-{hashlib.sha256(self.banner.encode()).hexdigest()[:8]}"


def identify(command: tuple[str, ...], options: tuple[str, ...] = ()) -> MysqldProgram:
    """Ask a mysqld for its version; SandboxError when it does not run or is not MySQL 8.4 or newer."""
    try:
        answer = subprocess.run(  # noqa: S603 - the sandbox's own command
            [*command, "--no-defaults", "--version"],
            capture_output=True, text=True, timeout=30, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        version = parse_program_version(answer.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"{command[-1]} does not tell its version ({type(error).__name__})") from error
    refusal = version.refusal()
    if refusal is not None:
        raise SandboxError(f"{command[-1]} cannot be used: {refusal}")
    # Without the path that the program was called by: the same program has one template.
    return MysqldProgram(command, options, answer.stdout.partition("Ver ")[2], version)


def template(program: MysqldProgram, cache: Cache) -> Path:
    """An initialised, cleanly closed data directory of this version; made once and kept."""
    return cache.keep(f"templates/{program.key}", lambda folder: _initialise(program, folder))


def _initialise(program: MysqldProgram, folder: Path) -> None:
    log = folder / "initialise.log"
    process = spawn(
        [*_command(program, folder / "data"), "--initialize-insecure", f"--log-error={log}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        status = process.wait(INITIALISE_DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise SandboxError(f"mysqld did not initialise its data in {INITIALISE_DEADLINE_S:.0f} s") from error
    finally:
        end(process)
    if status != 0:
        raise SandboxError(f"mysqld --initialize-insecure ended with {status}:\n{tail(log)}")
    # The server's identity: each copy writes its own, or two copies could never replicate to each other.
    (folder / "data" / "auto.cnf").unlink()


def _command(program: MysqldProgram, data: Path) -> list[str]:
    # mysqld refuses to run as root unless told so. The sandbox listens on loopback and holds nothing of value.
    user = ("--user=root",) if os.geteuid() == 0 else ()
    return [
        *program.command, "--no-defaults", *program.options, f"--datadir={data}",
        *_LOCAL_ONLY, *SETTINGS, *user,
    ]  # fmt: skip


class MysqldProcess:
    """One mysqld on its own copy of the template, on a port of 127.0.0.1 that stays the same over restarts.

    Synchronous; call it from a thread when an event loop must go on meanwhile.
    """

    def __init__(self, program: MysqldProgram, cache: Cache) -> None:
        source = template(program, cache)
        self.program = program
        self._folder = cache.new_run()
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        self._password = secrets.token_urlsafe(18)
        try:
            # Shares blocks where the file system can (reflink), copies where it cannot.
            subprocess.run(  # noqa: S603 - the sandbox's own command
                ["cp", "-a", "--reflink=auto", source / "data", self._data],  # noqa: S607 - coreutils
                check=True, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def _data(self) -> Path:
        return self._folder.path / "data"

    @property
    def log(self) -> Path:
        """The server's error log."""
        return self._folder.path / "error.log"

    @property
    def pid(self) -> int | None:
        """The process id, or None when it does not run."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    @property
    def admin(self) -> DSN:
        """The administrator's account, open to 127.0.0.1 with a password of this run."""
        assert self._port is not None, "started once, in the constructor"
        return DSN((("127.0.0.1", self._port),), _ADMIN, self._password, None)

    def start(self) -> None:
        """Start the server and wait until it answers; after the first time on the same port and data.

        SandboxError with the end of the error log when it does not.
        """
        if self.pid is not None:
            raise SandboxError("mysqld runs already")
        if self._port is not None:
            self._launch(self._port, ())
            return
        # Runs before the port opens: there is no moment without a password.
        grant = self._folder.path / "first-start.sql"
        grant.write_text(
            f"CREATE USER '{_ADMIN}'@'%' IDENTIFIED BY '{self._password}';\n"
            f"GRANT ALL ON *.* TO '{_ADMIN}'@'%' WITH GRANT OPTION;\n"
            f"ALTER USER root@localhost ACCOUNT LOCK;\n"
        )
        for tried in range(1, _PORT_TRIES + 1):
            self._port = free_port()
            try:
                self._launch(self._port, (f"--init-file={grant}",))
            except SandboxError as error:
                # Somebody else took it between our look and mysqld's bind.
                if _PORT_TAKEN not in str(error) or tried == _PORT_TRIES:
                    raise
            else:
                break
        grant.unlink()

    def _launch(self, port: int, extra: tuple[str, ...]) -> None:
        self.log.unlink(missing_ok=True)
        folder = self._folder.path
        self._process = spawn(
            [
                *_command(self.program, self._data),
                f"--port={port}",
                "--socket=mysql.sock",
                f"--pid-file={folder / 'mysqld.pid'}",
                f"--log-error={self.log}",
                *extra,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            self._wait_until_ready(self._process)
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_DEADLINE_S
        while True:
            status = process.poll()
            if status is not None:
                raise SandboxError(f"mysqld ended with {status} instead of starting:\n{tail(self.log)}")
            try:
                read_version(self.admin)
            except pymysql.MySQLError:
                if time.monotonic() > deadline:
                    raise SandboxError(
                        f"mysqld did not answer in {START_DEADLINE_S:.0f} s:\n{tail(self.log)}"
                    ) from None
                time.sleep(_POLL_S)
            else:
                return

    def stop(self, *, deadline_s: float = STOP_DEADLINE_S) -> None:
        """Shut the server down as an administrator would (SIGTERM); SIGKILL after the deadline."""
        if self._process is not None:
            end(self._process, deadline_s=deadline_s)
            self._process = None

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone. What was committed must be there after `start()`."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """SIGSTOP: sockets stay open and nothing answers, as with a hung machine. Returns when every thread stands."""
        process = self._signal(signal.SIGSTOP)
        # The signal is only on its way when kill(2) returns; until it arrives another thread may still answer.
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)

    def resume(self) -> None:
        """SIGCONT after `pause()`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None or process.poll() is not None:
            raise SandboxError("mysqld does not run")
        process.send_signal(number)
        return process

    def close(self) -> None:
        """End the server for good and remove its folder; does nothing the second time."""
        # SIGKILL: the data is thrown away, and a paused server would not hear anything else.
        self.kill()
        self._folder.remove()
