"""The orders in which sequences are generated, and the settings that both experiments share."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from gumtrace.estimators import ESTIMATORS
from gumtrace_experiments.config import Config
from gumtrace_experiments.parentheses.data import LONGEST

Order = Literal["left-to-right", "smart", "semi-supervised", "unsupervised"]
ORDERS: tuple[str, ...] = get_args(Order)
FIXED = ORDERS[:2]  # functions of the sequence: there is no encoder
# A relaxed order is none that a sequence can be generated in, and surrogates read a structure's entries as numbers.
USABLE = {name: cls for name, cls in ESTIMATORS.items() if not cls.differentiates and "surrogate" not in cls.settings()}
if TYPE_CHECKING:
    Choice = str
else:
    Choice = Literal[tuple(USABLE)]


@dataclass(frozen=True)
class OrderConfig(Config):
    estimators: ClassVar = USABLE

    estimator: Choice = "RELAX"
    """Of the encoder's gradient; fixed orders need none."""
    calls: int = 100
    iterations: int = 10_000
    lr: float = 1e-3
    order: Order = "semi-supervised"
    """In which sequences are generated: from left to right; a parenthesis and the one that closes it ("smart"); as an
    encoder finds, with the smart order known of some sequences, or of none."""
    types: int = 10
    """Types of parentheses."""
    supervision: float = 0.1
    """With a semi-supervised order: share of the training set whose smart order is known."""
    hidden: int = 300
    """Width of embeddings and LSTMs."""
    longest: int = LONGEST
    """Tokens of the longest sequences."""
    train_size: int = 20_000
    test_size: int = 2500
    """Size of the test set, and of the validation set."""
    bound_samples: int = 1000
    """Orders for each sequence in the bound of the likelihood (IWAE) on test."""
    valid_bound_samples: int = 50
    """The same on validation."""
    generated: int = 200_000
    """Different sequences that the best model generates in the end."""

    def __post_init__(self):
        super().__post_init__()
        if self.order not in ORDERS:
            raise ValueError(f"unknown order {self.order!r}: choose from {', '.join(ORDERS)}")
        for name in ("types", "hidden", "train_size", "test_size", "bound_samples", "valid_bound_samples", "generated"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 2 <= self.longest <= 30 or self.longest % 2:
            raise ValueError(f"longest must be even and from 2 to 30, got {self.longest}")
        if not 0 < self.supervision < 1:
            raise ValueError(f"supervision must be more than 0 and less than 1, got {self.supervision}")
        if self.order == "semi-supervised" and not (self.known and self.known < self.train_size):
            raise ValueError(
                f"supervision: a share of {self.supervision} of {self.train_size} sequences leaves no sequence with an "
                "order, or none without"
            )

    @property
    def k(self) -> int:
        return 1 if self.order in FIXED else super().k

    @property
    def known(self) -> int:
        """Sequences of the training set, the first ones, whose order is known to a semi-supervised model."""
        return round(self.supervision * self.train_size) if self.order == "semi-supervised" else 0

    def known_beside(self, count: int) -> int:
        """Of so many sequences without an order: as many as are in the training set for these, and at least one."""
        return max(round(count * self.known / (self.train_size - self.known)), 1) if self.known else 0
