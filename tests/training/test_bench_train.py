from marble.training.bench import bench_train


def test_bench_measures_and_explains(toy):
    quick = ["data.prompts_per_epoch=2", "data.images_per_prompt=3"]
    result = bench_train(str(toy.recipe_file), quick, rounds=2, device="cpu")
    assert set(result["ratio"]) == {"marble N=10", "marble N=1"}
    ratios = result["ratio_cpu_time"]
    assert 0.2 < ratios["marble N=1"] < ratios["marble N=10"] < 1.5
    speed = result["images_per_s"]
    assert speed["marble N=1"] == speed["weighted_sum"] * result["ratio"]["marble N=1"]
    ordinary, refresh = result["profile"]["ordinary"], result["profile"]["refresh"]
    phases = {"rollout", "decode", "train forward", "old forward", "reference forward", "backward"}
    for seconds in (ordinary, refresh):
        assert phases | {"reward red", "prompts", "other", "whole"} <= set(seconds)
        parts = sum(value for name, value in seconds.items() if name != "whole")
        assert abs(parts - seconds["whole"]) < 1e-6
        assert seconds["other"] < 0.5 * seconds["whole"]
    assert refresh["backward"] > ordinary["backward"]
