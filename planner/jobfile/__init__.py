"""The job file: strict and safe parsing, resolving into a JobSpec, writing it back.

`load_job` parses (`source`, `schema`), `resolve_job` fills in what depends on the catalog, the machine and the traced
module, `dump_job` writes `job.yaml` of the plan folder, `job_hash` names what decides measurements and choice.
"""

from planner.jobfile.dump import dump_job, job_hash
from planner.jobfile.machine import MachineFacts
from planner.jobfile.pin import Pin, parse_pin
from planner.jobfile.resolve import JobFile, load_job, resolve_job

__all__ = ["JobFile", "MachineFacts", "Pin", "dump_job", "job_hash", "load_job", "parse_pin", "resolve_job"]
