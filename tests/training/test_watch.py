"""The watch: what a probe's scores say, on scores made to rise, waver, fall and lose variety."""

import json

import numpy as np

from marble.training.watch import Watch

NAMES = ["ocr", "clip"]
PROMPTS = [f"prompt {i // 2}" for i in range(96)]


def scores(mean_ocr, mean_clip, seed=0, noise=0.3):
    """[2, 96]; ocr applies to the first half only. Equal seeds share their pictures' luck."""
    luck = np.random.default_rng(99).normal(size=(2, 96))
    own = np.random.default_rng(seed).normal(size=(2, 96)) * noise
    table = luck + own + np.array([[mean_ocr], [mean_clip]])
    table[0, 48:] = np.nan
    return table


def begun(**options):
    watch = Watch(NAMES, PROMPTS, **options)
    watch.start(scores(0, 0, noise=0), 0.2)
    return watch


def test_rising_scores_are_best_each_time_and_nothing_falls():
    watch = begun()
    looks = [watch.look(s, scores(0.02 * s, 0.03 * s, s), 0.2) for s in range(10, 100, 10)]
    assert all(look.best for look in looks) and not any(look.fell for look in looks)
    assert watch.best_step == 90
    spread = np.nanstd(scores(0, 0, noise=0), axis=1)
    gains = np.array([1.8, 2.7]) / spread
    np.testing.assert_allclose(looks[-1].gains_K, gains, atol=0.15)
    assert looks[-1].value == min(looks[-1].gains_K)
    assert set(watch.row(looks[-1])) == {
        *("probe/ocr", "probe/clip", "probe/worst", "probe/mean", "probe/diversity")
    }


def test_a_plateau_with_noise_never_alarms():
    """100 runs of 20 probes of a model that stands still after its first gain."""
    alarms, weight = 0, begun()._weight
    for run in range(100):
        watch = begun()
        watch.__dict__["_weight"] = weight  # the same for all, and slow to draw
        for step in range(20):
            look = watch.look(step, scores(0.5, 0.5, seed=run * 100 + step), 0.2)
            alarms += look.fell is not None
    assert alarms <= 1


def test_a_fall_is_told_after_two_probes_and_the_best_stays():
    watch = begun()
    watch.look(10, scores(0.5, 0.6, 1), 0.2)
    first = watch.look(20, scores(-0.5, 1.5, 2), 0.2)
    assert first.fell is None and not first.best
    second = watch.look(30, scores(-0.9, 1.5, 3), 0.2)
    assert "ocr" in second.fell and "clearly below its best (+0.5" in second.fell
    assert "at step 10" in second.fell and watch.best_step == 10


def test_a_fall_that_lasts_is_told_ever_more_seldom():
    watch = begun()
    watch.look(0, scores(0.5, 0.6, 1), 0.2)
    told = [s for s in range(1, 21) if watch.look(s, scores(-0.9, 1.5, s + 1), 0.2).fell]
    assert told == [2, 4, 8, 16]
    watch.look(21, scores(0.5, 0.6, 30), 0.2)
    assert [watch.look(s, scores(-0.9, 1.5, s + 9), 0.2).fell is None for s in (22, 23)] == [
        True,
        False,
    ]


def test_the_criterion_decides_what_a_fall_is():
    falls = {}
    for criterion in ("worst", "mean"):
        watch = begun(criterion=criterion)
        watch.look(10, scores(0.5, 0.5, 1), 0.2)
        looks = [watch.look(s, scores(0.0, 2.0, s), 0.2) for s in (20, 30)]
        falls[criterion] = looks[-1].fell is not None
    assert falls == {"worst": True, "mean": False}


def test_only_rewards_that_are_trained_on_count():
    watch = begun(counted=[1])
    watch.look(10, scores(0.5, 0.5, 1), 0.2)
    looks = [watch.look(s, scores(-2, 0.6, s), 0.2) for s in (20, 30)]
    assert looks[-1].fell is None and looks[-1].best


def test_pictures_that_become_alike_are_a_collapse_whatever_they_score():
    watch = begun()
    watch.look(10, scores(0.5, 0.5, 1), 0.2)
    looks = [watch.look(s, scores(2, 2, s), 0.08) for s in (20, 30)]
    assert looks[-1].fell == "pictures of one prompt differ 40% as much as the base's"
    assert watch.best_step == 10


def test_below_the_base_from_the_start_is_told_as_such():
    watch = begun()
    looks = [watch.look(s, scores(-1, 0.2, s), 0.2) for s in (10, 20)]
    assert looks[0].best  # there always is one
    assert "clearly below the untouched model" in looks[1].fell


def test_within_the_noise_of_the_highest_the_later_one_is_best():
    watch = begun()
    watch.look(10, scores(0.50, 0.50, 1), 0.2)
    second = watch.look(20, scores(0.48, 0.48, 2), 0.2)
    assert second.best and second.value < watch.peak_value
    assert watch.best_step == 20 and watch.peak_step == 10


def test_too_few_prompts_decide_nothing():
    watch = Watch(NAMES, PROMPTS[:6])
    watch.start(scores(0, 0, noise=0)[:, :6], 0.2)
    looks = [watch.look(s, scores(-3, -3, s)[:, :6], 0.2) for s in (10, 20, 30)]
    assert not any(look.fell for look in looks)


def test_state_survives_json_exactly():
    watch, other = begun(), Watch(NAMES, PROMPTS)
    watch.look(10, scores(0.5, 0.6, 1), 0.2)
    watch.look(20, scores(-0.5, 1.5, 2), 0.2)
    other.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    assert other.state_dict() == watch.state_dict()
    a, b = (w.look(30, scores(-0.9, 1.5, 3), 0.2) for w in (watch, other))
    assert a.fell == b.fell is not None and a.value == b.value


def test_rewards_that_cancel_out_judge_no_more():
    """clip rises; what opposes it falls as fast, and had kept the base the best."""
    watch = begun()
    looks = [watch.look(s, scores(-0.02 * s, 0.02 * s, s), 0.2) for s in (10, 20)]
    assert watch.best_step == 10 and looks[-1].fell and watch.peak_value == 0
    assert watch.leave_out([0])
    later = [watch.look(s, scores(-0.02 * s, 0.02 * s, s), 0.2) for s in (30, 40, 50)]
    assert all(look.best for look in later) and not any(look.fell for look in later)
    assert watch.best_step == 50 and watch.row(later[-1])["probe/worst"] == later[-1].gains_K[1]
    assert watch.row(later[-1])["probe/ocr"] < 0  # it is still told
    again = begun()
    again.load_state_dict(json.loads(json.dumps(watch.state_dict())))
    assert again.counted == [1] and again.state_dict() == watch.state_dict()


def test_the_highest_so_far_is_that_of_the_rewards_that_are_left():
    watch = begun()
    watch.look(10, scores(0.2, 0.9, 1), 0.2)
    before = watch.peak_value
    watch.leave_out([0])
    assert watch.peak_value > before + 0.5 and watch.peak_step == 10
    assert not watch.look(20, scores(0.9, 0.2, 2), 0.2).best


def test_some_reward_always_judges():
    watch = begun()
    assert not watch.leave_out([0, 1]) and watch.counted == [0, 1]
    assert not begun(counted=[1]).leave_out([0])  # not trained on, as with `single`
