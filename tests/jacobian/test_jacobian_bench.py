"""The benchmark measures what it says, on a model small enough for a test."""

from marble.jacobian.bench import bench_gradients


def test_reports_exact_gradients_and_ratios():
    report = bench_gradients((2, 12), width=64, depth=2, tokens=32, batch=4, repeats=3)
    assert list(report["results"]) == ["K=2", "K=12"]
    for result in report["results"].values():
        assert result["gram_relative_error"] < 1e-5
        # How large they are is the bench's matter: a busy machine may say anything.
        assert result["two_pass_ratio"] > 0 and result["retained_ratio"] > 0
    assert report["ordinary_ms"] > 0 and report["ratio_spread"] >= 0
