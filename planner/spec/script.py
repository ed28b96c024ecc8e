"""The user's own training script as a trial runs it.

Owns the words of the call; which of them a plan decides is `planner.emit`'s business, running them `planner.runtime`'s.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec._record import record, require

# Stand in the words for files whose place is known only where the script runs. No real word can hold a NUL character.
CONFIG_MARK = "\0ds_config.json\0"
TASK_MARK = "\0task.json\0"


@record
class ScriptCall:
    """A Python program of the user's: `words[0]` is the script (or, `is_module`, the module), the rest its arguments.

    `folder`: where it starts (absolute). `accelerate_words`: the options of `accelerate launch` before the script, ()
    without it. `passes_local_rank`: its launcher adds `--local_rank=N` before the arguments, as deepspeed's does.
    """

    words: tuple[str, ...]
    folder: str
    is_module: bool = False
    uses_accelerate: bool = False
    accelerate_words: tuple[str, ...] = ()
    passes_local_rank: bool = False

    def __post_init__(self) -> None:
        require(bool(self.words), "a call names a script")

    def filled(self, *, config_path: str, task_path: str) -> ScriptCall:
        """The same call with the places of its files."""

        def fill(words: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(word.replace(CONFIG_MARK, config_path).replace(TASK_MARK, task_path) for word in words)

        return replace(self, words=fill(self.words), accelerate_words=fill(self.accelerate_words))
