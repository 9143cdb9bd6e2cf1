"""Numbers in the prose of the lab notes on ListOps with E-REINFORCE+ in smaller runs are those of the runs."""

from lab_notes import RESULTS, notes

from gumtrace_experiments.report.records import collect


def test_settings_of_e_reinforce():
    runs = collect([RESULTS / "tuning" / "listops-noise.jsonl"])
    varied = ("lr", "classifier_lr", "samples", "clip")
    by_setting = {tuple(r.config[name] for name in varied): r for r in runs}
    shared = [{name: x for name, x in r.config.items() if name not in varied} for r in runs]
    assert (len(by_setting), all(config == shared[0] for config in shared)) == (5, True)
    full = collect([RESULTS / "listops" / "listops-others.jsonl"])
    full = {tuple(r.config[name] for name in varied) for r in full if r.config["estimator"] == "NoiseREINFORCE"}
    assert full == {(3e-4, 0.0, 4, 0.0), (3e-4, 1e-3, 10, 0.0)}
    assert full <= by_setting.keys()
    found = {
        key: [f"{100 * r.result['test'][m]:.1f}" for m in ("accuracy", "precision")] for key, r in by_setting.items()
    }
    told = (
        "{} and {} with the learning rate of the full runs, 3e-4, for both networks; "
        "- {} and {} with 1e-3 for the classifier, {} and {} if gradients are also clipped to norm 1; "
        "- {} and {} with 1e-3 for the classifier and ten structures of each expression in place of four; "
        "- {} and {} with 1e-3 for the classifier and 1e-4 for the encoder."
    )
    order = [
        (3e-4, 0.0, 4, 0.0),
        (3e-4, 1e-3, 4, 0.0),
        (3e-4, 1e-3, 4, 1.0),
        (3e-4, 1e-3, 10, 0.0),
        (1e-4, 1e-3, 4, 0.0),
    ]
    text = notes("listops")
    assert told.format(*(x for key in order for x in found[key])) in text
    config = shared[0]
    size = f"up to {config['longest']} tokens, {config['iterations']:,} iterations on a CPU, `--curriculum"
    assert f"{size} {config['curriculum']}`, one start, one seed" in text
    assert f"in percent of {config['test_size']:,} test expressions" in text
