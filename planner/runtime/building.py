"""Assembles a causal language model from its blocks: a plain container without pipeline stages, DeepSpeed's
`PipelineModule` with them. Both use the same blocks, the same first values and the same loss.

Owns the order of blocks, which stage holds which, and the order of work on one block: built on the meta device, split
over tensor-parallel ranks, given storage, and under ZeRO-3 partitioned at once, so that no rank ever holds more of the
model than its own share and one block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.utils import groups
from torch import distributed, nn

from planner.runtime.blocks import DecoderBlock, Head, LayerInputs, LosingHead, Positions, TokenEmbedding
from planner.runtime.checkpointing import recompute_of
from planner.runtime.chunked_loss import chunked_next_token_loss
from planner.runtime.families import Family, complete_replicated_gradients
from planner.runtime.gradient_norm import unmark_tied_copies
from planner.runtime.grid import TensorGroup, tensor_group_of, topology_of
from planner.runtime.initialisation import Placement, materialise
from planner.runtime.lora import adapt_attention, complete_adapter_gradients, freeze
from planner.runtime.tensor_parallel import next_token_loss
from planner.spec import ActivationCheckpointing, ParallelLayout
from planner.spec._record import record

EDGE_BLOCKS = 2  # embedding and positions before the layers, norm and head after them


@record
class Assembly:
    """All that blocks are built from. `partition` shares a finished block out among data-parallel ranks (ZeRO-3)."""

    family: Family
    placement: Placement
    checkpointing: ActivationCheckpointing
    keeps_rng: bool
    partition: Callable[[nn.Module], None] | None
    lora_rank: int = 0  # 0: all parameters are trained
    compiles_layers: bool = False
    chunks_loss: bool = False


class BlockBuilder:
    """Builds finished blocks for one rank."""

    def __init__(self, assembly: Assembly, group: TensorGroup) -> None:
        self._assembly = assembly
        self._family = assembly.family
        self._group = group
        self._inputs = LayerInputs(assembly.family)

    def embedding(self) -> TokenEmbedding:
        """The token embedding."""
        return self._edge(TokenEmbedding(self._family, self._group), self._family.embedding_name)

    def positions(self) -> Positions:
        """Learned positions; a block that does nothing in families that rotate."""
        return self._edge(Positions(self._family), self._family.position_name)

    def decoder(self, index: int, index_in_stage: int) -> DecoderBlock:
        """Decoder layer `index` of the model."""
        with torch.device("meta"):
            layer = self._family.layer_class(self._family.config, layer_idx=index)
        if self._group.size > 1:
            self._family.split_layer(layer, self._group)
        attention = getattr(layer, self._family.attention_name)
        if self._assembly.lora_rank:
            freeze(layer)
            adapt_attention(attention, rank=self._assembly.lora_rank, group=self._group)
        self._finish(layer, self._family.layer_name.format(index))
        complete_replicated_gradients(attention, self._group)
        complete_adapter_gradients(attention, self._group)
        recompute = recompute_of(
            self._assembly.checkpointing, index_in_stage=index_in_stage, keeps_rng=self._assembly.keeps_rng
        )
        compiles = self._assembly.compiles_layers
        return DecoderBlock(layer, index=index, inputs=self._inputs, recompute=recompute, compiles=compiles)

    def norm(self) -> nn.Module:
        """The norm after the last layer."""
        with torch.device("meta"):
            norm = self._family.make_norm()
        return self._edge(norm, self._family.norm_name)

    def head(self) -> Head:
        """A head with a matrix of its own."""
        return self._edge(Head(self._family, self._group), self._family.head_name)

    def tied_head(self, embedding: TokenEmbedding) -> Head:
        """A head that is the embedding's matrix."""
        return Head(self._family, self._group, tied=embedding.weight)

    def losing_head(self, tied: TokenEmbedding | None) -> LosingHead:
        """Head and loss in one; `tied`: with the embedding's matrix."""
        if tied is not None:
            return LosingHead(self._family, self._group, tied=tied.weight)
        return self._edge(LosingHead(self._family, self._group), self._family.head_name)

    @property
    def chunks_loss(self) -> bool:
        return self._assembly.chunks_loss

    def loss(self, logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Mean next-token loss of one micro-batch."""
        return next_token_loss(logits, tokens, self._group)

    def chunked_loss(self, hidden: torch.Tensor, weight: nn.Parameter, tokens: torch.Tensor) -> torch.Tensor:
        """The same of the hidden states that the head would take, chunk by chunk."""
        return chunked_next_token_loss(hidden, weight, tokens, self._group)

    def _edge(self, block: Any, name: str) -> Any:
        """Finish a block that is no decoder layer."""
        if self._assembly.lora_rank:
            freeze(block)
        return self._finish(block, name)

    def _finish(self, block: Any, name: str) -> Any:
        materialise(block, prefix=name, placement=self._assembly.placement)
        if self._assembly.partition is not None:
            self._assembly.partition(block)
        return block


class PlainModel(nn.Module):
    """The blocks one after the other on one rank (of any tensor-parallel size); gives the loss of a batch of tokens."""

    def __init__(self, builder: BlockBuilder, family: Family) -> None:
        super().__init__()
        self.embedding = builder.embedding()
        self.positions = builder.positions()
        self.layers = nn.ModuleList(builder.decoder(i, i) for i in range(family.config.num_hidden_layers))
        self.norm = builder.norm()
        if builder.chunks_loss:
            self.head = builder.losing_head(self.embedding if family.tied else None)
        else:
            self.head = builder.tied_head(self.embedding) if family.tied else builder.head()
        self._chunks_loss = builder.chunks_loss
        self._loss = builder.loss

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(batch, seq) ids to the mean loss."""
        hidden = self.positions(self.embedding(tokens))
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = self.norm(hidden)
        return self.head(hidden, tokens) if self._chunks_loss else self._loss(self.head(hidden), tokens)


class _Spec(LayerSpec):
    """A block that only the ranks of its stage build."""

    def __init__(self, make: Callable[[], nn.Module]) -> None:
        super().__init__(nn.Module)
        self._make = make

    def build(self, log: bool = False) -> nn.Module:
        return self._make()


class _TiedSpec(TiedLayerSpec):
    """A block that the ranks of two stages build, with one matrix between them."""

    def __init__(self, make: Callable[[], nn.Module], forward: Callable[..., torch.Tensor] | None = None) -> None:
        super().__init__("embedding", nn.Module, forward_fn=forward, tied_weight_attr=["weight"])
        self._make = make

    def build(self, log: bool = False) -> nn.Module:
        return self._make()


def _let_through(_embedding: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    return hidden


class _Holding(nn.Module):
    """Holds the head's matrix for a loss that multiplies by it, and lets the hidden states through."""

    def __init__(self, head: Head) -> None:
        super().__init__()
        self.weight = head.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


class StagedModel(PipelineModule):
    """The blocks spread over pipeline stages exactly as the layout's `stage_layers` says; the first stage adds the
    embedding, the last the norm and the head."""

    def __init__(self, assembly: Assembly, layout: ParallelLayout) -> None:
        self._assembly = assembly
        self._layout = layout
        num_blocks = sum(layout.stage_layers) + 2 * EDGE_BLOCKS
        super().__init__(
            layers=range(num_blocks),  # stand-ins, see `_partition_layers`
            topology=topology_of(layout),
            loss_fn=self._lose,
            activation_checkpoint_interval=0,
        )
        unmark_tied_copies(self.tied_modules)

    def _lose(self, outputs: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """The last stage's loss: of logits, or of what its head has let through."""
        if not self._builder.chunks_loss:
            return self._builder.loss(outputs, tokens)
        return self._builder.chunked_loss(outputs, self._head_weight(), tokens)

    def _head_weight(self) -> nn.Parameter:
        tied = self._assembly.family.tied
        return (self.tied_modules["embedding"] if tied else self.forward_funcs[-1]).weight

    def _partition_layers(self, method: str = "uniform") -> None:
        """DeepSpeed calls this once its process groups exist and before it builds its own blocks."""
        self._builder = BlockBuilder(self._assembly, tensor_group_of(self._grid))
        self._layer_specs = self._specs()
        ends = [EDGE_BLOCKS + sum(self._layout.stage_layers[: stage + 1]) for stage in range(self.num_stages)]
        self.parts = [0, *ends[:-1], ends[-1] + EDGE_BLOCKS]
        self._set_bounds(start=self.parts[self.stage_id], stop=self.parts[self.stage_id + 1])

    def _specs(self) -> list[LayerSpec]:
        builder, tied = self._builder, self._assembly.family.tied
        places = [place for layers in self._layout.stage_layers for place in range(layers)]
        decoders = [
            _Spec(lambda index=index, place=place: builder.decoder(index, place))  # type: ignore[misc]
            for index, place in enumerate(places)
        ]
        first = _TiedSpec(builder.embedding) if tied else _Spec(builder.embedding)
        chunks = builder.chunks_loss
        to_logits = _let_through if chunks else TokenEmbedding.logits
        head = (lambda: _Holding(builder.head())) if chunks else builder.head
        last = _TiedSpec(builder.embedding, forward=to_logits) if tied else _Spec(head)
        return [first, _Spec(builder.positions), *decoders, _Spec(builder.norm), last]


def zero3_partition(ds_config: dict[str, Any], grid: Any) -> Callable[[nn.Module], None]:
    """What shares a block's parameters out among the data-parallel ranks, as ZeRO-3 keeps them."""
    group = None if grid is None else grid.get_data_parallel_group()
    second = _second_copy_group(ds_config)

    def partition(block: nn.Module) -> None:
        deepspeed.zero.Init(
            module=block,
            data_parallel_group=group,
            config_dict_or_path=ds_config,
            mpu=grid,
            zero_param_parallel_group=second,
        )
        for parameter in block.parameters():
            _clear_padding(parameter)

    return partition


def _second_copy_group(ds_config: dict[str, Any]) -> Any:
    """The ranks that share ZeRO++'s second copy of the parameters (hpZ); None without one. Made once, because DeepSpeed
    0.19.8 makes it with every `zero.Init` that is not given one, and fails at the second."""
    size = ds_config["zero_optimization"].get("zero_hpz_partition_size", 1)
    if size > 1 and groups._get_zero_param_intra_parallel_group() is None:
        groups._create_zero_param_parallel_group(size)
    return groups._get_zero_param_intra_parallel_group() if size > 1 else None


def _clear_padding(parameter: Any) -> None:
    """Zero the end of the last shards, which is no part of the parameter.

    DeepSpeed 0.19.8 leaves there what the memory held before; a NaN would live on in the optimizer's copy and in what
    an emulated rank takes for its peers' shards.
    """
    shard = parameter.ds_tensor
    rank = distributed.get_rank(parameter.ds_process_group)
    own = min(max(parameter.ds_numel - rank * shard.ds_numel, 0), shard.numel())
    shard.data[own:].zero_()
