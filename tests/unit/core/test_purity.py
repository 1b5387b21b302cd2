import subprocess
import sys

BLOCKED = ("torch", "numpy", "socket", "asyncio", "sqlite3", "threading")
PROBE = """
import importlib, pkgutil, sys
import msgspec
for name in {blocked!r}:
    sys.modules[name] = None
import headway.core as core
for module in pkgutil.walk_packages(core.__path__, "headway.core."):
    importlib.import_module(module.name)
"""


def test_core_imports_without_tensors_or_sockets() -> None:
    subprocess.run([sys.executable, "-c", PROBE.format(blocked=BLOCKED)], check=True)
