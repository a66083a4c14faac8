"""Every kind of bad input has one answer: see docs/engine.md."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from _literal import (
    NAMES,
    NAN,
    Flow,
    advantages,
    close,
    common_pull,
    gradients,
    kl_gradient,
    make_balancer,
    make_data,
    make_model,
    marble_coefficients,
    probability,
    run_step,
)
from torch import nn

from marble import Balancer
from marble.errors import MarbleError, RewardError
from marble.objectives import NFT, Point

METHODS = ["marble", "uniform", "weighted_sum", "gdpo", "upgrad", "progress"]


# -- what it is made with ----------------------------------------------------------------------


def test_things_of_another_kind(model):
    for wrong, said in (
        ({"model": list(model.parameters())}, "give the nn.Module .* not a list"),
        ({"names": "ocr"}, r"give a list of reward names, \['ocr'\]"),
        ({"objective": "nft"}, r"objective = 'nft': .* such as marble.objectives.NFT\(\)"),
        ({"objective": NFT}, r"give an objective that is made"),
    ):
        made = {"model": model, "names": NAMES, **wrong}
        with pytest.raises(MarbleError, match=said):
            Balancer(made.pop("model"), made.pop("names"), **made)


# -- rewards and advantages -------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
@pytest.mark.parametrize("method", METHODS)
def test_infinite_reward_is_named(model, data, method, value):
    data.rewards[2, 5] = value
    with pytest.raises(RewardError, match=r"'taste' is -?inf for sample 5"):
        make_balancer(model, method=method).batch(data.rewards, data.group)


def silence(data, k, how):
    data.rewards[k] = {"constant": 0.25, "inapplicable": NAN}[how]


@pytest.mark.parametrize("how", ["constant", "inapplicable"])
def test_silent_reward_leaves_the_step_and_keeps_its_average(model, data, how):
    balancer = make_balancer(model)
    before, _ = run_step(balancer, model, data, 0)
    silence(data, 1, how)
    g = gradients(model, data, probability(advantages(data.rewards, data.group))[[0, 2]])
    _, c = marble_coefficients(g)
    for step, wanted in ((10, c @ g), (11, None)):
        report, got = run_step(balancer, model, data, step)
        assert report.coefficients_K[1] == 0 and report.finite
        assert report.alpha_K[1] == pytest.approx(before.alpha_K[1])
        assert "Silent: clip." in report.notes
        assert close(got, report.coefficients_K[[0, 2]] @ g)
        if wanted is not None:
            assert close(got, wanted)


def test_silent_reward_can_be_kept_in_the_solve(model, data):
    """drop_silent=False is the published rule: a constant reward's gradient is the common pull."""
    silence(data, 1, "constant")
    r = probability(advantages(data.rewards, data.group))
    g = gradients(model, data, r)
    assert (r[1] == 0.5).all()
    report, got = run_step(make_balancer(model, drop_silent=False), model, data)
    assert close(got, marble_coefficients(g)[1] @ g, 1e-8) and report.notes == ()


def test_reward_silent_in_this_part_of_the_epoch(model, data):
    """Silence is judged on the step's own samples, not on the epoch's."""
    data.rewards[0, 4:] = 0.5
    balancer = make_balancer(model, method="uniform")
    batch = balancer.batch(data.rewards, data.group).select(torch.arange(4, 8))
    part = make_data()
    for name in ("x_0", "x_t", "t", "noise", "v_old", "v_ref"):
        setattr(part, name, getattr(data, name)[4:])
    report, _ = run_step(balancer, model, part, batch=batch)
    # clip does not apply to this half (see make_data), ocr says nothing about it.
    assert report.coefficients_K.tolist() == [0, 0, 1]


