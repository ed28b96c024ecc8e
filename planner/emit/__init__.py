"""The chosen candidate as files: DeepSpeed JSON, the trainer's task, launch scripts. Values only; nothing is written.

`rundir` writes what is rendered here; `runtime` reads it back.
"""

from planner.emit.command import following_notes, read_command
from planner.emit.conversion import render_conversion, render_surviving
from planner.emit.ds_config import bucket_elements, render_ds_config, render_ds_config_text
from planner.emit.explain import explain_ds_config
from planner.emit.explain_files import FILES, explain_lines
from planner.emit.files import EmittedFile, LaunchPaths
from planner.emit.launch import node_order_refusal, render_launch
from planner.emit.program import script_call
from planner.emit.reduced import reduced_differences, reduced_task
from planner.emit.script_config import as_reference, without_auto
from planner.emit.task import NOT_EMITTED, render_task, render_task_text
from planner.emit.topology import node_shape, stage_groups

__all__ = [
    "FILES",
    "NOT_EMITTED",
    "EmittedFile",
    "LaunchPaths",
    "as_reference",
    "bucket_elements",
    "explain_ds_config",
    "explain_lines",
    "following_notes",
    "node_order_refusal",
    "node_shape",
    "read_command",
    "reduced_differences",
    "reduced_task",
    "render_conversion",
    "render_ds_config",
    "render_ds_config_text",
    "render_launch",
    "render_surviving",
    "render_task",
    "render_task_text",
    "script_call",
    "stage_groups",
    "without_auto",
]
