import pytest
from _training_toy import Toy, make_toy, randomise

from marble.training import setup
from marble.training.loop import Trainer
from marble.training.processes import Processes


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Toy:
    return make_toy(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def trainer(toy):
    """Builds trainers on the CPU, by default with LoRA weights that already do something."""
    built = []

    def make(*overrides: str, random_lora: bool = True) -> Trainer:
        recipe = toy.recipe(*overrides)
        processes = Processes("cpu")
        parts = setup.build(recipe, processes.device)
        if random_lora:
            randomise(parts.adapter)
        built.append(Trainer(recipe, parts, processes))
        return built[-1]

    yield make
    for one in built:
        one.close()
