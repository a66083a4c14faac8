"""The small model and data that the tests of this room share."""

import pytest
from _literal import make_data, make_model


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def data():
    return make_data()
