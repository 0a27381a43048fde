//! The probe: remaining tokens from activations.

use std::path::PathBuf;

use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use trail_probe::file::Storage;
use trail_probe::{Bins, TapLayers, non_finite_row};
use trail_training::{Dataset, Matrix, Recipe, Trainer};

use crate::signals::Signals;
use crate::tracker::Tracker;
use crate::{arrays, error};

/// Most bins, and longest last one.
const MAX_TOKENS: u32 = 1 << 24;

/// Largest learning rate.
const MAX_RATE: f32 = 1.0;

/// Layers of a model that a probe can be of.
const MAX_LAYERS: usize = 4096;

/// A trained probe.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct Probe {
    probe: trail_probe::Probe,
    #[pyo3(get)]
    mae: Option<f64>,
}

/// Inputs beside the activations: the mean over the prompt's, and the prompt's length.
type PromptMean<'py> = (PyReadonlyArray1<'py, f32>, u32);

impl Probe {
    /// The probabilities of the bins by row.
    fn distributions(
        &self,
        py: Python<'_>,
        activations: &PyReadonlyArray2<'_, f32>,
        generated: Option<&PyReadonlyArray1<'_, i64>>,
        prompt: Option<&PromptMean<'_>>,
    ) -> PyResult<Vec<f32>> {
        let head = &self.probe.head;
        let (values, width) = arrays::matrix(activations)?;
        let (rows, d) = (values.len() / width.max(1), head.d());
        if width != d {
            let why = format!("the activations are {width} wide, and the probe reads {d}");
            return Err(error::request(why));
        }
        if let Some(row) = non_finite_row(values, d) {
            return Err(error::request(format!(
                "row {row} of the activations has NaN or infinity"
            )));
        }
        let generated = generated.map(|of| arrays::counts("generated", of, rows)).transpose()?;
        let inputs = head.inputs();
        if inputs.age && generated.is_none() {
            return Err(error::request("the probe reads the age: give generated, by row"));
        }
        let mean = prompt.map(|(mean, _)| arrays::column("prompt", mean, d)).transpose()?;
        if non_finite_row(mean.unwrap_or_default(), d).is_some() {
            return Err(error::request("the mean of the prompt has NaN or infinity"));
        }
        if inputs.prompt && mean.is_none() {
            let why = "the probe reads the prompt: give prompt=(mean activation, tokens)";
            return Err(error::request(why));
        }
        let prompt = mean.zip(prompt.map(|(_, tokens)| *tokens));
        let generated = generated.unwrap_or_default();
        Ok(py.detach(|| head.distributions(values, &generated, prompt)))
    }
}

