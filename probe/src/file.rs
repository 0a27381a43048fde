//! `probe.safetensors`: the probe's weights, layer and bins.
//!
//! Tensors, `f32` or bf16, row-major `[out, in]`: `hidden.weight` `[hidden, d]`, `hidden.bias`
//! `[hidden]`, `output.weight` `[bins, hidden]`, `output.bias` `[bins]`; and if the probe has a
//! [`Fit`], for the token filter, `fit.lengths` `[states]`, `fit.bins` `[bins]`, `fit.temperature`
//! and `fit.evidence` `[ages]`. What it reads beside the activation ([`Inputs`]) are
//! further tensors: of the prompt `prompt.mean.weight` `[hidden, d]` and `prompt.length.weight`
//! `[hidden]`, of the age `age.bias` `[ages, hidden]`. Metadata, all strings:
//!
//! * `format` = `trail-probe`, `version` = `2`, or `3` if it reads more than the activation or is
//!   of another head;
//! * `layer`: 0-based index of the block whose output is tapped, or up to four that ascend, with
//!   `+` between, whose outputs are read side by side; `hidden_size`: d, that of all together;
//! * `edges`: boundaries of the bins in tokens, decimal numbers with commas between
//!   ([`Bins::from_edges`]); `bins` and `max_tokens` repeat their number and the last one;
//! * `filter`, optional: `raw`, `bins` or `tokens`, the filter that predictions pass; by default
//!   `tokens` with a fit, else `bins`;
//! * `head`, optional: `bins` (the default) or `survival` ([`HeadKind`]);
//! * `min_run_tokens`, `express`, `initial_share`, optional: [`RankOptions`];
//! * `model`, optional: a fingerprint of the model that the probe was trained for, at most 128
//!   characters;
//! * any other key: the record of the training, which is kept and not interpreted.
//!
//! Version 1 has no edges: its bins are equal, `bins` over `max_tokens`.
//!
//! The contents are untrusted: any bytes give a probe or an [`Error`].

mod read;
mod write;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use trail_platform::Isa;

use crate::age::AGES;
use crate::bins::Bins;
use crate::error::Error;
use crate::head::Head;
use crate::inputs::Inputs;
use crate::lengths::Lengths;
use crate::rank_options::RankOptions;
use crate::smoothing::Smoother;
use crate::tap_layers::TapLayers;
use crate::token_filter::{Fit, TokenFilter};
use crate::tracker::{Filter, FilterKind};
use crate::weights::{HIDDEN, HeadKind, PromptWeights, Weights};

pub(crate) use read::{Reader, read_file};
pub use write::Storage;
pub(crate) use write::{Common, serialize};

/// `format` of a probe file.
const FORMAT: &str = "trail-probe";

/// Newest version of the format.
const VERSION: u32 = 3;

/// A trained probe: the tapped layer, the predicted bins, and the MLP between the two.
pub struct Probe {
    /// The transformer blocks whose outputs are tapped, side by side in an input.
    pub layers: TapLayers,
    /// The bins of remaining length.
    pub bins: Bins,
    /// The MLP, packed for the CPU kernels.
    pub head: Head,
    /// The same weights unpacked, for upload to a device.
    pub weights: Arc<Weights>,
    /// Parameters of the token filter.
    pub fit: Option<Fit>,
    /// The filter of its predictions. `None`: over tokens if there is a fit, else over bins.
    pub filter_kind: Option<FilterKind>,
    /// Options of the rank to schedule with.
    pub rank_options: RankOptions,
    /// Fingerprint of the model that it was trained for, at most 128 characters; errors quote it.
    pub model: Option<String>,
    /// Record of the training: the metadata that the format does not define.
    pub record: BTreeMap<String, String>,
}

