"""The chosen candidate as files: DeepSpeed JSON, the trainer's task, launch scripts. Values only; nothing is written.

`rundir` writes what is rendered here; `runtime` reads it back.
"""

from planner.emit.ds_config import bucket_elements, render_ds_config, render_ds_config_text

__all__ = ["bucket_elements", "render_ds_config", "render_ds_config_text"]
