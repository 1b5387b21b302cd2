"""Writes the table of versions in docs/clients.md from the clients' environments, as installed.

python -m tools.write_clients        make every environment (1 to 3 GB) and write the table
"""

from pathlib import Path

from tests.clients.environments import environments

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "clients.md"
BEGIN, END = "<!-- versions -->\n", "<!-- end of versions -->\n"


def main() -> None:
    """Read what is installed; nothing is typed."""
    rows = [("client", "version"), ("---", "---")]
    rows += [(each.name, each.make().version()) for each in environments().values()]
    table = "".join(f"| {name} | {version} |\n" for name, version in rows)
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}{table}{END}{after}")


if __name__ == "__main__":
    main()