impl Probe {
    /// A probe of `weights` on the outputs of `layers`, without fingerprint and record. Panics if
    /// the tensors contradict the sizes, or the sizes the bins.
    pub fn new(weights: Weights, bins: Bins, layers: TapLayers) -> Probe {
        assert_eq!(weights.bins, bins.count(), "bins of the weights, and bins");
        let head = Head::new(&weights);
        Probe {
            layers,
            bins,
            head,
            weights: Arc::new(weights),
            fit: None,
            filter_kind: None,
            rank_options: RankOptions::default(),
            model: None,
            record: BTreeMap::new(),
        }
    }

    /// True if its predictions can pass a filter: filters take answers that are cut as ended, which
    /// a survival head does not.
    pub fn has_filters(&self) -> bool {
        self.weights.kind == HeadKind::Bins
    }

    /// The kind of the filter of its predictions; over tokens only with a fit, and none without
    /// [`Probe::has_filters`].
    pub fn filter_kind(&self) -> FilterKind {
        if !self.has_filters() {
            return FilterKind::Raw;
        }
        match (self.filter_kind, &self.fit) {
            (Some(FilterKind::Tokens) | None, Some(_)) => FilterKind::Tokens,
            (Some(FilterKind::Raw), _) => FilterKind::Raw,
            _ => FilterKind::Bins,
        }
    }

    /// The filter of its predictions.
    pub fn filter(&self) -> Filter {
        let smoother = Smoother::new(self.bins);
        match (self.filter_kind(), &self.fit) {
            (FilterKind::Raw, _) if !self.has_filters() => Filter::Survival(smoother),
            (FilterKind::Raw, _) => Filter::Raw(smoother),
            (FilterKind::Tokens, Some(fit)) => {
                let filter = TokenFilter::new(self.bins, fit.clone()).with_isa(self.head.isa());
                Filter::Tokens(filter.expect("the head runs on the same CPU"))
            }
            _ => Filter::Bins(smoother),
        }
    }

    /// Reads `path`. The head uses the kernels of [`Isa::detect`]; see [`Probe::with_isa`].
    pub fn open(path: impl AsRef<Path>) -> Result<Probe, Error> {
        let (bytes, name) = read_file(path.as_ref())?;
        Probe::from_bytes(&bytes, &name)
    }

