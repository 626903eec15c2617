"""The credentials file: private, whole, and one password per role whoever asks first."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from unprivileged import public_folder, without_root_rights

from kshift_knowledge.errors import NotReady
from kshift_knowledge.postgres.credentials import Credentials


def test_a_password_is_made_once_and_kept(tmp_path: Path) -> None:
    made, was_made = Credentials(tmp_path).obtain("db:5432", "kshift_reader")

    assert was_made
    assert Credentials(tmp_path).obtain("db:5432", "kshift_reader") == (made, False)
    assert Credentials(tmp_path).password("db:5432", "kshift_reader") == made


def test_servers_and_roles_have_passwords_of_their_own(tmp_path: Path) -> None:
    credentials = Credentials(tmp_path / "new home")
    made = {credentials.obtain(server, role)[0] for server in ("a:1", "a:2") for role in ("r", "w")}

    assert len(made) == 4
    assert credentials.password("a:3", "r") is None


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    Credentials(tmp_path).obtain("db:5432", "kshift_reader")

    assert (tmp_path / "credentials").stat().st_mode & 0o777 == 0o600


def test_all_who_ask_at_once_get_the_same_password(tmp_path: Path) -> None:
    roles = [f"role_{number % 4}" for number in range(32)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda role: Credentials(tmp_path).obtain("db", role), roles))

    kept = json.loads((tmp_path / "credentials").read_text("utf-8"))["passwords"]["db"]
    assert [password for password, _ in answers] == [kept[role] for role in roles]
    assert sum(was_made for _, was_made in answers) == 4


def test_a_draft_of_a_killed_process_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "credentials.new").write_text("{")

    password, _ = Credentials(tmp_path).obtain("db", "r")
    assert Credentials(tmp_path).password("db", "r") == password


@pytest.mark.parametrize("content", ["", "{", "[]", '{"passwords": 1}', '{"passwords": {"a": 1}}'])
def test_a_damaged_file_is_named_and_says_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / "credentials").write_text(content)

    with pytest.raises(NotReady, match=r"damaged. Delete it and run `kshift migrate`"):
        Credentials(tmp_path).password("db", "r")


def test_another_users_file_is_named() -> None:
    with public_folder() as home:
        Credentials(home).obtain("db", "r")
        (home / "credentials").chmod(0)
        with without_root_rights(), pytest.raises(NotReady, match="belongs to another user"):
            Credentials(home).password("db", "r")
