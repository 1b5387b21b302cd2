"""`python -m headway.app` is the same as the `headway` command."""

import sys

from headway.app.cli import main

sys.exit(main())
