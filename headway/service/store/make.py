"""`python -m headway.service.store.make URL`: a database with the newest schema.

A process of its own: what changes a schema takes 25 MB, and a server needs it once.
"""

import sys

from headway.core.base.errors import StartError
from headway.service.store.database import open_database


def main(url: str) -> int:
    """Make it, or bring it up to date; the exit code."""
    try:
        open_database(url).close()
    except StartError as error:
        sys.stderr.write(f"{error.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
