"""Size limits that ruff does not know: lines of a file, attributes set on `self`."""

import ast
import sys
from pathlib import Path

MAX_LINES = {"headway": 400, "tools": 400, "tests": 600, "benchmarks": 600}
LINE_EXCEPTIONS = {"benchmarks/load.py": 640}  # the load client is one file to copy anywhere
MAX_ATTRIBUTES = 12


def attributes_set(node: ast.ClassDef) -> set[str]:
    """Names assigned as `self.name = ...` anywhere in the class's own methods."""
    names: set[str] = set()
    for child in ast.walk(node):
        if not isinstance(child, ast.Assign | ast.AnnAssign | ast.AugAssign):
            continue
        targets = child.targets if isinstance(child, ast.Assign) else [child.target]
        flat = [t for target in targets for t in ast.walk(target)]
        names |= {
            t.attr
            for t in flat
            if isinstance(t, ast.Attribute)
            and isinstance(t.value, ast.Name)
            and t.value.id == "self"
        }
    return names


def problems_of(path: Path, limit: int) -> list[str]:
    """Every broken limit of one file, as `file:line: what`."""
    text = path.read_text()
    lines = text.count("\n")
    found = [] if lines <= limit else [f"{path}:1: {lines} lines, over {limit}"]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and len(names := attributes_set(node)) > MAX_ATTRIBUTES:
            found.append(
                f"{path}:{node.lineno}: class {node.name} sets {len(names)} attributes, "
                f"over {MAX_ATTRIBUTES}"
            )
    return found


def main() -> int:
    """Check every part; the exit status is 1 when a limit is broken."""
    found: list[str] = []
    for part, limit in MAX_LINES.items():
        for path in sorted(Path(part).rglob("*.py")):
            found += problems_of(path, LINE_EXCEPTIONS.get(str(path), limit))
    print("\n".join(found) or "sizes: all within limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
