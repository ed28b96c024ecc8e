"""A stack of layers as DeepSpeed's PipelineModule: the number of stages comes from the command line."""

import argparse

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule

VOCAB, HIDDEN, LAYERS = 1024, 128, 4


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.TransformerEncoderLayer(HIDDEN, 4, 352, dropout=0.0, batch_first=True)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(
            hidden.shape[1], device=hidden.device, dtype=hidden.dtype
        )
        return self.attention(hidden, src_mask=mask, is_causal=True)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


def batches(micro_batch: int, seq_len: int, seed: int):
    generator = torch.Generator().manual_seed(seed)
    while True:
        tokens = torch.randint(0, VOCAB, (micro_batch, seq_len), generator=generator)
        yield tokens, tokens


def main() -> None:
    parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()

    deepspeed.init_distributed()
    torch.manual_seed(1234)
    layers = [
        LayerSpec(torch.nn.Embedding, VOCAB, HIDDEN),
        *(LayerSpec(Block) for _ in range(LAYERS)),
        LayerSpec(torch.nn.Linear, HIDDEN, VOCAB, bias=False),
    ]
    model = PipelineModule(layers=layers, num_stages=arguments.stages, loss_fn=cross_entropy)
    engine, _, _, _ = deepspeed.initialize(args=arguments, model=model, model_parameters=model.parameters())
    data = batches(engine.train_micro_batch_size_per_gpu(), arguments.seq_len, seed=engine.grid.data_parallel_id)
    for step in range(1, arguments.steps + 1):
        loss = engine.train_batch(data_iter=data)
        if step % 10 == 0 and engine.global_rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
