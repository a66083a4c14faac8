"""Two processes, whatever their shares of the samples, take the step that one would."""

import time

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from _literal import (
    advantages,
    close,
    gradients,
    kl_gradient,
    make_balancer,
    make_data,
    make_model,
    probability,
    run_step,
)
from _ranks import CASES, DEALS, run


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("ranks"))
    context = mp.spawn(run, args=(2, folder), nprocs=2, join=False)
    # A process that waits for one that will never come is a failure, not a hanging test.
    deadline = time.monotonic() + 120
    while not context.join(timeout=5):
        if time.monotonic() > deadline:
            for process in context.processes:
                process.kill()
            pytest.fail("the processes did not finish: a collective call was not matched")
    return [torch.load(f"{folder}/rank{rank}.pt", weights_only=False) for rank in (0, 1)]


def alone(options, step_parts=4):
    model = make_model()
    balancer = make_balancer(model, **options)
    out = []
    for step in (0, 1):
        report, gradient = run_step(balancer, model, make_data(), step, parts=step_parts, kl=0.2)
        out.append((gradient, report.coefficients_K, report.harmony, report.loss, report.kl))
    return out


@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("case", ["marble", "reward", "weighted_sum", "uniform"])
def test_two_processes_equal_one(ranks, deal, case):
    for mine in (rank[deal, case] for rank in ranks):
        for (grad, c, harmony, loss, kl), wanted in zip(mine, alone(CASES[case])):
            assert close(grad, wanted[0])
            np.testing.assert_allclose(c, wanted[1], rtol=1e-8)
            assert loss == pytest.approx(wanted[3]) and kl == pytest.approx(wanted[4])
            assert (harmony is None) == (wanted[2] is None)
            if harmony is not None:
                assert harmony["min"] == pytest.approx(wanted[2]["min"], abs=1e-8)


@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("case", list(CASES))
def test_processes_agree_to_the_bit(ranks, deal, case):
    for first, second in zip(ranks[0][deal, case], ranks[1][deal, case]):
        assert (first[0] == second[0]).all() and (first[1] == second[1]).all()
        assert first[2:] == second[2:]


def test_probe_is_exact_over_processes(ranks):
    """Other samples than in one process enter the solve; the sum must still be Σ c_k g_k."""
    model, data = make_model(), make_data()
    g = gradients(model, data, probability(advantages(data.rewards, data.group)))
    penalty = 0.2 * kl_gradient(model, data)
    for deal in DEALS:
        for grad, c, *_ in ranks[0][deal, "probe"]:
            assert close(grad, c @ g + penalty)


def test_ddp_wrapped_model(ranks):
    for mine in (rank["unequal", "ddp"] for rank in ranks):
        for (grad, c, *_), wanted in zip(mine, alone({})):
            assert close(grad, wanted[0])
            np.testing.assert_allclose(c, wanted[1], rtol=1e-8)


@pytest.mark.parametrize("step", [0, 1])
def test_processes_agree_that_a_step_is_void(ranks, step):
    for rank in ranks:
        finite, bad, state = rank["bad", step]
        assert not finite and bad == [7]
        assert state == make_balancer(make_model()).state_dict()
