"""A PostgreSQL of the tests' own, from the system's package: started in an empty folder, stopped, started again."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest


def programs() -> Path | None:
    """Folder of PostgreSQL's programs, which Debian does not put on the path."""
    if found := shutil.which("pg_ctl"):
        return Path(found).resolve().parent
    return max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), default=None)


class Server:
    def __init__(self, folder: Path, bin: Path):
        self._data, self._bin = folder / "data", bin
        # PostgreSQL refuses root, who hands the folder over to another user.
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            os.chown(folder, pwd.getpwnam(self._user).pw_uid, -1)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]
        self._call("initdb", "-A", "trust", "-U", "tests", "--no-sync", "-E", "UTF8", "--locale=C")
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://tests@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        options = f"-p {self._port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self._call("pg_ctl", "-w", "-l", str(self._data.parent / "log"), "-o", options, "start")

    def stop(self) -> None:
        """At once, as when the machine is switched off and on: connections break in the middle of what they do."""
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")

    def execute(self, statement: str) -> list[tuple]:
        import psycopg

        with psycopg.connect(self.url.replace("+psycopg", ""), autocommit=True) as connection:
            return connection.execute(statement.encode()).fetchall()

    def drop_connections(self) -> int:
        return len(self.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'tests' "
                                "AND pid <> pg_backend_pid() AND backend_type = 'client backend'"))  # fmt: skip

    def _call(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), "-D", str(self._data), *arguments]
        # The server would keep a pipe open: output goes to a file.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(command, user=self._user, cwd="/", stdout=output, stderr=output, check=False)
            output.seek(0)
            assert done.returncode == 0, output.read()


@pytest.fixture(scope="module")
def postgres():
    """The server, running."""
    pytest.importorskip("psycopg", reason="psycopg, a driver for PostgreSQL, is not installed")
    bin = programs()
    if bin is None:
        pytest.skip("there is no PostgreSQL here (Debian: apt-get install postgresql)")
    with tempfile.TemporaryDirectory(prefix="gumtrace-postgres-") as folder:
        server = Server(Path(folder), bin)
        yield server
        server.stop()
