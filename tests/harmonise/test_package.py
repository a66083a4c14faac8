import doctest
import subprocess
import sys

import pytest

import marble.harmonise
from marble.harmonise import _min_norm


@pytest.mark.parametrize("module", [marble.harmonise, _min_norm])
def test_docstring_examples(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_needs_neither_torch_nor_scipy():
    """A stranger with numpy gradients should not pay for more than numpy."""
    code = "import sys, marble.harmonise; print({'torch', 'scipy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
