//! Example 8: The probe on activations from elsewhere: a safetensors file that PyTorch wrote, with
//! the output of layer 3 for each token of one answer, `hidden` `[tokens, d]`.
//!
//! `cargo run --release --example 08_activations -- FILE.safetensors PROBE.safetensors`
//!
//! The bundled file is `examples/activations.safetensors`; `examples/activations.py` writes it,
//! with transformers.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use trail_probe::{Partials, Probe, Rows, Tracker};

/// Reads the files given as arguments.
pub fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = std::env::args().skip(1).map(PathBuf::from);
    let file = paths.next().unwrap_or_else(|| root.join("examples/activations.safetensors"));
    let probe = paths.next().unwrap_or_else(|| root.join("assets/demo/probe.safetensors"));
    run(&file, &probe, &mut std::io::stdout())
}

/// Prints predictions of `probe` for the activations in `file`, after every eighth token.
pub fn run(file: &Path, probe: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let probe = Probe::open(probe)?;
    let bytes = std::fs::read(file)?;
    let tensor = SafeTensors::deserialize(&bytes)?;
    let hidden = tensor.tensor("hidden")?;
    let (&[tokens, d], Dtype::F32) = (hidden.shape(), hidden.dtype()) else {
        return Err("hidden is no tensor [tokens, d] of float32: save it with .float()".into());
    };
    if d != probe.head.d() {
        let why = format!("hidden has {d} columns, and the probe reads {}", probe.head.d());
        return Err(why.into());
    }
    let floats = hidden.data().chunks_exact(4);
    let floats = floats.map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let activations: Vec<f32> = floats.collect();

    // The head over all rows at once, then the filter, token by token.
    let bins = probe.bins.count();
    let mut probabilities = vec![0.0; tokens * bins];
    let partials = Partials::new(&probe.head, tokens);
    probe.head.forward(Rows::of(&activations), tokens, &partials, &mut probabilities);
    let mut tracker = Tracker::new(probe.filter(), 1);
    let (mut error, mut counted) = (0.0, 0);
    for (token, p) in probabilities.chunks_exact(bins).enumerate() {
        let generated = token as u32 + 1;
        let estimate = tracker.observe(0, 0, generated, p).expect("the newest generation");
        // The last token of the answer was never fed.
        let left = tokens + 1 - generated as usize;
        error += (f64::from(estimate.remaining) - left as f64).abs();
        counted += 1;
        if token % 8 == 0 {
            let [p10, p50, p90] = estimate.quantiles;
            writeln!(
                out,
                "after {generated:>3} tokens: {:>5.1} more expected ({p10:.0}, {p50:.0}, {p90:.0}), \
                 {left} came",
                estimate.remaining
            )?;
        }
    }
    writeln!(out, "mean error {:.1} tokens", error / f64::from(counted))?;
    Ok(())
}
