"""A failed run's log to the cause of its failure, with evidence in numbers and ranked fixes.

    sources -> scanner -> recognise, figures, traceback, tables, telemetry -> LogFacts
    LogFacts -> decide (rules_*) -> Verdict
    Verdict + Setting -> fixes, pricing -> Fix, in order
    snapshot_pickle -> snapshot -> who held memory at the peak

Everything but `pricing` and `suggest` (which ask `cost`) and `sources` (which opens files) is pure text and arithmetic
without numpy; nothing is imported here, so that a reader of one part does not pay for the others.
"""
