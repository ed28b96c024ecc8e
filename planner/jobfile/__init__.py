"""The job file: strict and safe parsing, resolving into a JobSpec, writing it back.

`load_job` parses (`source`, `schema`), `resolve_job` fills in what depends on the catalog, the machine and the traced
module, `dump_job` writes `job.yaml` of the plan folder, `job_hash` names what decides measurements and choice.
"""

from planner.jobfile.choices import ClusterChoice
from planner.jobfile.dump import dump_job, job_hash
from planner.jobfile.machine import MachineFacts
from planner.jobfile.pin import Pin, parse_pin
from planner.jobfile.resolve import JobFile, list_choices, load_job, resolve_job
from planner.jobfile.site import SiteDefault, defaults_sentence, list_defaults

__all__ = [
    "ClusterChoice",
    "JobFile",
    "MachineFacts",
    "Pin",
    "SiteDefault",
    "defaults_sentence",
    "dump_job",
    "job_hash",
    "list_choices",
    "list_defaults",
    "load_job",
    "parse_pin",
    "resolve_job",
]