    /// Parses `bytes`, the contents of a probe file; errors name the file `name`.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Probe, Error> {
        let mut reader = Reader::new(bytes, name, FORMAT, VERSION)?;
        let bins = reader.bins()?;
        let layers = reader.layers()?;
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
            kind: HeadKind::ALL[reader.one_of("head", &HeadKind::ALL.map(HeadKind::name))?],
            prompt: read_prompt(&reader, hidden, d)?,
            age_bias: match reader.has("age.bias") {
                true => reader.tensor("age.bias", &[AGES, hidden])?,
                false => Vec::new(),
            },
        };
        let fit = read_fit(&reader, &bins)?;
        let filter_kind = match reader.one_of("filter", &["default", "raw", "bins", "tokens"])? {
            0 => None,
            at => Some(FilterKind::ALL[at - 1]),
        };
        let rank_options = RankOptions::read(&mut reader)?;
        let model = reader.model()?;
        let record = reader.into_record();
        let plain = Probe::new(weights, bins, layers);
        Ok(Probe { fit, filter_kind, rank_options, model, record, ..plain })
    }

    /// The contents of a probe file. Keys of the record that the format defines are left out.
    /// Panics if the fingerprint has more than 128 characters.
    pub fn to_bytes(&self, storage: Storage) -> Vec<u8> {
        let weights = &self.weights;
        let filter = self.filter_kind().name().to_owned();
        let own = [
            ("layer", self.layers.to_string()),
            ("hidden_size", weights.d.to_string()),
            ("filter", filter),
            ("head", weights.kind.name().to_owned()),
        ];
        let Weights { d, hidden, bins, .. } = **weights;
        let states = self.fit.as_ref().map_or(0, |fit| fit.lengths.len());
        let (hidden_shape, output_shape) = ([hidden, d], [bins, hidden]);
        let ages_shape = [AGES, hidden];
        let (hidden, bins, states, ages) = ([hidden], [bins], [states], [AGES]);
        let mut tensors: Vec<(&str, &[usize], &[f32])> = vec![
            ("hidden.weight", &hidden_shape, &weights.hidden_weight),
            ("hidden.bias", &hidden, &weights.hidden_bias),
            ("output.weight", &output_shape, &weights.output_weight),
            ("output.bias", &bins, &weights.output_bias),
        ];
        if let Some(prompt) = &weights.prompt {
            tensors.push(("prompt.mean.weight", &hidden_shape, &prompt.mean_weight));
            tensors.push(("prompt.length.weight", &hidden, &prompt.length_weight));
        }
        if !weights.age_bias.is_empty() {
            tensors.push(("age.bias", &ages_shape, &weights.age_bias));
        }
        if let Some(fit) = &self.fit {
            tensors.push(("fit.lengths", &states, &fit.lengths));
            tensors.push(("fit.temperature", &ages, &fit.temperature));
            tensors.push(("fit.evidence", &ages, &fit.evidence));
        }
        let (model, record) = (self.model.as_deref(), &self.record);
        let bins = Some(self.bins);
        let is_plain = weights.inputs() == Inputs::default() && weights.kind == HeadKind::Bins;
        let version = if is_plain { 2 } else { VERSION };
        let own = if is_plain { &own[..3] } else { &own };
        let own: Vec<_> = own.iter().cloned().chain(self.rank_options.named()).collect();
        serialize(Common { format: FORMAT, version, bins, model, record }, &own, &tensors, storage)
    }

    /// An untrained probe of the paper's shape, the same for the same seed: for tests and timing.
    pub fn random(d: usize, layer: usize, seed: u64) -> Probe {
        let bins = Bins::default();
        Probe::new(Weights::random(d, HIDDEN, bins.count(), seed), bins, TapLayers::one(layer))
    }

    /// The same probe with untrained weights for `inputs`, the same for the same seed.
    pub fn with_random_inputs(self, inputs: Inputs, seed: u64) -> Probe {
        let weights = Weights::clone(&self.weights).with_random(inputs, seed);
        let probe = Probe::new(weights, self.bins, self.layers);
        Probe { head: probe.head, weights: probe.weights, ..self }
    }

    /// The same probe on the kernels of `isa`; an error if this CPU cannot run them.
    pub fn with_isa(self, isa: Isa) -> Result<Probe, String> {
        Ok(Probe { head: self.head.with_isa(isa)?, ..self })
    }
}

/// The weights of the prompt's share, if the file has them.
fn read_prompt(
    reader: &Reader<'_>,
    hidden: usize,
    d: usize,
) -> Result<Option<PromptWeights>, Error> {
    if !reader.has("prompt.mean.weight") {
        return Ok(None);
    }
    Ok(Some(PromptWeights {
        mean_weight: reader.tensor("prompt.mean.weight", &[hidden, d])?,
        length_weight: reader.tensor("prompt.length.weight", &[hidden])?,
    }))
}

/// The fit, if the file has one.
fn read_fit(reader: &Reader<'_>, bins: &Bins) -> Result<Option<Fit>, Error> {
    if !reader.has("fit.lengths") {
        return Ok(None);
    }
    let by_age = |tensor: &str| -> Result<[f32; AGES], Error> {
        let values = reader.tensor(tensor, &[AGES])?;
        Ok(values.try_into().expect("of this length"))
    };
    let states = Lengths::new(bins.max_tokens()).len();
    let fit = Fit {
        lengths: reader.tensor("fit.lengths", &[states])?,
        temperature: by_age("fit.temperature")?,
        evidence: by_age("fit.evidence")?,
    };
    let checked = fit.check(bins).map(|()| Some(fit));
    checked.map_err(|why| reader.refuse("fit", "the fit of these bins", why))
}

#[cfg(test)]
mod tests;
