"""An experiment of somebody who has gumtrace installed: only what has no default."""

import torch
from torch import nn

import gumtrace as gt
from gumtrace_experiments import Config, Experiment, build_estimator


class Mine(Experiment):
    """Which two of six numbers are the largest? The answer is never shown, only how much it was worth."""

    name = "mine"
    selection_metric = "worth"

    def __init__(self, config: Config, data):
        super().__init__(config, data)
        self.encoder = nn.Linear(6, 6)
        self.estimator = build_estimator(config)

    @staticmethod
    def load(config, folder, device):
        numbers = torch.randn(96, 6, generator=torch.Generator().manual_seed(0)).to(device)
        return dict(zip(("train", "valid", "test"), numbers.split(32), strict=True))

    @property
    def items(self):
        return len(self.data["train"])

    def loss(self, index, generator):
        numbers = self.data["train"][index]
        dist = gt.Subset(self.encoder(numbers), k=2, validate_args=False)
        loss = self.estimator(dist, lambda x: -(x * numbers).sum(-1), generator=generator).mean()
        return loss, {"worth": -loss}

    def evaluate(self, split, generator):
        numbers = self.data[split]
        return {"worth": (gt.Subset(self.encoder(numbers), k=2).mode * numbers).sum(-1).mean().item()}
