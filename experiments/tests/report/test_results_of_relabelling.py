"""Numbers in the prose of the lab notes on ListOps with relabelled operators are those of the runs."""

from lab_notes import RESULTS, ROOT, each_of, means_of, notes, percent_of

from gumtrace_experiments.report.records import collect


def test_what_the_notes_say_of_operators_read_as_others():
    runs = {run.config["relabel"]: run for run in collect([RESULTS / "tuning" / "listops-relabel.jsonl"])}
    config, text = runs[0.0].config, notes("listops").partition("## Operators read as others")[2].partition("\n## ")[0]
    assert all({**config, "relabel": share} == run.config for share, run in runs.items())
    assert f"up to {config['longest']} tokens, {config['iterations']:,} iterations of {config['calls'] // 4} " in text
    assert f"`--curriculum {config['curriculum']}`, one start, one seed" in text
    assert (config["samples"], config["starts"]) == (4, 1)
    answers, edges = (
        {share: f"{100 * run.result['test'][name]:.1f}" for share, run in runs.items()}
        for name in ("accuracy", "precision")
    )
    told = f"{answers[0.3]} % of answers and **{edges[0.3]} % of edges** are right with a share of 0.3, "
    assert told + f"and {answers[0.0]} and {edges[0.0]} % without" in text
    assert f"A share of 0.6 does about as well, {answers[0.6]} and {edges[0.6]} %" in text
    assert f"0.15 finds fewer edges, {answers[0.15]} and {edges[0.15]} %" in text
    assert f"one seed and {config['test_size']:,} test expressions" in text


def test_what_the_notes_say_of_operators_read_as_others_at_full_size():
    relabelled, ten = (
        {run.seed: run for run in collect([RESULTS / "listops" / f"{name}.jsonl"])}
        for name in ("listops-relabel", "listops")
    )
    plain = {seed: ten[seed] for seed in relabelled}
    assert (list(relabelled), len(ten)) == ([1, 2], 10)
    assert {run.config["starts"] for run in (*relabelled.values(), *plain.values())} == {1}
    usual = {"evaluate_every", "relabel"}
    for seed, run in relabelled.items():
        assert {key for key, x in plain[seed].config.items() if run.config[key] != x} <= usual
    (first, second), (edges, more) = (each_of(relabelled, metric) for metric in ("accuracy", "precision"))
    told = f"{first} and {second} % of answers and {edges} and {more} % of edges are right on test"
    (first, second), (edges, more) = (each_of(plain, metric) for metric in ("accuracy", "precision"))
    assert told in notes("listops")
    every = (
        {run.config["evaluate_every"] for run in plain.values()},
        {run.config["evaluate_every"] for run in relabelled.values()},
    )
    assert every == ({1000}, {2500})
    assert f"(`listops.jsonl`), had {first} and {second} %, and {edges} and {more} %; all ten" in notes("listops")
    assert f"all ten had {' and '.join(means_of(ten))} % on average" in notes("listops")
    minutes = [round(run.result["seconds"] / 60) for run in relabelled.values()]
    assert f"{minutes[0]} and {minutes[1]} minutes, each on one core" in notes("listops")


def test_what_the_notes_say_of_operators_read_as_others_with_more_expressions():
    relabelled, plain = (
        {run.seed: run for run in collect([RESULTS / "listops" / f"listops-items-starts{more}.jsonl"])}
        for more in ("-relabel", "")
    )
    assert list(relabelled) == list(plain) == [1, 2, 3, 4, 5]
    for seed, run in relabelled.items():
        assert {key for key, x in plain[seed].config.items() if run.config.get(key) != x} == {"relabel"}
    told = "five seeds answer {} % and have {} % of edges right on test**"
    assert told.format(*means_of(relabelled)) in notes("listops")
    results = (ROOT / "docs" / "results.md").read_text()
    assert "`relabel = 0.3`: {} and {} (seeds 1 to 5).".format(*means_of(relabelled)) in results
    assert "without `--relabel` had {} and {} % on average".format(*means_of(plain)) in notes("listops")
    best, worst = (
        [f"{end(percent_of(relabelled, metric)):.1f}" for metric in ("accuracy", "precision")] for end in (max, min)
    )
    assert "the best has {} and {} %, the worst {} and {} %".format(*best, *worst) in notes("listops")
    assert "by seed 4, the best of the five on test:" in notes("listops")
    for metric in ("accuracy", "precision"):
        assert relabelled[4].result["test"][metric] == max(r.result["test"][metric] for r in relabelled.values())
    (minutes,) = {round(run.result["seconds"] / 60) for run in relabelled.values()}
    assert (minutes, "four minutes on an H200" in notes("listops")) == (4, True)
