//! Refuses models that the kernels cannot run, before anything is allocated.

use crate::cuda::error::CudaError;
use crate::cuda::plan;
use crate::model::ModelConfig;

/// Activation rows are read 16 bytes at a time.
const ROW_ELEMENTS: usize = 8;

/// Refuses a model that the kernels do not cover.
pub fn check_supported(config: &ModelConfig) -> Result<(), CudaError> {
    let refuse = |name: &str, found: usize, supported: &str| {
        let what = format!("config.json: {name} = {found}");
        Err(CudaError::Unsupported { what, supported: supported.into() })
    };
    if !plan::attention::supports(config.head_dim) {
        return refuse("head_dim", config.head_dim, "heads of 64 or 128");
    }
    let widths =
        [("hidden_size", config.hidden_size), ("intermediate_size", config.intermediate_size)];
    for (name, width) in widths {
        if !width.is_multiple_of(ROW_ELEMENTS) {
            return refuse(name, width, "multiples of 8");
        }
    }
    // Counts of the kernels are 32-bit and signed.
    if config.vocab_size >= 1 << 31 {
        return refuse("vocab_size", config.vocab_size, "fewer than 2^31 tokens");
    }
    Ok(())
}
