import numpy as np
import pytest

from marble.errors import CheckpointError, MarbleError
from marble.harmonise import Harmoniser, Schedule

NAMES = ("ocr", "geneval", "aesthetic")


def test_non_finite_gram_names_the_reward():
    gram = np.eye(3)
    gram[1, :] = gram[:, 1] = np.nan
    with pytest.raises(MarbleError, match="gradient of geneval is not finite"):
        Harmoniser("marble", NAMES).solve(gram)
    overflow = np.eye(3)
    overflow[0, 2] = overflow[2, 0] = np.inf
    with pytest.raises(MarbleError, match="ocr, aesthetic"):
        Harmoniser("marble", NAMES).solve(overflow)


@pytest.mark.parametrize("shape", [(2, 2), (3,), (3, 4), (0, 0)])
def test_wrong_gram_shape(shape):
    with pytest.raises(MarbleError, match="Gram matrix"):
        Harmoniser("marble", NAMES).solve(np.ones(shape))


def test_not_a_gram_matrix():
    with pytest.raises(MarbleError, match="not symmetric"):
        Harmoniser("marble", NAMES).solve(np.eye(3) + np.triu(np.ones((3, 3)), 1) * 0.5)
    with pytest.raises(MarbleError, match=r"aesthetic is negative.*debiased_gram"):
        Harmoniser("marble", NAMES).solve(np.diag([1.0, 1.0, -1.0]))
    with pytest.raises(MarbleError, match="numbers"):
        Harmoniser("marble", NAMES).solve([["a"]])


def test_wrong_active():
    balance = Harmoniser("marble", NAMES)
    with pytest.raises(MarbleError, match="active_K"):
        balance.solve(np.eye(3), np.ones(2, dtype=bool))


def test_unknown_method_suggests_the_nearest():
    with pytest.raises(MarbleError, match="did you mean marble"):
        Harmoniser("marbel", NAMES)
    with pytest.raises(MarbleError, match="known: marble, marble-paper, mgda"):
        Harmoniser("zzz", NAMES)


@pytest.mark.parametrize("option", ["priorities", "floors", "groups"])
def test_unknown_reward_in_an_option(option):
    value = {"g": ["aestetic"]} if option == "groups" else {"aestetic": 0.5}
    with pytest.raises(MarbleError, match=rf"{option}.*'aestetic'.*Did you mean 'aesthetic'"):
        Harmoniser("marble", NAMES, **{option: value})


@pytest.mark.parametrize("value", [-1.0, 0.0, float("nan"), float("inf"), "high"])
def test_bad_priorities(value):
    with pytest.raises(MarbleError, match=r"priorities\['ocr'\].*above 0"):
        Harmoniser("marble", NAMES, priorities={"ocr": value})


@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan"), "yes"])
def test_bad_floors(value):
    with pytest.raises(MarbleError, match=r"floors\['ocr'\].*cosine"):
        Harmoniser("marble", NAMES, floors={"ocr": value})


def test_bad_groups():
    with pytest.raises(MarbleError, match="twice"):
        Harmoniser("marble", NAMES, groups={"x": ["ocr"], "y": ["ocr", "geneval"]})
    with pytest.raises(MarbleError, match="must list reward names"):
        Harmoniser("marble", NAMES, groups={"x": "ocr"})
    with pytest.raises(MarbleError, match="must list reward names"):
        Harmoniser("marble", NAMES, groups={"x": []})


def test_gram_options_on_a_method_without_gradients():
    for options in ({"floors": {"ocr": 0.0}}, {"groups": {"x": ["ocr"]}}, {"ridge": 0.1}):
        with pytest.raises(MarbleError, match="looks at no gradients"):
            Harmoniser("uniform", NAMES, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"rho": 1.0},
        {"rho": -0.1},
        {"n": 0},
        {"ridge": -0.1},
        {"ridge": float("nan")},
        {"probe": 0.0},
        {"probe": 1.5},
        {"consolidate": -1},
        {"consolidate": 5},
        {"amortise": "never"},
        {"refresh_with": "hope"},
        {"options": {"c": 1}},
    ],
)
def test_bad_settings(options):
    with pytest.raises(MarbleError):
        Harmoniser("marble", NAMES, **options)


def test_bad_names():
    for names in ((), "ocr", ("a", "a")):
        with pytest.raises(MarbleError, match="name"):
            Harmoniser("marble", names)


def test_fixed_needs_a_weight_for_every_reward():
    with pytest.raises(MarbleError, match="no value for aesthetic"):
        Harmoniser("fixed", NAMES, options={"weights": {"ocr": 1, "geneval": 1}})
    with pytest.raises(MarbleError, match="2 weights for 3 rewards"):
        Harmoniser("fixed", NAMES, options={"weights": [1, 1]})
    with pytest.raises(MarbleError, match="needs weights"):
        Harmoniser("fixed", NAMES)


def test_state_of_another_run_is_refused():
    state = Harmoniser("marble", NAMES).state_dict()
    with pytest.raises(CheckpointError, match="names"):
        Harmoniser("marble", ("ocr", "geneval", "clip")).load_state_dict(state)
    with pytest.raises(CheckpointError, match="method"):
        Harmoniser("upgrad", NAMES).load_state_dict(state)


def test_schedule_alone_checks_its_settings():
    with pytest.raises(MarbleError, match="total_steps"):
        Schedule(consolidate=3)
