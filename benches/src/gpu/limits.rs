//! Lower bounds of a step's time on the device: reading its bytes and multiplying, at rates
//! measured in the same run.

use serde_json::{Value, json};
use trail_runtime::cuda::Device;
use trail_runtime::model::{Dtype, Model, Tensor};

use super::values::{above_zero, at_least_one};
use crate::kernels;
use crate::model::streamed;

/// Default MiB of the read ceiling.
const READ_MIB: usize = 2048;
/// Default rounds of the matrix ceiling.
const MMA_ROUNDS: usize = 20_000;

/// Options of the ceilings' measurement.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct LimitArgs {
    /// GPU: matrix rate that shares refer to, TFLOP/s: cuBLAS's in the same run (benches/peers)
    /// [default: the rate of mma.sync on registers alone]
    #[arg(long, value_name = "TFLOPS", value_parser = above_zero)]
    matrix_tflops: Option<f64>,
    /// GPU: MiB that the read ceiling reads: far beyond L2
    #[arg(long, value_name = "N", default_value_t = READ_MIB, value_parser = at_least_one)]
    read_mib: usize,
    /// GPU: rounds of the matrix ceiling's loop
    #[arg(long, value_name = "N", default_value_t = MMA_ROUNDS, value_parser = at_least_one)]
    mma_rounds: usize,
}

/// Rates measured in one run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Read bandwidth, GB/s.
    pub read_gb_per_s: f64,
    /// Matrix rate, TFLOP/s.
    pub matrix_tflops: f64,
}

impl Limits {
    /// Measures the rates of `device`.
    pub fn measure(device: &Device, args: &LimitArgs) -> Result<Limits, String> {
        let (read_gb_per_s, mma) = kernels::ceilings_of(device, args.read_mib, args.mma_rounds)?;
        Ok(Limits { read_gb_per_s, matrix_tflops: args.matrix_tflops.unwrap_or(mma) })
    }

    /// Lower bound of a decode step's time, seconds: the products, bound by reading the weights or
    /// by multiplying, plus reading the keys and values.
    pub fn decode_s(&self, model: &Model, rows: usize, context: usize) -> f64 {
        let weights: f64 = streamed(&model.weights).map(elements).sum();
        let read_s = 2.0 * weights / self.read_gb_per_s / 1e9;
        let multiply_s = 2.0 * weights * rows as f64 / self.matrix_tflops / 1e12;
        let kv_bytes = rows as f64 * model.config.kv_read_bytes(context, Dtype::Bf16) as f64;
        read_s.max(multiply_s) + kv_bytes / self.read_gb_per_s / 1e9
    }

    /// The entry of a report.
    pub fn report(&self) -> Value {
        json!({ "read_gb_per_s": self.read_gb_per_s, "matrix_tflops": self.matrix_tflops })
    }
}

fn elements(tensor: &Tensor) -> f64 {
    (tensor.rows * tensor.cols) as f64
}

/// Floating-point operations of a prefill: the layers' products for every token, the output
/// projection for the last one, and causal attention.
pub fn prefill_flops(model: &Model, tokens: usize) -> f64 {
    let blocks = model.layer_weights_per_token() as f64;
    let pairs = |window: &Option<usize>| {
        let window = window.map_or(tokens, |window| window.min(tokens));
        // Until the window is full, each row attends to one token more than the row before.
        (window * (window + 1) / 2 + (tokens - window) * window) as f64
    };
    let pairs: f64 = model.config.windows.iter().map(pairs).sum();
    let attention = 4.0 * pairs * model.config.q_size() as f64;
    2.0 * (blocks * tokens as f64 + elements(&model.weights.lm_head)) + attention
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_of_a_small_model_by_hand() {
        let model = Model::random("tiny", Dtype::Bf16, 1).expect("a known shape");
        let config = &model.config;
        let (d, ff, q, kv) = (64.0, 96.0, config.q_size() as f64, config.kv_size() as f64);
        let layer = d * (q + 2.0 * kv) + q * d + 3.0 * d * ff;
        let weights = 2.0 * layer + 256.0 * d;
        let limits = Limits { read_gb_per_s: 1.0, matrix_tflops: 1.0 };
        let wanted = (2.0 * weights + 3.0 * 10.0 * 2.0 * 2.0 * kv * 2.0) / 1e9;
        assert!((limits.decode_s(&model, 3, 10) / wanted - 1.0).abs() < 1e-12);
        let slow = Limits { matrix_tflops: 1e-3, ..limits };
        let wanted = 2.0 * weights * 3.0 / 1e9 + 3.0 * 10.0 * 2.0 * 2.0 * kv * 2.0 / 1e9;
        assert!((slow.decode_s(&model, 3, 10) / wanted - 1.0).abs() < 1e-12);
        let wanted = 2.0 * (2.0 * layer * 5.0 + 256.0 * d) + 4.0 * 2.0 * 15.0 * q;
        assert_eq!(prefill_flops(&model, 5), wanted);
    }
}
