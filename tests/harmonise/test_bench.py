import json

from marble.harmonise.bench import bench_solver


def test_reports_an_exact_solver():
    report = bench_solver(ks=(1, 5), repeats=3)
    json.dumps(report)
    ours = [row for row in report["results"] if row["solver"] == "marble"]
    assert [row["k"] for row in ours] == [1, 5]
    for row in ours:
        assert row["worst_gap"] <= 1e-12
        assert row["worst_cosine"] >= -1e-9
        assert row["median_ms"] >= row["best_ms"] > 0.0
    assert {"marble", "scipy_nnls"} <= {row["solver"] for row in report["results"]}
