"""The trace explorer: a page on this machine on which one steps through the runs of every structure.

`gumtrace explore` serves it. The page only draws: every number comes from `answers.answer`, which runs the library.
"""
