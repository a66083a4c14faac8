"""What DPO asks of a recipe: whole pairs of pictures, in every step."""

import pytest

from marble.errors import RecipeError
from marble.recipe import load_recipe


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["data.images_per_prompt=5"], "data.images_per_prompt: objective dpo compares pairs"),
        (["train.batch_size=5"], "train.batch_size: objective dpo compares pairs"),
        (["train.steps_per_epoch=49"], "49 steps cannot share 48 pairs"),
    ],
)
def test_what_cannot_be_paired_is_refused(words, said):
    with pytest.raises(RecipeError, match=said):
        load_recipe("studio-dpo", words)


def test_pairs_of_any_number_are_accepted_and_so_is_a_batch_chosen_by_memory():
    for words in (["train.batch_size=2"], ["train.batch_size=null"], ["train.steps_per_epoch=48"]):
        load_recipe("studio-dpo", words)
