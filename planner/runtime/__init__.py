"""Child programs that run models: the only code that imports torch, DeepSpeed and transformers.

Started as `python -m planner.runtime.…`, imported by nobody above. Owns building a model and an engine for a
`TrialTask`, feeding it, measuring it, and the reference trainer. Leaves choosing, classifying and reporting to the
parents that start it.
"""
