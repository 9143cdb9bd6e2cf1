"""The graph-layout experiment: what is tuned."""

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution
from tiny_runs import GraphLayout

pytestmark = pytest.mark.usefixtures("one_thread")
RATE = FloatDistribution(1e-5, 1e-3, log=True)


@pytest.mark.parametrize(
    ("estimator", "more"),
    [
        ("TraceREINFORCE", {"samples": CategoricalDistribution([2, 4, 8, 16])}),
        ("RELAX", {"estimator_lr": RATE, "critic_hidden": CategoricalDistribution([256, 512, 1024, 2056])}),
        ("StochasticSoftmax", {"temperature": FloatDistribution(0.1, 10.0, log=True)}),  # which the paper does not say
    ],
)
def test_the_paper_s_ranges(estimator, more):
    trial, config = optuna.create_study().ask(), GraphLayout.config_type(estimator=estimator)
    assert GraphLayout.search(config, trial) == config.replace(**trial.params)
    assert trial.distributions == {"lr": RATE, "decoder_lr": RATE, **more}
