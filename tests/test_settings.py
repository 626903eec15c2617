"""Settings: names, defaults, every problem at once, and the tree that a home remembers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from kshift_knowledge.errors import Refused, SettingsError
from kshift_knowledge.settings import Settings, knowledge_dir_of, load_settings

# Contract section 3, as far as it is built, with the defaults it gives.
DEFAULTS: dict[str, Any] = {
    "KSHIFT_HOME": Path(".kshift").absolute(),
    "KSHIFT_KNOWLEDGE_DIR": None,
    "KSHIFT_DATABASE_URL": None,
    "KSHIFT_WRITER_URL": None,
    "KSHIFT_READER_URL": None,
    "KSHIFT_DAGSTER_URL": None,
    "KSHIFT_EMBEDDER": None,
    "OPENAI_API_KEY": None,
    "OPENAI_BASE_URL": None,
    "KSHIFT_EMBEDDING_MODEL": None,
    "KSHIFT_EMBEDDING_DIMENSIONS": None,
    "KSHIFT_CHUNK_TOKENS": 512,
    "KSHIFT_CHUNK_OVERLAP_TOKENS": 64,
    "KSHIFT_PASSAGE_TOKENS": 64,
    "KSHIFT_TOP_K": 6,
    "KSHIFT_MAX_CHARS": 1500,
    "KSHIFT_REUSE_DAYS": 30,
    "KSHIFT_RECEIPT_DAYS": 90,
    "KSHIFT_RECEIPT_QUERY": "text",
    "KSHIFT_API_PORT": 8080,
    "KSHIFT_DAGSTER_PORT": 3000,
    "KSHIFT_MCP_PORT": 8081,
    "KSHIFT_STORE": "pgvector",
}
SECRETS = (
    "KSHIFT_DATABASE_URL",
    "KSHIFT_WRITER_URL",
    "KSHIFT_READER_URL",
    "KSHIFT_DAGSTER_URL",
    "OPENAI_API_KEY",
    "KSHIFT_API_KEY",
)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start each test without settings, in a folder without `.env`."""
    for name in [name for name in os.environ if name.startswith(("KSHIFT_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def field_of(variable: str) -> str:
    return variable.removeprefix("KSHIFT_").lower()


def test_every_setting_of_the_contract_has_its_default() -> None:
    expected = DEFAULTS | {"KSHIFT_HOME": Path(".kshift").absolute()}

    settings = load_settings()

    assert {name: getattr(settings, field_of(name)) for name in DEFAULTS} == expected


def test_values_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "KSHIFT_HOME": "state",
        "KSHIFT_KNOWLEDGE_DIR": "~/tree",
        "KSHIFT_EMBEDDER": "openai",
        "OPENAI_API_KEY": "sk-1",
        "OPENAI_BASE_URL": "http://127.0.0.1:1/v1",
        "KSHIFT_EMBEDDING_MODEL": "bge-m3",
        "KSHIFT_EMBEDDING_DIMENSIONS": "1024",
        "KSHIFT_PASSAGE_TOKENS": "0",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)

    settings = load_settings()

    assert settings.home == Path("state").absolute()
    assert settings.knowledge_dir == Path.home() / "tree"
    assert settings.openai_api_key is not None
    assert settings.openai_api_key.get_secret_value() == "sk-1"
    assert (settings.chosen_embedder, settings.embedding_model, settings.embedding_dimensions) == (
        "openai",
        "bge-m3",
        1024,
    )
    assert (settings.openai_base_url, settings.passage_tokens) == ("http://127.0.0.1:1/v1", 0)


def test_dot_env_is_read_and_the_environment_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("KSHIFT_TOP_K=3\nKSHIFT_MAX_CHARS=900\nSOMETHING_ELSE=1\n")
    monkeypatch.setenv("KSHIFT_TOP_K", "4")

    settings = load_settings()

    assert (settings.top_k, settings.max_chars) == (4, 900)
    assert load_settings(env_file=None).max_chars == 1500


@pytest.mark.parametrize("name", DEFAULTS)
def test_an_empty_value_counts_as_unset(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "")

    assert field_of(name) not in load_settings().model_fields_set


def test_every_problem_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {
        "KSHIFT_TOP_K": "51",
        "KSHIFT_MAX_CHARS": "0",
        "KSHIFT_EMBEDDER": "cohere",
        "KSHIFT_EMBEDDING_DIMENSIONS": "4001",
        "KSHIFT_API_PORT": "http",
        "KSHIFT_STORE": "faiss",
    }
    for name, value in wrong.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(SettingsError) as refusal:
        load_settings()

    named = [line.split(":")[0].strip() for line in refusal.value.message.splitlines()[1:]]
    assert sorted(named) == sorted(wrong)
    assert refusal.value.exit_code == 2


@pytest.mark.parametrize(
    ("values", "problems"),
    [
        (
            {
                "KSHIFT_CHUNK_TOKENS": "64",
                "KSHIFT_CHUNK_OVERLAP_TOKENS": "64",
                "KSHIFT_EMBEDDER": "openai",
            },
            ["KSHIFT_CHUNK_OVERLAP_TOKENS is 64", "neither OPENAI_API_KEY nor OPENAI_BASE_URL"],
        ),
        (
            {
                "KSHIFT_EMBEDDER": "local",
                "KSHIFT_EMBEDDING_MODEL": "bge-m3",
                "KSHIFT_EMBEDDING_DIMENSIONS": "1024",
            },
            ["KSHIFT_EMBEDDING_MODEL is 'bge-m3'", "KSHIFT_EMBEDDING_DIMENSIONS is 1024"],
        ),
    ],
)
def test_values_that_do_not_go_together_are_named(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], problems: list[str]
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(SettingsError) as refusal:
        load_settings()

    assert [problem for problem in problems if problem not in refusal.value.message] == []


def test_a_key_alone_chooses_openai_and_no_key_the_local_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without = load_settings().chosen_embedder
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    with_key = load_settings().chosen_embedder
    monkeypatch.setenv("KSHIFT_EMBEDDER", "local")

    assert (without, with_key, load_settings().chosen_embedder) == ("local", "openai", "local")


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "canary-0123456789")

    settings = load_settings()

    assert "canary" not in f"{settings!r} {settings.model_dump()} {settings.model_dump_json()}"


def test_a_wrong_value_is_not_repeated_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KSHIFT_TOP_K", "sk-pasted-into-the-wrong-line")

    with pytest.raises(SettingsError) as refusal:
        load_settings()

    assert "sk-pasted" not in str(refusal.value)


def test_every_setting_has_help() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_a_home_remembers_its_first_tree(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    first = knowledge_dir_of(load_settings(home=tmp_path / "home", knowledge_dir=tmp_path / "a"))

    assert first == tmp_path / "a"
    assert knowledge_dir_of(load_settings(home=tmp_path / "home")) == tmp_path / "a"


def test_a_mistyped_tree_is_not_remembered(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    knowledge_dir_of(load_settings(home=tmp_path / "home", knowledge_dir=tmp_path / "typo"))

    found = knowledge_dir_of(load_settings(home=tmp_path / "home", knowledge_dir=tmp_path / "a"))

    assert found == tmp_path / "a"


def test_a_home_refuses_another_tree_and_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    knowledge_dir_of(load_settings(home=tmp_path / "home", knowledge_dir=tmp_path / "a"))

    with pytest.raises(Refused) as refusal:
        knowledge_dir_of(load_settings(home=tmp_path / "home", knowledge_dir=tmp_path / "b"))

    assert refusal.value.exit_code == 4
    assert str(tmp_path / "a") in refusal.value.message
    assert "KSHIFT_HOME" in refusal.value.hint


def test_a_home_knows_its_tree_by_any_path(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    knowledge_dir_of(load_settings(home=tmp_path / "home", knowledge_dir=tmp_path / "a"))

    again = knowledge_dir_of(load_settings(home=tmp_path / "home", knowledge_dir=tmp_path / "link"))

    assert again == tmp_path / "a"


def test_without_a_tree_the_first_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refusal:
        knowledge_dir_of(load_settings(home=tmp_path / "home"))

    assert "KSHIFT_KNOWLEDGE_DIR" in refusal.value.hint
