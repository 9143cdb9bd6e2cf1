"""What is seen of a sweep: a bar in a terminal, lines elsewhere."""

import sys

from optuna.study import Study
from optuna.trial import TrialState
from tqdm import tqdm

from gumtrace_experiments.loop.run import Run
from gumtrace_experiments.sweep.study import DONE, best, count, say

LOST = "its worker ended"


class Progress:
    """The trials that are done, and lines for those that failed."""

    def __init__(self, study: Study, trials: int):
        self.study, self.trials, self.done = study, trials, count(study, DONE)
        self._reported = set(self._failures())
        self._bar = tqdm(total=trials, initial=self.done, unit="trial", file=sys.stderr, disable=None)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def show(self, run: Run | None = None) -> bool:
        """How things are; says whether the study has its trials."""
        for number, reason in self._failures().items():
            if number not in self._reported:
                self._reported.add(number)
                say(f"trial {number} failed: {reason}")
        before, self.done = self.done, count(self.study, DONE)
        parts = [f"best {trial.value:.5g} (trial {trial.number})" for trial in best(self.study)[:1]]
        if self._bar.disable:  # there is no terminal
            if self.done > before:
                say(", ".join([f"{self.done} of {self.trials} trials", *parts]))
        else:
            if run is not None:
                score = run.valid[run.experiment.selection_metric]
                parts.append(f"now {score:.5g} at {run.iteration} of {run.config.iterations}")
            self._bar.update(self.done - before)
            self._bar.set_postfix_str(", ".join(parts))
        return self.done >= self.trials

    def _failures(self) -> dict[int, str]:
        """Why trials failed or diverged."""
        reasons = {}
        for trial in self.study.get_trials(deepcopy=False, states=(TrialState.FAIL, TrialState.PRUNED)):
            if reason := trial.user_attrs.get("reason", LOST if trial.state == TrialState.FAIL else ""):
                reasons[trial.number] = reason
        return reasons
