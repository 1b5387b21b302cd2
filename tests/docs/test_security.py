"""Every threat that the documents name has a test, and the test is there."""

import ast
import re

from tests.docs.documents import ROOT

TEST = re.compile(r"`((?:unit|conformance|e2e|fault|property)/[\w/]+\.py)::(\w+)`")


def test_the_tests_named_in_the_threat_list_are_there() -> None:
    named = TEST.findall((ROOT / "docs" / "security.md").read_text())
    assert len(named) >= 15
    for path, name in named:
        tree = ast.parse((ROOT / "tests" / path).read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in functions, f"{path}::{name}"
