//! Output length from the prompt alone: a linear classifier over the tokens that occur in it.
//!
//! It replaces TRAIL's fine-tuned DistilBERT (section 3.1) at a fraction of the cost: the feature
//! of token v is ln(1 + occurrences of v in the prompt), and only the tokens that occur are
//! visited.
//!
//! `predictor.safetensors`: `weight` `[bins, vocab]` and `bias` `[bins]`, `f32` or bf16; metadata
//! `format` = `trail-prompt-predictor`, `vocab_size`, and else that of a probe
//! ([`file`](mod@crate::file)) but for `layer` and `hidden_size`.

use std::collections::BTreeMap;
use std::path::Path;

use crate::bins::{Bins, MAX_BINS};
use crate::error::Error;
use crate::file::{Common, Reader, Storage, read_file, serialize};
use crate::softmax::softmax;

/// `format` of a predictor file.
const FORMAT: &str = "trail-prompt-predictor";

/// A trained prompt-only predictor of the total output length.
pub struct Predictor {
    bins: Bins,
    vocab: usize,
    /// `[vocab, bins]`: the weights of one token are contiguous.
    weight: Vec<f32>,
    bias: Vec<f32>,
    /// Fingerprint of the model that it was trained for, at most 128 characters.
    pub model: Option<String>,
    /// Record of the training: the metadata that the format does not define.
    pub record: BTreeMap<String, String>,
}

impl Predictor {
    /// A predictor with `weight` `[bins, vocab]` and `bias` `[bins]`, without fingerprint and
    /// record. Panics on other lengths.
    pub fn new(bins: Bins, vocab: usize, weight: &[f32], bias: &[f32]) -> Predictor {
        assert!(vocab > 0, "a predictor without a vocabulary");
        assert_eq!((weight.len(), bias.len()), (bins.count() * vocab, bins.count()));
        let weight = transposed(weight, vocab);
        Predictor { bins, vocab, weight, bias: bias.to_vec(), model: None, record: BTreeMap::new() }
    }

    /// Reads the predictor file at `path`.
    pub fn open(path: impl AsRef<Path>) -> Result<Predictor, Error> {
        let (bytes, name) = read_file(path.as_ref())?;
        Predictor::from_bytes(&bytes, &name)
    }

    /// Parses `bytes`, the contents of a predictor file; errors name the file `name`.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Predictor, Error> {
        let mut reader = Reader::new(bytes, name, FORMAT)?;
        let bins = reader.bins()?;
        let vocab = reader.integer("vocab_size", 1..=1 << 28)? as usize;
        let weight = reader.tensor("weight", &[bins.count(), vocab])?;
        let bias = reader.tensor("bias", &[bins.count()])?;
        let model = reader.model()?;
        let record = reader.into_record();
        Ok(Predictor { model, record, ..Predictor::new(bins, vocab, &weight, &bias) })
    }

    /// The contents of a predictor file, of version 2. Keys of the record that the format defines
    /// are left out. Panics if the fingerprint has more than 128 characters.
    pub fn to_bytes(&self, storage: Storage) -> Vec<u8> {
        let count = self.bins.count();
        let weight = transposed(&self.weight, count);
        let tensors: [(&str, &[usize], &[f32]); 2] =
            [("weight", &[count, self.vocab], &weight), ("bias", &[count], &self.bias)];
        let own = [("vocab_size", self.vocab.to_string())];
        let (model, record) = (self.model.as_deref(), &self.record);
        serialize(Common { format: FORMAT, bins: self.bins, model, record }, own, &tensors, storage)
    }

    /// The bins of total output length.
    pub fn bins(&self) -> Bins {
        self.bins
    }

    /// Expected total output tokens of a prompt: the mean of the distribution, as in the code
    /// released with TRAIL.
    pub fn predict(&self, prompt_ids: &[u32]) -> f32 {
        self.bins.expected(&self.probabilities(prompt_ids)[..self.bins.count()])
    }

    /// Midpoint of the most probable bin, in tokens: r as TRAIL section 3.3 defines it.
    pub fn predict_midpoint(&self, prompt_ids: &[u32]) -> f32 {
        let q = self.probabilities(prompt_ids);
        let likeliest =
            (0..self.bins.count()).fold(0, |best, i| if q[i] > q[best] { i } else { best });
        self.bins.midpoint(likeliest) as f32
    }

    /// The total output tokens whose countdown, clamped at 1, has the least expected error summed
    /// over the tokens of the answer.
    ///
    /// A long answer counts with more tokens than a short one, so that this point lies above the
    /// median. Taken over the bins' midpoints.
    pub fn predict_countdown(&self, prompt_ids: &[u32]) -> f32 {
        let q = self.probabilities(prompt_ids);
        let midpoint = |bin| self.bins.midpoint(bin) as f32;
        let error = |said: f32| -> f32 {
            let of = |bin| q[bin] * countdown_error(said, midpoint(bin));
            (0..self.bins.count()).map(of).sum()
        };
        let points = (0..self.bins.count()).map(midpoint);
        points.min_by(|&a, &b| error(a).total_cmp(&error(b))).expect("at least one bin")
    }

    /// The distribution over the bins; entries past their count are zero. Ids outside the
    /// vocabulary are ignored.
    pub fn probabilities(&self, prompt_ids: &[u32]) -> [f32; MAX_BINS] {
        let count = self.bins.count();
        let mut ids: Vec<u32> =
            prompt_ids.iter().copied().filter(|&id| (id as usize) < self.vocab).collect();
        ids.sort_unstable();
        // In f64, which finite f32 weights cannot overflow: every prompt gets a finite answer.
        let mut logits = [0.0; MAX_BINS];
        logits.iter_mut().zip(&self.bias).for_each(|(logit, &bias)| *logit = f64::from(bias));
        for run in ids.chunk_by(|a, b| a == b) {
            let feature = (run.len() as f64).ln_1p();
            let weights = &self.weight[run[0] as usize * count..][..count];
            for (logit, &weight) in logits.iter_mut().zip(weights) {
                *logit += feature * f64::from(weight);
            }
        }
        let largest = logits[..count].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut q = [0.0; MAX_BINS];
        q.iter_mut().zip(&logits[..count]).for_each(|(q, logit)| *q = (logit - largest) as f32);
        softmax(&mut q[..count]);
        q
    }
}

/// Transposes a row-major matrix of `columns` columns.
fn transposed(matrix: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| matrix[column..].iter().step_by(columns).copied()).collect()
}

/// Error of counting `said` tokens down over an answer of `length`, summed over its tokens: as long
/// as `said` lasts the difference, then what is left.
fn countdown_error(said: f32, length: f32) -> f32 {
    let rest = (length - said).max(0.0);
    (said - length).abs() * said.min(length) + 0.5 * rest * rest
}

#[cfg(test)]
mod tests;