#[pymethods]
impl Probe {
    /// Trains a probe on activations `[rows, width]`, which are read where they are.
    #[staticmethod]
    #[pyo3(signature = (activations, remaining, *, answers=None, layer=0, bins=10, max_tokens=None,
                        hidden=512, epochs=16, batch=256, rate=1e-3, seed=1))]
    #[allow(clippy::too_many_arguments)] // keywords of Python
    fn train(
        py: Python<'_>,
        activations: PyReadonlyArray2<'_, f32>,
        remaining: PyReadonlyArray1<'_, i64>,
        answers: Option<PyReadonlyArray1<'_, i64>>,
        layer: usize,
        bins: usize,
        max_tokens: Option<u32>,
        hidden: usize,
        epochs: u32,
        batch: usize,
        rate: f32,
        seed: u64,
    ) -> PyResult<Probe> {
        let (values, width) = arrays::matrix(&activations)?;
        let rows = values.len() / width.max(1);
        let remaining = arrays::counts("remaining", &remaining, rows)?;
        let answers = answers.map(|of| arrays::counts("answers", &of, rows)).transpose()?;
        let answers = answers.unwrap_or_default();
        let longest = remaining.iter().copied().max().unwrap_or(0).saturating_add(1);
        let max_tokens = max_tokens.unwrap_or(longest.max(64));
        let is_sound = (1..=trail_probe::MAX_BINS).contains(&bins)
            && (bins as u32..=MAX_TOKENS).contains(&max_tokens)
            && (1..=16384).contains(&hidden)
            && epochs > 0
            && batch > 0;
        if !is_sound {
            return Err(error::request(format!(
                "bins is {bins}, max_tokens {max_tokens}, hidden {hidden}, epochs {epochs}, batch \
                 {batch}: give 1 to {} bins, at least as many tokens, 1 to 16384 hidden units, and 1 \
                 or more of the others",
                trail_probe::MAX_BINS
            )));
        }
        if !(f32::MIN_POSITIVE..=MAX_RATE).contains(&rate) || layer >= MAX_LAYERS {
            return Err(error::request(format!(
                "rate is {rate}, layer {layer}: give a rate above 0 and at most {MAX_RATE}, and a \
                 layer from 0 to {}",
                MAX_LAYERS - 1
            )));
        }
        let bins = Bins::equal(bins, max_tokens);
        let recipe = Recipe { bins, hidden, epochs, batch, rate, seed, ..Recipe::default() };
        let matrix = py.detach(|| Matrix::new(values, width, &remaining, &answers));
        let data = Dataset::of_matrix(matrix.map_err(error::request)?, seed);
        let data = data.map_err(error::request)?;
        let mut trainer = py.detach(|| Trainer::new(data, recipe));
        while !trainer.is_done() {
            let mut signals = Signals::new();
            let epoch = py.detach(|| trainer.run_epoch_until(&mut || signals.raised()));
            signals.into_result()?;
            epoch.map_err(error::request)?;
        }
        let mae = trainer.best_epoch().map(|epoch| epoch.mae);
        let layers = TapLayers::one(layer);
        Ok(Probe { probe: trail_probe::Probe::new(trainer.weights(), bins, layers), mae })
    }

    /// Reads a file.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<Probe> {
        let probe = py.detach(|| trail_probe::Probe::open(path)).map_err(error::model)?;
        Ok(Probe { probe, mae: None })
    }

    /// Writes a file, which the engine reads.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| std::fs::write(&path, self.probe.to_bytes(Storage::F32)))
            .map_err(|why| error::model(format!("cannot write {}: {why}", path.display())))
    }

    /// The probabilities of the bins `[rows, bins]`.
    #[pyo3(signature = (activations, *, generated=None, prompt=None))]
    fn probabilities<'py>(
        &self,
        py: Python<'py>,
        activations: PyReadonlyArray2<'_, f32>,
        generated: Option<PyReadonlyArray1<'_, i64>>,
        prompt: Option<PromptMean<'_>>,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let all = self.distributions(py, &activations, generated.as_ref(), prompt.as_ref())?;
        let bins = self.probe.head.bins();
        let rows = all.len() / bins;
        all.into_pyarray(py).reshape([rows, bins])
    }

    /// The expected remaining tokens `[rows]`, of each row alone.
    #[pyo3(signature = (activations, *, generated=None, prompt=None))]
    fn predict<'py>(
        &self,
        py: Python<'py>,
        activations: PyReadonlyArray2<'_, f32>,
        generated: Option<PyReadonlyArray1<'_, i64>>,
        prompt: Option<PromptMean<'_>>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let all = self.distributions(py, &activations, generated.as_ref(), prompt.as_ref())?;
        let bins = &self.probe.bins;
        let expected = all.chunks_exact(bins.count()).map(|p| bins.expected(p));
        Ok(expected.collect::<Vec<f32>>().into_pyarray(py))
    }

    /// The filter of predictions, for `max_requests` answers at once.
    #[pyo3(signature = (max_requests=1))]
    fn tracker(&self, max_requests: usize) -> PyResult<Tracker> {
        Tracker::new(self.probe.filter(), max_requests)
    }

    /// Width of the activations.
    #[getter]
    fn width(&self) -> usize {
        self.probe.head.d()
    }

    /// Edges of the bins, tokens.
    #[getter]
    fn edges(&self) -> Vec<f64> {
        self.probe.bins.edges().to_vec()
    }

    /// The layers whose outputs are read.
    #[getter]
    fn layers(&self) -> Vec<usize> {
        self.probe.layers.to_vec()
    }
}
