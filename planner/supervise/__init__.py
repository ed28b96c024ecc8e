"""Carries a training through running out of memory: watches the ranks from outside, ends them, and starts again with
less.

    policy    what to do after an attempt: pure
    evidence  why an attempt ended, from what ranks left and the log: pure
    command   the launch command of one attempt: pure
    attempt   one start of all ranks of this node, watched to its end
    nodes     several nodes agreeing, through the plan folder that they share
    loop      attempts one after the other

Leaves the diagnosis and its words to `diagnose` (joined in `app.supervise`), what a rank does to `runtime`, and the
fallbacks themselves to whoever planned.
"""
