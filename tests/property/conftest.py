"""How hard the property tests try: a fixed profile, or a long random one with LONG=1."""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("long", max_examples=2000, deadline=None)
settings.load_profile("long" if os.environ.get("LONG") == "1" else "fixed")
