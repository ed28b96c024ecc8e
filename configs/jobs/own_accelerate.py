"""A loop on Hugging Face accelerate, to be started by `accelerate launch` with a DeepSpeed config file."""

import argparse

import torch
from accelerate import Accelerator
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, required=True, help="sequences per process and forward pass")
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()

    accelerator = Accelerator()
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, config.vocab_size, (100_000, arguments.seq_len), dtype=torch.int32)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=arguments.batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    for (batch,) in loader:
        with accelerator.accumulate(model):
            batch = batch.long()
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            step += 1
            if step % 10 == 0:
                accelerator.print(f"step {step} loss {loss.item():.4f}")
        if step >= arguments.steps:
            break


if __name__ == "__main__":
    main()
