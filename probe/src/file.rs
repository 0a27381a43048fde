//! `probe.safetensors`: the probe's weights, layer and bins.
//!
//! Tensors, all `f32`, row-major `[out, in]`: `hidden.weight` `[hidden, d]`, `hidden.bias`
//! `[hidden]`, `output.weight` `[bins, hidden]`, `output.bias` `[bins]`. Metadata, all strings:
//! `format` = `trail-probe`, `version` = `1`, `layer` (0-based index of the block whose output is
//! tapped), `max_tokens`, `bins`, `hidden_size` (d).
//!
//! The contents are untrusted: any bytes give a probe or an [`Error`].

mod read;
mod write;

use std::path::Path;
use std::sync::Arc;

use trail_base::Isa;

use crate::bins::Bins;
use crate::error::Error;
use crate::head::Head;
use crate::weights::{HIDDEN, Weights};

pub(crate) use read::{Reader, read_file};
pub(crate) use write::serialize;

/// `format` of a probe file.
const FORMAT: &str = "trail-probe";

/// A trained probe: the tapped layer, the predicted bins, and the MLP between the two.
pub struct Probe {
    /// 0-based index of the transformer block whose output is tapped.
    pub layer: usize,
    /// The bins of remaining length.
    pub bins: Bins,
    /// The MLP, packed for the CPU kernels.
    pub head: Head,
    /// The same weights unpacked, for upload to a device.
    pub weights: Arc<Weights>,
}

impl Probe {
    /// Reads `path`. The head uses the kernels of [`Isa::detect`]; see [`Probe::with_isa`].
    pub fn open(path: impl AsRef<Path>) -> Result<Probe, Error> {
        let (bytes, name) = read_file(path.as_ref())?;
        Probe::from_bytes(&bytes, &name)
    }

    /// Parses `bytes`, the contents of a probe file; errors name the file `name`.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Probe, Error> {
        let (weights, bins, layer) = read_weights(bytes, name)?;
        Ok(Probe::new(weights, bins, layer))
    }

    /// An untrained probe of the paper's shape, the same for the same seed: for tests and timing.
    pub fn random(d: usize, layer: usize, seed: u64) -> Probe {
        let bins = Bins::default();
        Probe::new(Weights::random(d, HIDDEN, bins.count(), seed), bins, layer)
    }

    /// The same probe with the head on the kernels of `isa`; an error if this CPU cannot run them.
    pub fn with_isa(self, isa: Isa) -> Result<Probe, String> {
        Ok(Probe { head: self.head.with_isa(isa)?, ..self })
    }

    fn new(weights: Weights, bins: Bins, layer: usize) -> Probe {
        let head = Head::new(&weights);
        Probe { layer, bins, head, weights: Arc::new(weights) }
    }
}

/// The unpacked weights of a probe file, its bins and its layer.
pub fn read_weights(bytes: &[u8], name: &str) -> Result<(Weights, Bins, usize), Error> {
    let reader = Reader::new(bytes, name, FORMAT)?;
    let bins = reader.bins()?;
    let layer = reader.integer("layer", 0..=u32::MAX)? as usize;
    let d = reader.integer("hidden_size", 1..=1 << 20)? as usize;
    let hidden = reader.first_dimension("hidden.weight")?;
    let weights = Weights {
        d,
        hidden,
        bins: bins.count(),
        hidden_weight: reader.tensor("hidden.weight", &[hidden, d])?,
        hidden_bias: reader.tensor("hidden.bias", &[hidden])?,
        output_weight: reader.tensor("output.weight", &[bins.count(), hidden])?,
        output_bias: reader.tensor("output.bias", &[bins.count()])?,
    };
    Ok((weights, bins, layer))
}

/// Serializes a probe file; [`read_weights`] is the inverse.
pub fn probe_bytes(weights: &Weights, bins: Bins, layer: usize) -> Vec<u8> {
    weights.check();
    assert_eq!(weights.bins, bins.count());
    let metadata = [("layer", layer.to_string()), ("hidden_size", weights.d.to_string())];
    let tensors: [(&str, &[usize], &[f32]); 4] = [
        ("hidden.weight", &[weights.hidden, weights.d], &weights.hidden_weight),
        ("hidden.bias", &[weights.hidden], &weights.hidden_bias),
        ("output.weight", &[weights.bins, weights.hidden], &weights.output_weight),
        ("output.bias", &[weights.bins], &weights.output_bias),
    ];
    serialize(FORMAT, bins, metadata, &tensors)
}

#[cfg(test)]
mod tests;
