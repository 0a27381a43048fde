//! One typed function per kernel: fills the parameter struct as the plan says, and launches.

mod attention;
mod ceiling;
mod gemm;
mod group;
mod layers;
mod sampling;
mod shuffle;
mod step;

pub use attention::{
    DecodeRows, KvView, PrefillRows, attention_decode, attention_prefill, attention_rung,
};
pub use ceiling::{ceiling_mma, ceiling_read};
pub use gemm::{Norm, Operands, QkvOutput, ResidualOutput, logits, qkv, residual, swiglu, turns};
pub use group::{ActivationMap, group_qkv, group_residual, group_swiglu};
pub use layers::{Layers, decode_layer, decode_layers};
pub use sampling::{
    RowPlace, SamplerBuffers, marks, read_sampled, row_sampling, row_sampling_bytes, sample,
    sampled,
};
pub use shuffle::{RowOrder, Sources, shuffle};
pub use step::{
    EmbedBuffers, ProbeBuffers, TapRun, apply_diffs, embed, kv_pieces, probe, tap_mean,
};