@pytest.mark.parametrize("how", ["constant", "inapplicable"])
@pytest.mark.parametrize("method", METHODS)
def test_all_silent_is_no_step(model, data, method, how):
    for k in range(3):
        silence(data, k, how)
    balancer = make_balancer(model, method=method, measure_every=2)
    for step in (0, 1):
        report, got = run_step(balancer, model, data, step)
        assert not got.any() and report.finite
        assert any("All rewards are silent" in note for note in report.notes)


GRAM = ["marble", "mgda", "upgrad", "dualproj", "cagrad", "pcgrad", "nash", "imtl_g", "aligned"]


@pytest.mark.parametrize("how", ["constant", "inapplicable"])
def test_all_silent_keeps_what_is_outside_the_balance(model, data, how):
    """target="reward": the common pull of the samples that a reward applies to, like the KL."""
    for k in range(3):
        silence(data, k, how)
    balancer = make_balancer(model, target="reward")
    outside = 0.3 * kl_gradient(model, data)
    if how == "constant":
        outside = outside + common_pull(model, data)
    for step in (0, 1):
        assert close(run_step(balancer, model, data, step, kl=0.3)[1], outside)


@pytest.mark.parametrize("method", [*GRAM, "uniform", "weighted_sum", "progress"])
def test_one_reward_is_plain_training(model, method):
    data = make_data(k=1)
    g = gradients(model, data, probability(advantages(data.rewards, data.group)))
    balancer = make_balancer(model, ["ocr"], method=method)
    for step in (0, 1):
        assert close(run_step(balancer, model, data, step)[1], g[0])


@pytest.mark.parametrize("method", ["marble", "mgda", "upgrad", "nash", "imtl_g", "uniform"])
def test_duplicated_reward_changes_nothing_else(model, data, method):
    """Duplicates get equal weight; min-norm gives the pair what the one would have had."""
    data.rewards[2] = data.rewards[0]
    report, got = run_step(make_balancer(model, method=method), model, data)
    assert report.finite and np.isfinite(got).all()
    assert report.coefficients_K[0] == pytest.approx(report.coefficients_K[2], rel=1e-6)
    if method == "marble":
        data.rewards = data.rewards[:2]
        _, pair = run_step(make_balancer(model, NAMES[:2]), model, data)
        assert abs(np.dot(pair, got)) == pytest.approx(
            np.linalg.norm(pair) * np.linalg.norm(got), rel=1e-9
        )


# -- the model --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("step", [0, 1])
@pytest.mark.parametrize("where", ["output", "inside", "reference"])
def test_non_finite_model(model, data, method, step, where):
    """The step is void: .grad is None, the balance's state stays, the sample is named."""
    balancer = make_balancer(model, method=method, every=2, measure_every=2)
    run_step(balancer, model, make_data(seed=9), 0)
    state = balancer.state_dict()
    if method == "progress":  # it has rightly seen the rewards, which are in order
        state = None
    if where == "inside":
        data.x_t[6, 0, 0] = NAN  # everything in the model's graph is NaN, weights' inputs too
    elif where == "reference":
        data.v_ref[6, 0, 0] = NAN
    else:
        data.v_old[6, 0, 0] = float("inf")
    report, _ = run_step(balancer, model, data, step + 2, kl=0.1)
    assert not report.finite and report.bad_samples == [6]
    assert any("not finite: no step" in note for note in report.notes)
    assert all(p.grad is None for p in model.parameters())
    assert state is None or balancer.state_dict() == state
    # The next step is as if nothing had happened.
    report, got = run_step(balancer, model, make_data(seed=9), 3)
    assert report.finite and np.isfinite(got).all() and got.any()


