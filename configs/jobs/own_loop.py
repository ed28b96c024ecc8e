"""A training loop on DeepSpeed that reads its config from `--deepspeed_config` and knows no planner."""

import argparse

import deepspeed
import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--seq-len", type=int, default=128)
parser.add_argument("--steps", type=int, default=1000)
arguments = parser.parse_args()

deepspeed.init_distributed()
torch.manual_seed(1234)
config = LlamaConfig(
    vocab_size=1024,
    hidden_size=128,
    intermediate_size=352,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
)
model = LlamaForCausalLM(config)
engine, _, _, _ = deepspeed.initialize(args=arguments, model=model, model_parameters=model.parameters())

torch.manual_seed(1234 + torch.distributed.get_rank())
micro_batch = engine.train_micro_batch_size_per_gpu()
while engine.global_steps < arguments.steps:
    tokens = torch.randint(0, config.vocab_size, (micro_batch, arguments.seq_len), device=engine.device)
    loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
    engine.backward(loss)
    engine.step()
    if engine.is_gradient_accumulation_boundary() and engine.global_steps % 10 == 0 and engine.global_rank == 0:
        print(f"step {engine.global_steps} loss {loss.item():.4f}", flush=True)
