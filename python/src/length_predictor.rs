//! Output lengths from the tokens of a prompt.

use std::path::PathBuf;

use pyo3::prelude::*;
use trail_probe::predictor::{Features, LengthPredictor as _, Predictor, Prompt};

use crate::error;

/// A head that `trail-rt predictor train` wrote, over the prompt's tokens or its length.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct LengthPredictor {
    predictor: Predictor,
}

#[pymethods]
impl LengthPredictor {
    /// Reads a file of `trail-rt predictor train`.
    #[staticmethod]
    fn load(py: Python<'_>, path: PathBuf) -> PyResult<LengthPredictor> {
        let predictor = py.detach(|| Predictor::open(&path)).map_err(error::model)?;
        if let Features::Encoder { .. } = predictor.features() {
            let why = "reads an encoder's embedding, which is not made from Python: train one with \
                       --features bag-of-tokens";
            return Err(error::model(format!("{}: {why}", path.display())));
        }
        Ok(LengthPredictor { predictor })
    }

    /// The output tokens that a prompt of these tokens is expected to have.
    fn predict(&self, token_ids: Vec<u32>) -> Option<f32> {
        self.predictor.predict(&Prompt::new(&token_ids)).map(|length| length.mean())
    }
}
