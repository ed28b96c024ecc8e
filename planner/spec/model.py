"""The model as the planner sees it: shapes and parameter counts, no weights."""

from __future__ import annotations

from planner.spec._record import record, require
from planner.spec.kinds import ModelFamily


@record
class ParameterCounts:
    """Trainable parameters by place, in elements, unsplit.

    A decoder layer holds attention + norm + (dense MLP, or router + experts + shared experts). Layers of the two MLP
    kinds are counted by `ModelSpec.num_dense_layers`. `head` is 0 when the head is tied to the embedding.
    """

    embedding: int = 0
    position_embedding: int = 0
    attention_per_layer: int = 0
    mlp_per_layer: int = 0  # dense layers
    router_per_layer: int = 0  # mixture-of-experts layers
    expert: int = 0  # one routed expert
    shared_experts_per_layer: int = 0
    norm_per_layer: int = 0
    final_norm: int = 0
    head: int = 0
    encoder: int = 0  # the whole encoder stack of an encoder-decoder
    other: int = 0  # patch embeddings, poolers, classification heads, cross-attention extras


@record
class TracedModule:
    """What tracing an arbitrary nn.Module on the meta device found, per sample where it says so."""

    num_parameters: int
    largest_parameter: int  # elements
    saved_bytes_per_sample_fp32: int  # tensors kept for backward, as if all were fp32
    fixed_saved_bytes: int
    forward_flops_per_sample: int
    tokens_per_sample: int  # 1 where a sample is not a sequence


@record
class ModelSpec:
    """One model. `config_json` is the Hugging Face config (canonical JSON text) the runtime builds from; `factory` is
    `package.module:function` for an arbitrary module, whose shapes are then 0 and whose `traced` is set."""

    name: str
    family: ModelFamily
    model_type: str  # Hugging Face's model_type, or "module"
    config_json: str = ""
    factory: str = ""
    num_layers: int = 0
    num_encoder_layers: int = 0
    hidden_size: int = 0
    num_heads: int = 0
    num_kv_heads: int = 0
    head_size: int = 0
    ffn_hidden_size: int = 0
    vocab_size: int = 0
    max_seq_len: int = 0  # 0: no limit of its own
    gated_mlp: bool = False
    rms_norm: bool = False
    linear_bias: bool = False
    tied_embeddings: bool = False
    attention_dropout_fraction: float = 0.0
    hidden_dropout_fraction: float = 0.0
    sliding_window: int = 0  # 0: full attention
    num_experts: int = 0
    num_experts_per_token: int = 0
    num_shared_experts: int = 0
    expert_ffn_hidden_size: int = 0
    num_dense_layers: int = 0  # layers with a dense MLP; all of them without experts
    kv_lora_rank: int = 0  # multi-head latent attention (DeepSeek); 0: ordinary attention
    q_lora_rank: int = 0
    qk_head_size: int = 0  # 0: head_size
    v_head_size: int = 0  # 0: head_size
    num_patches: int = 0  # vision: tokens of one image
    counts: ParameterCounts = ParameterCounts()
    traced: TracedModule | None = None
    tensor_parallel_refusal: str = ""  # why this model takes no tensor parallelism; "" when it does
    pipeline_parallel_refusal: str = ""

    def __post_init__(self) -> None:
        require(bool(self.config_json) != bool(self.factory), "a model has either a config or a factory")
        require((self.traced is not None) == bool(self.factory), "exactly a factory's model is traced")

    @property
    def num_moe_layers(self) -> int:
        """Decoder layers whose MLP is a mixture of experts."""
        return self.num_layers - self.num_dense_layers if self.num_experts else 0

    @property
    def num_parameters(self) -> int:
        """All parameters, tied ones once, in elements."""
        if self.traced is not None:
            return self.traced.num_parameters
        c = self.counts
        dense_layers = self.num_layers - self.num_moe_layers
        moe_layer = c.router_per_layer + self.num_experts * c.expert + c.shared_experts_per_layer
        return (
            c.embedding
            + c.position_embedding
            + self.num_layers * (c.attention_per_layer + c.norm_per_layer)
            + dense_layers * c.mlp_per_layer
            + self.num_moe_layers * moe_layer
            + c.final_norm
            + c.head
            + c.encoder
            + c.other
        )