def test_a_careless_loop_survives_a_non_finite_step(model, data):
    """optimizer.step() without looking at the report leaves weights and moments as they were."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.1)
    balancer = make_balancer(model)
    before = [p.detach().clone() for p in parameters]
    data.x_t[0] = NAN
    run_step(balancer, model, data)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, parameters)) and not optimizer.state


class Overflowing(Flow):
    """Finite forward; the backward through its first layers overflows while `on`."""

    on = True

    def middle(self, h):
        if self.on:
            h.register_hook(lambda gradient: gradient * 1e200 * 1e200)
        return h


def test_overflow_in_the_backward_alone(data):
    """Losses are finite, the gradient is not: noticed on both kinds of step, rewards named."""
    torch.manual_seed(0)
    model = Overflowing().double()
    balancer = make_balancer(model)
    before = balancer.state_dict()
    for step, said in ((0, "gradient of ocr, clip, taste is not finite"), (1, "is not finite")):
        report, _ = run_step(balancer, model, data, step)
        assert not report.finite and report.bad_samples == []
        assert any(said in note for note in report.notes)
        assert all(p.grad is None for p in model.parameters())
    assert balancer.state_dict() == before  # the balance has not met it
    model.on = False
    assert run_step(balancer, model, data)[0].finite


def test_fp16_output_overflows_to_a_void_step():
    model = make_model(dtype=torch.float32)
    data = make_data(dtype=torch.float32)
    balancer = make_balancer(model)
    balancer.scale = 2.0**24
    plan = balancer.begin_step(balancer.batch(data.rewards, data.group), 0, micro_batches=1)
    with plan.recording():
        v = model(data.x_t, data.t).half()
    half = Point(data.x_t.half(), data.t, data.x_0.half(), v_old=data.v_old.half())
    plan.backward(v, half, torch.arange(8))
    report = plan.finish()
    assert not report.finite and report.bad_samples


class WithBias(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = make_model()
        self.shift = nn.Parameter(torch.zeros(4, dtype=torch.float64))

    def forward(self, x, t):
        return self.inner(x, t) + self.shift


def test_uncovered_parameter_is_refused_at_once():
    model = WithBias()
    with pytest.raises(MarbleError, match="shift"):
        make_balancer(model)
    with pytest.raises(MarbleError, match="shift"):
        make_balancer(model, method="uniform", measure_every=10)
    # A method that takes one backward trains any parameter.
    report, _ = run_step(make_balancer(model, method="uniform"), model, make_data())
    assert report.finite and model.shift.grad.any()


def test_model_without_trainable_parameters():
    with pytest.raises(MarbleError, match="no trainable parameter"):
        make_balancer(make_model().requires_grad_(False))
    with pytest.raises(MarbleError, match="no trainable parameter"):
        make_balancer(make_model().requires_grad_(False), method="uniform")


# -- shapes and bookkeeping -------------------------------------------------------------------


def test_wrong_reward_shapes(model, data):
    balancer = make_balancer(model)
    with pytest.raises(MarbleError, match="3 names for 2 rewards"):
        balancer.batch(data.rewards[:2], data.group)
    with pytest.raises(MarbleError, match="one integer per sample"):
        balancer.batch(data.rewards, data.group[:5])
    with pytest.raises(MarbleError, match="one integer per sample"):
        balancer.batch(data.rewards, data.group.double())
    with pytest.raises(MarbleError, match=r"\[K rewards, N samples\]"):
        balancer.batch(data.rewards[0], data.group)


def test_wrong_backward_shapes(model, data):
    balancer = make_balancer(model, method="uniform")
    plan = balancer.begin_step(balancer.batch(data.rewards, data.group), 0, micro_batches=1)
    v = model(data.x_t, data.t)
    good = Point(data.x_t, data.t, data.x_0, v_old=data.v_old)
    with pytest.raises(MarbleError, match="v_old has shape"):
        plan.backward(v, replace(good, v_old=data.v_old[:, :2]), torch.arange(8))
    with pytest.raises(MarbleError, match="one timestep per sample"):
        plan.backward(v, replace(good, t_B=data.t[:3]), torch.arange(8))
    for index in (torch.arange(7), torch.arange(1, 9), torch.arange(8) - 1):
        with pytest.raises(MarbleError, match=r"index must give the position .*0 to 7"):
            plan.backward(v, good, index)


@pytest.mark.parametrize("step", [0, 1])
def test_samples_left_out_or_repeated_are_noticed(model, data, step):
    balancer = make_balancer(model)
    with pytest.raises(MarbleError, match=r"Sample 6 .* 0 times .* not 1 \(2 such samples\)"):
        run_step(balancer, model, data, step, chosen=range(6))
    with pytest.raises(MarbleError, match=r"Sample 0 .* 2 times"):
        run_step(balancer, model, data, step, chosen=[0, *range(8)])


@pytest.mark.parametrize("told", [1, 2, 9])
def test_a_wrong_number_of_micro_batches_does_no_harm(model, data, told):
    g = gradients(model, data, probability(advantages(data.rewards, data.group)))
    balancer = make_balancer(model)
    model.zero_grad()
    plan = balancer.begin_step(balancer.batch(data.rewards, data.group), 0, micro_batches=told)
    for at in torch.arange(8).chunk(4):
        with plan.recording():
            v = model(data.x_t[at], data.t[at])
        plan.backward(v, Point(data.x_t[at], data.t[at], data.x_0[at], v_old=data.v_old[at]), at)
    c = plan.finish().coefficients_K
    got = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad]).numpy()
    assert close(got, c @ g)


# -- settings ---------------------------------------------------------------------------------


def test_contradictory_floors_relax_by_priority_and_say_so(model, data):
    """Two rewards that want opposite things cannot both keep a floor."""
    data.rewards[2] = -data.rewards[0]
    floors, priorities = {"ocr": 0.9, "taste": 0.9}, {"ocr": 2.0}
    report, got = run_step(make_balancer(model, floors=floors, priorities=priorities), model, data)
    assert report.finite
    said = [note for note in report.notes if "Floors cannot all hold" in note]
    assert said and all("taste" in note for note in said)
    g = gradients(model, data, probability(advantages(data.rewards, data.group)))
    cos = g[0] @ got / np.linalg.norm(g[0]) / np.linalg.norm(got)
    assert cos >= 0.9 - 1e-6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "marbel"}, "did you mean marble"),
        ({"weights": {"orc": 1.0}}, "no reward 'orc'; known: ocr, clip, taste"),
        ({"floors": {"orc": 0.0}}, "Did you mean 'ocr'"),
        ({"method": "uniform", "floors": {"ocr": 0.0}}, "looks at no gradients"),
        ({"target": "all"}, "choose 'full' or 'reward'"),
        ({"method": "single"}, "give gate="),
        ({"method": "sequential"}, "give gate="),
        ({"method": "fixed", "weights": dict.fromkeys(NAMES, 0.0)}, "all 0"),
        ({"method": "weighted_sum", "weights": {"ocr": -1.0}}, "at least 0"),
        ({"probe": 0.0}, "fraction"),
        ({"every": 0}, "n ≥ 1"),
    ],
)
def test_settings(model, options, message):
    with pytest.raises(MarbleError, match=message):
        make_balancer(model, **options)


def test_repeated_names(model):
    with pytest.raises(MarbleError, match="ocr occurs twice"):
        Balancer(model, ["ocr", "ocr"])


def test_an_unknown_method_is_answered_with_every_method_that_works():
    """Those that are no Gram rule too; each of them is then accepted."""
    from marble.balance.gates import only
    from marble.recipe.balance import METHODS

    model = torch.nn.Linear(2, 2, bias=False)
    with pytest.raises(MarbleError, match="did you mean marble"):
        Balancer(model, ["a", "b"], method="marbel")
    with pytest.raises(MarbleError) as caught:
        Balancer(model, ["a", "b"], method="x")
    told = str(caught.value).partition("known: ")[2].split(", ")
    assert set(told) == set(METHODS)
    for method in told:
        gate = only(2, 0) if method in ("single", "sequential") else None
        Balancer(model, ["a", "b"], method=method, gate=gate)
