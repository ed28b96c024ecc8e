"""A small DeepSpeed training script that behaves as `--as` says; the planner knows nothing of it."""

import argparse
import os
import subprocess
import sys
import time

import deepspeed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
parser.add_argument("--as", dest="behaviour", default="good")
options = parser.parse_args()
behaviour = options.behaviour


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((8,), float(index) / 64)


def train(config: object, steps: int) -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(8, 1)
    engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
    workers = 2 if behaviour == "forks" else 0
    rows = 3 if behaviour == "feeds-other-batches" else engine.train_micro_batch_size_per_gpu()
    done = 0
    while done < steps:
        for batch in torch.utils.data.DataLoader(Rows(), batch_size=rows, num_workers=workers, drop_last=True):
            loss = engine(batch).square().mean()
            if behaviour == "diverges":
                loss = loss * float("nan")
            if behaviour == "loss-backward":
                loss.backward()
            else:
                engine.backward(loss)
            engine.step()
            done += 1
            if done >= steps:
                break


deepspeed.init_distributed()
if behaviour == "never-initializes":
    print("trained with something else")
elif behaviour == "prints-its-own-error":
    try:
        raise RuntimeError("the data is not where it was")
    except RuntimeError as problem:
        print(f"FATAL: {problem}; giving up")
        sys.exit(3)
elif behaviour == "ends-early":
    train(options.config, 2)
elif behaviour == "leaves-at-once":
    os._exit(0)
elif behaviour == "own-config":
    train({"train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}, 100)
elif behaviour == "hangs":
    time.sleep(600)
elif behaviour == "swallows-every-end":
    while True:
        try:
            train(options.config, 100)
        except BaseException as problem:
            print("not stopping for", type(problem))
elif behaviour == "forks":
    marker = [
        "sleep",
        "98765",
        str(os.getppid()),
    ]  # a helper in a session of its own, as trackers and servers start them
    subprocess.Popen(marker, start_new_session=True)
    if os.fork() == 0:
        sys.exit(0)  # its end is not the rank's
    if os.fork() == 0:
        raise RuntimeError("a child's own trouble")
    train(options.config, 100)
else:
    train(options.config, 100)
