"""The example tree and its questions, checked by plain reading; nothing here knows the product."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLES = Path(__file__).parent.parent / "examples"
TREE = EXAMPLES / "knowledge"
TEXT_SUFFIXES = {".md", ".markdown", ".mdx", ".txt"}
PRESETS = ("tip", "app_review", "ads")
SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")

# The files of contract section 2: account / project / database / path of the item.
ITEMS = sorted(p for p in TREE.glob("*/*/*/**/*") if p.is_file())
PROJECTS = sorted(p for p in TREE.glob("*/*") if p.is_dir())
QUESTIONS: list[dict[str, Any]] = yaml.safe_load(
    (EXAMPLES / "questions.yaml").read_text(encoding="utf-8")
)["questions"]

each_project = pytest.mark.parametrize("project", PROJECTS, ids=lambda p: p.name)
each_question = pytest.mark.parametrize("question", QUESTIONS, ids=lambda q: q["id"])


def is_text(path: Path) -> bool:
    """Tell whether the item is chunked: a text extension and no other kind in its front matter."""
    return path.suffix in TEXT_SUFFIXES and front_matter(path).get("kind", "text") == "text"


def front_matter(path: Path) -> dict[str, Any]:
    """Return the mapping between the `---` lines at the start of a text file, empty without one."""
    match = re.match(r"---\n(.*?\n)---\n", path.read_text(encoding="utf-8"), re.DOTALL)
    return yaml.safe_load(match[1]) if match else {}


def item_name(path: Path) -> str:
    if path.suffix in TEXT_SUFFIXES and (name := front_matter(path).get("name")):
        return str(name)
    return path.stem.replace("-", " ").replace("_", " ").title()


def texts_of(project: Path, databases: list[str]) -> dict[str, str]:
    """Return path below the tree -> text, for every chunked item of the linked databases."""
    return {
        path.relative_to(TREE).as_posix(): path.read_text(encoding="utf-8")
        for path in ITEMS
        if path.is_relative_to(project)
        and path.relative_to(project).parts[0] in databases
        and is_text(path)
    }


def linked_texts(question: dict[str, Any]) -> dict[str, str]:
    return texts_of(TREE / question["account"] / question["project"], question["databases"])


def automations(project: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load((project / "automations.yaml").read_text(encoding="utf-8"))
    return list(document["automations"])


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def test_tree_holds_two_accounts_three_projects_and_enough_items() -> None:
    databases = {path.relative_to(TREE).parts[:3] for path in ITEMS}

    assert len({account for account, _, _ in databases}) == 2
    assert len(PROJECTS) == 3
    assert len(databases) >= 6
    assert len(ITEMS) >= 35


def test_levels_of_scope_are_slugs_and_only_the_canvas_lies_above_them() -> None:
    levels = {part for path in ITEMS for part in path.relative_to(TREE).parts[:3]}
    others = {path for path in TREE.rglob("*") if path.is_file()} - set(ITEMS)

    assert {level for level in levels if not SLUG.fullmatch(level)} == set()
    assert others == {project / "automations.yaml" for project in PROJECTS}


def test_front_matter_is_well_formed_and_scraped_items_name_their_source() -> None:
    for path in filter(is_text, ITEMS):
        matter = front_matter(path)

        assert set(matter) <= {"name", "origin", "source_url", "labels", "kind"}, path
        assert matter.get("origin", "uploaded") in {"uploaded", "scraped"}, path
        assert (matter.get("origin") == "scraped") == ("source_url" in matter), path
        assert all(isinstance(label, str) for label in matter.get("labels", [])), path


def test_some_items_are_long_enough_for_many_chunks_and_some_for_one() -> None:
    lengths = sorted(
        len(words(path.read_text(encoding="utf-8"))) for path in filter(is_text, ITEMS)
    )

    assert lengths[-3] >= 1_500
    assert lengths[5] < 250
    assert 15_000 <= sum(lengths) <= 25_000


def test_items_that_are_not_text_are_there_to_be_registered() -> None:
    kinds = {path.name: path.suffix for path in ITEMS if not is_text(path)}

    assert kinds == {
        "ad-results-2026-q1.csv": ".csv",
        "door-leaflet.pdf": ".pdf",
        "storyboard-photo-triage.md": ".md",
    }


def test_one_item_has_no_front_matter_and_takes_its_name_from_the_file() -> None:
    bare = [path for path in ITEMS if path.suffix == ".md" and not front_matter(path)]

    assert [item_name(path) for path in bare] == ["Jonas Student"]


def test_both_accounts_hold_one_identical_paragraph() -> None:
    paragraphs = Counter[str]()
    for account in (path for path in TREE.iterdir() if path.is_dir()):
        texts = (p.read_text(encoding="utf-8") for p in account.rglob("*.md"))
        paragraphs.update(
            {part for text in texts for part in text.split("\n\n") if len(part) > 200}
        )

    assert [part[:27] for part, count in paragraphs.items() if count == 2] == [
        "Write for someone who is ti"
    ]


def test_two_databases_of_one_project_hold_items_of_the_same_name() -> None:
    named_pricing = [
        path.relative_to(TREE).as_posix()
        for path in ITEMS
        if path.is_relative_to(TREE / "velomend/fleet-site") and item_name(path) == "Pricing"
    ]

    assert named_pricing == [
        "velomend/fleet-site/app-profile/pricing.md",
        "velomend/fleet-site/crawl-notes/pricing.md",
    ]


def test_a_scraped_page_repeats_a_paragraph_with_an_outdated_term() -> None:
    project = TREE / "velomend/rider-app"
    current = (project / "app-profile/plans-and-prices.md").read_text(encoding="utf-8")
    outdated = (project / "crawl-notes/help/cancel-your-plan.md").read_text(encoding="utf-8")
    tail = "After that a plan ends at the end of any month in which the rider cancels"

    assert f"The minimum term is three months. {tail}" in current
    assert f"The minimum term is six months. {tail}" in outdated


@each_project
def test_automations_have_the_contract_fields_and_unique_slugs(project: Path) -> None:
    found = automations(project)
    slugs = [automation["slug"] for automation in found]

    assert len(slugs) == len(set(slugs))
    assert {automation["preset"] for automation in found} == set(PRESETS)
    for automation in found:
        assert set(automation) - {"preference"} == {
            "slug",
            "name",
            "preset",
            "prompt",
            "knowledge",
            "pins",
            "retrieval",
        }
        assert SLUG.fullmatch(automation["slug"])
        assert automation["retrieval"] in {"hybrid", "vector", "concat"}
        assert len(automation["prompt"]) > 30


@each_project
def test_knowledge_edges_lead_to_databases_and_pins_to_items_in_them(project: Path) -> None:
    databases = {path.name for path in project.iterdir() if path.is_dir()}
    for automation in automations(project):
        linked = texts_of(project, automation["knowledge"])
        names = {item_name(TREE / file) for file in linked}

        assert set(automation["knowledge"]) <= databases, automation["slug"]
        assert set(automation["pins"]) <= names, automation["slug"]


def test_one_automation_has_no_edge_and_one_keeps_the_legacy_concat() -> None:
    found = [automation for project in PROJECTS for automation in automations(project)]

    assert [a["slug"] for a in found if not a["knowledge"]] == ["social-greeting"]
    assert [a["slug"] for a in found if a["retrieval"] == "concat"] == ["pricing-digest"]


@pytest.mark.parametrize("preset", PRESETS)
def test_each_preset_has_twenty_answerable_and_three_unanswerable_questions(preset: str) -> None:
    evidence = [question["evidence"] for question in QUESTIONS if question["preset"] == preset]

    assert sum(bool(spans) for spans in evidence) >= 20
    assert sum(not spans for spans in evidence) >= 3


def test_question_ids_are_unique_and_presets_known() -> None:
    ids = [question["id"] for question in QUESTIONS]

    assert len(ids) == len(set(ids))
    assert {question["preset"] for question in QUESTIONS} == set(PRESETS)


@each_question
def test_evidence_stands_verbatim_on_one_line_of_a_linked_item(question: dict[str, Any]) -> None:
    linked = linked_texts(question)
    databases = {file.split("/")[2] for file in linked}

    assert databases == set(question["databases"])
    for evidence in question["evidence"]:
        assert evidence["span"] in linked[evidence["file"]]
        assert "\n" not in evidence["span"]


@each_question
def test_negatives_exist_elsewhere_and_in_no_linked_item(question: dict[str, Any]) -> None:
    linked = linked_texts(question)
    for negative in question["negatives"]:
        assert negative["span"] in (TREE / negative["file"]).read_text(encoding="utf-8")
        assert negative["file"] not in linked
        assert [file for file, text in linked.items() if negative["span"] in text] == []


@each_question
def test_query_does_not_repeat_its_evidence(question: dict[str, Any]) -> None:
    asked = words(question["query"])
    runs = {tuple(asked[i : i + 4]) for i in range(len(asked) - 3)}
    for evidence in question["evidence"]:
        answer = words(evidence["span"])
        repeated = [
            run for i in range(len(answer) - 3) if (run := tuple(answer[i : i + 4])) in runs
        ]

        assert repeated == []


def test_every_second_line_of_a_query_is_a_preference_of_its_project() -> None:
    default = "Prefer brand voice and audience objections"  # the presets' own line
    for question in QUESTIONS:
        project = TREE / question["account"] / question["project"]
        known = {a["preference"] for a in automations(project) if "preference" in a} | {default}

        assert set(question["query"].splitlines()[1:]) <= known, question["id"]
