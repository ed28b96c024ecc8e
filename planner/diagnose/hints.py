"""What people and logs say about the circumstances of a failure, in words. Pure text.

Hints are looked for in notes, in short logs and in a long log's last lines only: in a long log every word occurs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from planner.diagnose.records import Hint, HintSeen

_HINTS: tuple[tuple[Hint, re.Pattern[str]], ...] = (
    (Hint.WSL, re.compile(r"\bWSL\d?\b|microsoft-standard|\bdxgkrnl\b", re.IGNORECASE)),
    (Hint.WINDOWS, re.compile(r"\bWindows (?:10|11|Server)|[A-Z]:\\(?:Users|Program|Python)|\bwin32\b|win_amd64")),
    (
        Hint.MIG,
        re.compile(
            r"\bMIG[ -](?:\d+[gc]\.|GPU|[0-9a-f]{8})|MIG (?:slice|instance|device)|\b\d+g\.\d+gb\b", re.IGNORECASE
        ),
    ),
    (Hint.CONTAINER, re.compile(r"\b(?:docker|container|kubernetes|cgroup|/kubepods|pod/)\b", re.IGNORECASE)),
    (
        Hint.SCRATCH_FITS,
        re.compile(
            r"(?i:(?:from scratch|first run|initial run|without (?:resum|load)\w*|training itself"
            r"|fresh (?:run|start)).{0,60}(?:fits?|works?|runs?|fine|ok)\b"
            r"|(?:fits?|works?|runs?) (?:fine )?(?:from scratch|the first time|on the first run)|first_run: fits)"
        ),
    ),
    (
        Hint.RESUMES,
        re.compile(
            r"(?i:\b(?:when|while|on|after|at|upon|during|but)\s(?:i |we |it )?(?:\w+ ){0,2}resum\w+"
            r"|resum\w+ (?:does not|doesn't|fails|oom|runs out|from (?:a |the )?checkpoint)"
            r"|restart(?:ing)? from (?:a |the )?checkpoint"
            r"|resume_from_checkpoint(?!['\"]?\s{0,2}[:=]\s{0,2}(?:None|False|null|['\"]{2}))"
            r"|after (?:re)?loading (?:the |a )?checkpoint|unable to resume)"
        ),
    ),
    (
        Hint.SAVES,
        re.compile(
            r"(?i:(?:when|while|during|at|after|on|only)\s(?:\w+ ){0,2}(?:sav(?:e|ing)"
            r"|checkpointing)\b(?!.{0,20}activation)|sav(?:e|ing)(?: of)?(?: the| a| every| each)? (?:model "
            r"|first |last |final )?(?:checkpoint|model|state).{0,60}(?:oom|out of memory|fails?|crash|kill"
            r"|spike)"
            r"|checkpoint sav(?:e|ing)|save-time|save_model)"
        ),
    ),
    (
        Hint.EVALUATES,
        re.compile(
            r"(?i:(?:when|while|during|in|at|after|only)\s(?:\w+ ){0,2}(?:eval(?:uat\w+)?|validat\w+"
            r"|predict\w+)\b|eval(?:uation)? (?:loop |step |phase )?(?:oom|runs out|fails|crash)"
            r"|eval_accumulation_steps"
            r"|train(?:ing)? (?:itself )?(?:works|fits|runs|is fine).{0,60}eval)"
        ),
    ),
    (
        Hint.GROWS,
        re.compile(
            r"(?i:(?:memory|usage|vram|ram|gpu use|rss|consumption)(?: \w+){0,3} (?:keeps? |steadily "
            r"|slowly |gradually |constantly |continually |linearly )?(?:grow\w*|increas\w+|accumulat\w+|climb\w*"
            r"|ris(?:es|ing)|creep\w*|leak\w*)\b(?!.{0,30}batch size)"
            r"|memory leak|leak(?:s|ing)? memory|(?:grow\w*|increas\w+|climb\w*|ris(?:es"
            r"|ing)) (?:\w+ ){0,3}(?:every|each|with each|per|over|from) (?:step|iteration|epoch|batch|\d)"
            r"|after (?:several|a few|some|many|\d[\d,k]*) (?:hours|steps|iterations|epochs)\b.{0,60}(?:oom"
            r"|out of memory))"
        ),
    ),
    (
        Hint.SMALLER_BATCH_RUNS,
        re.compile(
            r"(?i:batch(?:[ _-]?size)? (?:of )?\d+ (?:runs|works|fits|trains|is (?:fine|ok))"
            r"|(?:smaller|lower(?:ing|ed)?|reduc\w+|decreas\w+|halv\w+) (?:the |my )?(?:micro[- ]?)?batch"
            r"(?:[ _-]?size)?"
            r".{0,40}(?:works?|helps?|helped|fix\w*|runs?|ran|fits|solved|resolved|\bok\b)"
            r"|batch[ _-]?(?:size)? ?/ ?2.{0,20}(?:solved|works|runs|fits)"
            r"|(?:works?|runs?|fits) (?:\w+ ){0,3}(?:with|at|up to) (?:a )?(?:smaller |lower )?(?:micro[- ]?)?batch"
            r"|(?:increas\w+|rais\w+|larger|bigger|doubl\w+) (?:the )?(?:micro[- ]?)?batch"
            r"|batch(?:[ _-]?size)? (?:of )?\d+ (?:\w+ ){0,2}(?:ooms?|fails|runs out|does not|doesn't)"
            r"|(?:above|over|beyond) (?:micro[- ]?)?batch)"
        ),
    ),
    (
        Hint.COLOCATED,
        re.compile(
            r"\b(?:v?llm|sglang|rollout|inference engine|colocat\w*|gpu_memory_utilization|GRPO|PPO)\b", re.IGNORECASE
        ),
    ),
    (Hint.ZOMBIE, re.compile(r"(?i:no such process|zombie|defunct|still occup\w+|not released|\|\s*\(null\)\s*$)")),
    (
        Hint.OFFLOADS,
        re.compile(
            r"(?i:(?:optimizer|param\w*|cpu|zero|nvme)[-_ ]?off-?load|offload_(?:optimizer|param)"
            r"|DeepSpeedCPUAdam|cpu_adam)"
        ),
    ),
    (
        Hint.PAGED_OPTIMIZER,
        re.compile(r"(?i:paged[_ -](?:\d+ ?-?bit )?(?:adam|optim|lion)|managed memory|unified memory)"),
    ),
    (Hint.TIME_LIMIT, re.compile(r"DUE TO TIME LIMIT|DUE TO PREEMPTION|time limit exceeded", re.IGNORECASE)),
    (
        Hint.MULTI_RANK,
        re.compile(
            r"\b(?:[2-9]|[1-9]\d|[1-9]\d\d)(?: ?x ?(?:[AHVBL]\d|RTX|MI)|[- ]GPUs?\b)"
            r"|world[_ ]size\W{1,3}(?:[2-9]|\d{2,})|\bDDP\b|nproc_per_node|ProcessGroupNCCL|NCCL (?:INFO"
            r"|WARN)|local_rank",
            re.IGNORECASE,
        ),
    ),
    (
        Hint.ATTENTION,
        re.compile(
            r"(?i:attn_weights|attention_scores|query_states, key_states|torch\.(?:matmul|bmm"
            r"|baddbmm)\(\s*(?:query|q|proj_query)|eager_attention|q\s*@\s*k|query @ key|softmax\(attn"
            r"|_attn\b|attention_probs|causal_mask)"
        ),
    ),
    (
        Hint.LOADS_MODEL,
        re.compile(r"(?i:load\w* (?:the )?(?:model|checkpoint shards|weights)|from_pretrained|before training)"),
    ),
    (
        Hint.DEVICE_IDLE,
        re.compile(
            r"(?i:gpus? (?:is |are )?(?:nearly |almost |mostly )?(?:empty|idle|not full|unused)|idle (?:card"
            r"|gpu|device)|(?:plenty|lots) of (?:free )?(?:gpu )?memory|nothing (?:else )?(?:is )?running)"
        ),
    ),
    (
        Hint.SHARED_DEVICE,
        re.compile(
            r"(?i:(?:additional|extra|other ranks'?|too many) processes (?:\w+ ){0,3}on (?:gpu ?0|cuda:0|the first)"
            r"|(?:every|each|all) (?:the )?(?:process\w*|ranks?|workers?).{0,40}(?:gpu ?0|cuda:0|same (?:gpu|device)))"
        ),
    ),
    (
        Hint.VARIABLE_SHAPES,
        re.compile(
            r"(?i:variable[- ]length|longest (?:batch|sequence|sample)|dynamic (?:batch|length|padding)"
            r"|varying (?:length|shape)|random(?:ly)? (?:step|iteration|epoch))"
        ),
    ),
)


def hints_in(texts: Iterable[str], *, from_user: bool) -> tuple[HintSeen, ...]:
    """Each hint at most once, with the text that gave it."""
    seen: dict[Hint, HintSeen] = {}
    for text in texts:
        for hint, pattern in _HINTS:
            if hint not in seen and pattern.search(text):
                seen[hint] = HintSeen(hint=hint, text=text.strip()[:200], from_user=from_user)
    return tuple(seen.values())


_PHASE_SIZE = re.compile(
    r"['\"]?(?P<name>[\w ]{0,40}?(?P<phase>train|step|forward|backward|init|scratch|sav|checkpoint"
    r"|resum|load|restart|eval"
    r"|valid)[\w ]{0,40})['\"]?\s{0,2}[:=]\s{0,3}['\"]?(?P<size>\d{1,7}(?:\.\d{1,4})?)\s?(?:[GMT]i?B)?\b",
    re.IGNORECASE,
)
_MOMENT_OF = {
    "sav": Hint.SAVES,
    "checkpoint": Hint.SAVES,
    "resum": Hint.RESUMES,
    "load": Hint.RESUMES,
    "restart": Hint.RESUMES,
    "eval": Hint.EVALUATES,
    "valid": Hint.EVALUATES,
}
_HIGHER = 1.1  # so much above training, a moment is the peak
_SIZE_WORD = re.compile(r"(?:^|[^A-Za-z])(?:[GM]i?B)(?:$|[^A-Za-z])|mem|peak|alloc", re.IGNORECASE)
_COUNT_WORD = re.compile(r"batch|accum|interval|every|_s(?:teps?)?$|lr|rate|epoch|limit|total|num|size", re.IGNORECASE)


def peaks_in(text: str) -> tuple[HintSeen, ...]:
    """The moment whose memory is above that of training, where a short document lists peaks by moment."""
    sizes: dict[Hint | None, float] = {}
    if not _SIZE_WORD.search(text):
        return ()
    for found in list(_PHASE_SIZE.finditer(text[:16384]))[:200]:
        if _COUNT_WORD.search(found["name"]):
            continue
        moment = _MOMENT_OF.get(found["phase"].lower())
        sizes[moment] = max(sizes.get(moment, 0.0), float(found["size"]))
    training = sizes.pop(None, 0.0)
    above = [(size, moment) for moment, size in sizes.items() if moment is not None and 0 < training * _HIGHER <= size]
    if not above:
        return ()
    size, moment = max(above, key=lambda pair: pair[0])
    return (HintSeen(hint=moment, text=f"its peak of {size:g} is above the {training:g} of training", from_user=True),)
