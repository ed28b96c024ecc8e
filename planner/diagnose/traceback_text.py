"""Tracebacks in all the forms they are printed in, to frames and the phase of the run. Pure text.

Forms: Python's own, IPython's (`File x.py:12, in f(…)`), rich's boxes, VS Code's innermost-first list.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from planner.diagnose.records import Frame, RunPhase

MAX_FRAMES = 200
_LONGEST_CODE = 200

_PYTHON = re.compile(
    r'File "(?P<file>[^"\n]{1,400})"(?:, line (?P<line>\d{1,9}))?(?:, in (?P<function>[^\s:]{1,120}))?'
)
_IPYTHON = re.compile(
    r"^(?:Cell In|File )(?P<file>[^,\n]{1,400}?)(?::|, line )(?P<line>\d{1,9})(?:, in (?P<function>[\w.<>]{1,120}))?"
)
_RICH = re.compile(
    r"^[│|]?\s*(?P<file>(?:/|~|\.|[A-Z]:\\"
    r"|<)[^:\n│]{0,400}\.py):(?P<line>\d{1,9})(?:\s+in\s+(?P<function>[\w<>]{1,120}))?"
)
_RICH_CUT = re.compile(r"^[│|]?\s*(?:(?P<digits>\d{1,9})\s+)?(?:in\s+)?(?P<function>[A-Za-z_<]\w{0,120}>?)\s*[│|]?\s*$")
_HEADER = re.compile(r"Traceback \(most recent call last\)|Stack \(most recent call last\)")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|/lib/python\d|[\\/]torch[\\/]|<frozen|importlib"
    r"|[\\/]deepspeed[\\/]|[\\/]accelerate[\\/]"
)

# Where a frame lies tells the phase, by its function's name or by "file:function". A traceback is in the first phase of
# this order that one of its frames names, so that a forward pass inside an evaluation is evaluation, and a
# recomputation inside backward is backward.
_PHASES: tuple[tuple[RunPhase, str, str], ...] = (
    (
        RunPhase.CHECKPOINT_SAVE,
        r"(?:^|_)save_(?:checkpoint|model|state|pretrained|16bit_model|fp16_model|to_checkpoint|optimizer)"
        r"|_save_(?:checkpoint|optimizer|zero|model|to_state|last)|dump_checkpoint|consolidate_state_dict"
        r"|_zero3_consolidated|consolidated_16bit|full_optim_state_dict|gather_full_optim|^_?save$"
        r"|get_full_state_dict|_full_post_state_dict_hook|get_state_dict|gather_state_dict",
        r"model_checkpoint\.py:|checkpoint_connector\.py:dump",
    ),
    (
        RunPhase.CHECKPOINT_LOAD,
        r"load_checkpoint|_load_from_checkpoint|load_optimizer|_load_zero|_load_sharded|(?:^"
        r"|_)resume(?!_from_checkpoint_arg)"
        r"|^restore$|load_state$|_load_optimizer_and_scheduler|load_from_checkpoint|load_training_state"
        r"|_restore_(?!location)|load_universal|load_snapshot|load_ckpt",
        r"torch[\\/]optim[\\/]optimizer\.py:load_state_dict",
    ),
    (
        RunPhase.EVALUATION,
        r"(?:^|_)(?:evaluate|evaluation_loop|prediction_loop|prediction_step|predict|validate"
        r"|validation_step|validation"
        r"|eval_step|run_eval|eval_epoch|val_epoch|test_step|compute_metrics|eval|val|do_eval)$"
        r"|(?:^|_)(?:val|valid|eval|test)_(?:one_)?(?:epoch|step|loop|batch)|^(?:validate|evaluate)_"
        r"|evaluate_and_print_results|nested_concat|nested_gather|pad_and_concatenate"
        r"|pad_across_processes"
        r"|validation_epoch_end|evaluation_epoch|validation_loop|gather_for_metrics|preprocess_logits_for_metrics",
        r"evaluation_loop\.py:",
    ),
    (
        RunPhase.BUILD_MODEL,
        r"from_pretrained|from_config|_load_state_dict_into|_load_pretrained|^load_model|^get_model"
        r"|build_model|create_model"
        r"|setup_model|load_sharded_checkpoint|set_module_tensor_to_device|dispatch_model|_materialize"
        r"|convert_state_dict"
        r"|caching_allocator_warmup|init_model|prepare_model",
        r"^$",
    ),
    (
        RunPhase.BUILD_ENGINE,
        r"_configure_(?:optimizer|zero|distributed|fp16|bf16)|_prepare_deepspeed|initialize_optimizer_states"
        r"|_create_fp(?:16|32)_|_broadcast_model|_setup_for_real_optimizer|_init_fsdp|fully_shard"
        r"|_sync_module|_verify_param_shape"
        r"|_convert_to_deepspeed|broadcast_params|_create_optimizer",
        r"deepspeed[\\/]__init__\.py:initialize|deepspeed[\\/]runtime[\\/].{0,60}\.py:__init__"
        r"|parallel[\\/]distributed\.py:__init__|fully_sharded_data_parallel\.py:__init__",
    ),
    # What serialisation restores without any of the above is a checkpoint.
    (RunPhase.CHECKPOINT_LOAD, r"^load_state_dict$", r"torch[\\/]serialization\.py:"),
    (
        RunPhase.OPTIMIZER_STEP,
        r"_take_model_step|_optimizer_step|optimizer_step|_init_group|_fused_adam|_multi_tensor_adam|_single_tensor"
        r"|clip_grad|unscale_|get_grad_norm|_model_step|unitary_optimizer|^step$|lazy_init_.{0,40}states",
        r"torch[\\/]optim[\\/](?!lr_scheduler).{0,40}:|(?:cpu|fused)_adam\.py:",
    ),
    (
        RunPhase.BACKWARD,
        r"backward|_run_backward|_engine_run|unpack_hook|reduce_(?:ready|independent|ipg)|grad_hook",
        r"^$",
    ),
    (
        RunPhase.DATA,
        r"_next_data|_try_get_(?:data|batch)|collate|^__getitem__$|load_dataset|tokeni[sz]e_function",
        r"torch[\\/]utils[\\/]data[\\/]",
    ),
    (
        RunPhase.FORWARD,
        r"(?:^|_)forward(?:$|_)|_call_impl|compute_loss|training_step|cross_entropy|loss_fn|attention"
        r"|_conv_forward|softmax"
        r"|matmul|^linear$|^train_step$|train_batch|calc_loss",
        r"^$",
    ),
    (
        RunPhase.START,
        r"_cuda_init|_lazy_init|set_device|init_process_group|init_distributed|^barrier$|initialize_distributed",
        r"^$",
    ),
    (RunPhase.BUILD_MODEL, r"^(?:to|cuda|half|_apply|convert|to_empty|npu|xpu|__init__)$", r"^$"),
)
_COMPILED = tuple((phase, re.compile(function), re.compile(place)) for phase, function, place in _PHASES)
_CLOSURE = re.compile(r"closure$")  # Lightning runs forward and backward inside the optimizer's step


def read_frames(lines: Sequence[str]) -> tuple[Frame, ...]:
    """The frames in these lines, in their order."""
    frames: list[Frame] = []
    for text in lines:
        found = _PYTHON.search(text) or _IPYTHON.match(text) or _RICH.match(text)
        if found is not None:
            frames.append(Frame(file=found["file"], line=int(found["line"] or 0), function=found["function"] or ""))
        elif frames and not frames[-1].function:
            frames[-1] = _completed(frames[-1], _RICH_CUT.match(text))
        elif frames and not frames[-1].code:
            frames[-1] = replace(frames[-1], code=text.strip()[:_LONGEST_CODE])
        if len(frames) >= MAX_FRAMES:
            break
    return tuple(frames)


def _completed(frame: Frame, rest: re.Match[str] | None) -> Frame:
    """A frame whose line number rich wrapped onto the next line (`trainer.py:283` / `0 in save_model`)."""
    if rest is None:
        return frame
    return replace(frame, line=int(f"{frame.line}{rest['digits'] or ''}"[:9]), function=rest["function"])


def is_header(text: str) -> bool:
    """Whether a traceback starts on this line."""
    return _HEADER.search(text) is not None


def phase_of(frames: Sequence[Frame]) -> RunPhase:
    """The phase of the run that these frames are in; UNKNOWN when none tells."""
    closures = [place for place, frame in enumerate(frames) if _CLOSURE.search(frame.function)]
    inner = list(frames)[closures[-1] + 1 :] if closures else list(frames)
    for phase, function, place in _COMPILED:
        considered = inner if phase is RunPhase.OPTIMIZER_STEP else frames
        if any(_is_in(frame, function, place) for frame in considered):
            return phase
    return RunPhase.UNKNOWN


def _is_in(frame: Frame, function: re.Pattern[str], place: re.Pattern[str]) -> bool:
    name = frame.function.rsplit(".", 1)[-1]
    return bool(name and function.search(name)) or bool(place.search(f"{frame.file}:{name}"))


def own_frame(frames: Sequence[Frame]) -> Frame | None:
    """The innermost frame of the user's own code, or the innermost of all; None without frames."""
    own = [frame for frame in frames if not _LIBRARY.search(frame.file)]
    return (own or list(frames))[-1] if frames else None
