from collections import Counter

import numpy as np
import pytest

from marble.data import GroupSampler, Prompt, held_out, sample_seed
from marble.errors import MarbleError


def prompts(source, n):
    return [Prompt(f"{source}{i}", source) for i in range(n)]


def sampler(p=7, m=3, seed=0, shares=None, sizes=(5, 11, 4)):
    by_source = {name: prompts(name, size) for name, size in zip("abc", sizes)}
    return GroupSampler(by_source, shares, prompts_per_epoch=p, images_per_prompt=m, seed=seed)


def test_epoch_is_a_pure_function_of_seed_and_number():
    first = sampler()
    walked = [first.epoch(n) for n in range(6)]
    assert sampler().epoch(5) == walked[5]
    assert sampler(seed=1).epoch(5) != walked[5]


def test_groups_indices_and_seeds_are_unique_over_the_run():
    s = sampler()
    run = [sample for n in range(20) for sample in s.epoch(n)]
    assert [x.index for x in run] == list(range(20 * 21))
    assert len({x.seed for x in run}) == len(run)
    assert all(0 <= x.seed < 2**63 for x in run)
    assert all(x.group == x.index // 3 for x in run)
    text_of = {x.group: x.prompt.text for x in run}
    assert all(text_of[x.group] == x.prompt.text for x in run)


def test_seed_depends_on_index_and_run_seed_only():
    assert sampler(p=7, m=3).epoch(1)[0].seed == sample_seed(0, 21)
    assert sampler(p=21, m=7).epoch(0)[21].seed == sample_seed(0, 21)
    assert sample_seed(0, 21) != sample_seed(1, 21)


@pytest.mark.parametrize("p", [1, 2, 7, 48])
@pytest.mark.parametrize("shares", [{"a": 1, "b": 1, "c": 1}, {"a": 0.05, "b": 0.9, "c": 0.0}])
def test_shares_are_floor_or_ceiling_and_unbiased(p, shares):
    s = sampler(p=p, shares=shares)
    total = sum(shares.values())
    counts = [s.counts(n) for n in range(400)]
    for name, share in shares.items():
        quota = p * share / total
        got = np.array([c[name] for c in counts])
        assert set(got) <= {int(np.floor(quota + 1e-9)), int(np.ceil(quota - 1e-9))}
        assert abs(got.sum() - 400 * quota) < 6  # low discrepancy; random rounding gives ~20
    assert all(sum(c.values()) == p for c in counts)


def test_counts_agree_with_the_samples():
    s = sampler()
    for n in range(5):
        drawn = Counter(x.prompt.source for x in s.epoch(n))
        assert {k: drawn[k] // 3 for k in "abc"} == s.counts(n)


def test_prompts_come_without_replacement_per_pass():
    s = sampler()
    seen = {name: [] for name in "abc"}
    for n in range(30):
        groups = {x.group: x.prompt for x in s.epoch(n)}
        # Within an epoch groups are shuffled, so a pass is compared as a set per epoch boundary.
        for prompt in groups.values():
            seen[prompt.source].append(prompt.text)
    for name, texts in seen.items():
        counts = Counter(texts)
        assert len(counts) == len(s.prompts[name])
        assert max(counts.values()) - min(counts.values()) <= 1
        stream = [p.text for p in s._stream(name, 0, len(texts))]
        size = len(s.prompts[name])
        for start in range(0, len(stream) - size, size):
            assert len(set(stream[start : start + size])) == size
        assert stream[:size] != stream[size : 2 * size]
        assert s._stream(name, 3, 9) == s._stream(name, 0, 12)[3:]


def test_bad_sizes_are_refused_before_work():
    with pytest.raises(MarbleError, match="images_per_prompt=1"):
        sampler(m=1)
    with pytest.raises(MarbleError, match="prompts_per_epoch=0"):
        sampler(p=0)
    with pytest.raises(MarbleError, match="no prompt source"):
        GroupSampler({}, prompts_per_epoch=1, images_per_prompt=2)
    with pytest.raises(MarbleError, match=r"data\.sources\.b: has no prompts"):
        sampler(sizes=(1, 0, 1))
    with pytest.raises(MarbleError, match="differ in: c"):
        sampler(shares={"a": 1, "b": 1})
    with pytest.raises(MarbleError, match="not all zero"):
        sampler(shares={"a": 0, "b": 0, "c": 0})


def test_held_out_is_fixed_and_in_file_order():
    all_prompts = prompts("a", 50)
    some = held_out(all_prompts, 8, seed=3)
    assert some == held_out(all_prompts, 8, seed=3) != held_out(all_prompts, 8, seed=4)
    assert [all_prompts.index(p) for p in some] == sorted(all_prompts.index(p) for p in some)
    assert held_out(all_prompts, None, 0) == held_out(all_prompts, 99, 0) == all_prompts
