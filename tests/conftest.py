"""What every test gets: a state folder of its own, so that nobody's account remembers the tests."""

import atexit
import os
import shutil
import tempfile

import typer.rich_utils  # noqa: F401  reads FORCE_COLOR once, which some tests set

# Before anything starts: processes that tests start inherit it.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="marble-state-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)
