//! Options of the CPU backend.

use clap::{ArgAction, Args};
use trail_runtime::cpu::{Compute, Isa, KvPool};
use trail_runtime::model::Dtype;

/// Options of the CPU backend.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Device")]
pub struct CpuArgs {
    /// Instruction set of the CPU kernels: auto, portable, avx2, avx512 or neon
    #[arg(long, global = true, value_name = "NAME", default_value_t = Isa::Auto)]
    pub isa: Isa,
    /// CPU products: fast (activations in 8 bits for quantized weights, in bf16 for bf16 weights
    /// where that is faster) or exact (in f32)
    #[arg(long, global = true, value_name = "WAY", default_value_t = Compute::Fast)]
    pub compute: Compute,
    /// Strict CPU placement (1): each thread on one CPU of the process's affinity mask, cores
    /// before their second threads; with several NUMA nodes, memory near the threads that use it
    // llama.cpp's name and values.
    #[arg(
        long, global = true, value_name = "0|1", default_value = "0", value_parser = zero_or_one,
        action = ArgAction::Set,
    )]
    pub cpu_strict: bool,
    /// Copy quantized weights at start into the order in which products read them: faster, for as
    /// much memory as they take in the file
    #[arg(long, global = true)]
    pub repack: bool,
    /// Keys and values on the CPU: f32, f16 or bf16 (half the memory), or q8_0 (blocks of 32 bytes
    /// and a scale: a quarter) [default: f32]
    #[arg(long, global = true, value_name = "TYPE", value_parser = KvPool::parse_dtype)]
    pub kv_dtype: Option<Dtype>,
}

fn zero_or_one(text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(false),
        "1" => Ok(true),
        _ => Err("choose 0 or 1".into()),
    }
}
