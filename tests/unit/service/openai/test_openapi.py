import json
import re
from pathlib import Path
from typing import Any

from headway.service.openai.limits import ApiLimits
from headway.service.openai.openapi import ENDPOINTS, docs_page, openapi
from headway.service.openai.schema import ChatBody, CompletionBody

DOCS = Path(__file__).parents[4] / "docs"


def references(value: Any) -> set[str]:
    """Every $ref in a document."""
    if isinstance(value, dict):
        own = {value["$ref"]} if "$ref" in value else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_every_endpoint_is_described_with_references_that_exist() -> None:
    document = json.loads(json.dumps(openapi("1.2.3")))
    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == "1.2.3"
    assert set(document["paths"]) == {endpoint.path for endpoint in ENDPOINTS}
    names = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= names


def test_the_described_fields_are_those_that_are_parsed() -> None:
    schemas = openapi("1")["components"]["schemas"]
    for body in (ChatBody, CompletionBody):
        assert tuple(schemas[body.__name__]["properties"]) == body.__struct_fields__
    assert schemas["ChatBody"]["required"] == ["messages"]
    assert schemas["CompletionBody"]["required"] == ["prompt"]


def test_the_page_names_every_endpoint_and_loads_nothing_from_elsewhere() -> None:
    page = docs_page("<1>").decode()
    assert all(f"{e.method.upper()} {e.path}" in page for e in ENDPOINTS)
    assert "temperature" in page
    assert "&lt;1&gt;" in page
    assert not re.search(r"(src|href)=[\"']?https?:", page)


def test_every_limit_stands_in_the_docs_with_its_default() -> None:
    text = (DOCS / "limits.md").read_text()
    for name in ApiLimits.__struct_fields__:
        assert f"| `{name}` | {getattr(ApiLimits(), name)} |" in text


def test_every_field_stands_in_the_docs() -> None:
    text = (DOCS / "api.md").read_text()
    for name in {*ChatBody.__struct_fields__, *CompletionBody.__struct_fields__}:
        assert f"`{name}`" in text
