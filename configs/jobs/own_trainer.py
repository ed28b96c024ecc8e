"""Fine-tuning with Hugging Face's Trainer, whose arguments come from the command line."""

import torch
from transformers import HfArgumentParser, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

SEQ_LEN = 128


class RandomTokens(torch.utils.data.Dataset):
    """Stands where a tokenized data set would."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(0, 1024, (SEQ_LEN,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    trainer = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=RandomTokens())
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
