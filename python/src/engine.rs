//! A model with its engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use trail_cli::{Error, OpenModel};
use trail_runtime::text::{ChatMessage, ChatOptions};

use crate::error;
use crate::forecasts::Forecasts;
use crate::params::{self, Params};
use crate::process_model::ProcessModel;
use crate::stream::Stream;
use crate::waker::Waker;

/// Refuses the name of an option, as `--kv-blocks`, that a model does not have.
#[pyfunction]
pub(crate) fn check_option(name: &str) -> PyResult<()> {
    OpenModel::check_name(name).map_err(error::model)
}

/// A model with its engine.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct Engine {
    model: Arc<ProcessModel>,
    forecasts: Arc<Forecasts>,
}

#[pymethods]
impl Engine {
    /// Loads the model and starts the engine, by options of the command line.
    #[new]
    fn new(py: Python<'_>, options: Vec<String>) -> PyResult<Engine> {
        let model = py.detach(|| OpenModel::open(&options)).map_err(error::model)?;
        let forecasts = Arc::new(Forecasts::new(model.engine()));
        Ok(Engine { model: Arc::new(ProcessModel::new(model)), forecasts })
    }

    /// Submits a request; `waker` hears of its events.
    fn submit(
        &self,
        py: Python<'_>,
        prompt: Vec<u32>,
        params: &Bound<'_, PyAny>,
        priority: &Bound<'_, PyAny>,
        waker: Option<PyRef<'_, Waker>>,
    ) -> PyResult<Stream> {
        self.model.check_process()?;
        let prompt_tokens = prompt.len() as u32;
        let max_context = self.model.engine().model().config.max_context;
        let params = Params::read(params)?;
        let priority = params::priority(priority)?;
        let mut request = params.request(prompt, max_context)?;
        request.priority = priority;
        let max_tokens = request.max_tokens;
        let is_queued = Arc::new(AtomicBool::new(false));
        let number = waker.as_ref().map_or(0, |waker| waker.shared.number());
        if let Some(waker) = waker {
            let (shared, is_queued) = (waker.shared.clone(), is_queued.clone());
            request.notify = Some(Arc::new(move || {
                if !is_queued.swap(true, Ordering::AcqRel) {
                    shared.wake(number);
                }
            }));
        }
        let (stops, options) = (params.stop.clone(), params.text_options());
        let answer = py.detach(|| self.model.submit(request, stops, options));
        let answer = answer.map_err(|why| error::submission(&why))?;
        let sizes = (prompt_tokens, max_tokens, priority);
        let watched = self.forecasts.enter(answer.handle(), sizes);
        let stops = params.stop_token_ids;
        Ok(Stream::new(number, is_queued, self.model.clone(), answer, watched, stops))
    }

    /// The tokens of a text, as the model begins with it. One that cannot fit is refused before.
    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        py.detach(|| {
            self.model.check_room([text])?;
            self.model.setup().raw_prompt(text)
        })
        .map_err(error::request)
    }

    /// The tokens of a conversation, by the model's chat template.
    fn encode_chat(&self, py: Python<'_>, messages: Vec<(String, String)>) -> PyResult<Vec<u32>> {
        let turns: Vec<ChatMessage> =
            messages.into_iter().map(|(role, content)| ChatMessage::new(role, content)).collect();
        py.detach(|| {
            self.model.check_room(turns.iter().filter_map(|turn| turn.content.as_deref()))?;
            let setup = self.model.setup();
            let tokenizer = setup.tokenizer()?;
            Ok::<_, Error>(setup.template.encode(&tokenizer, &turns, ChatOptions::default())?)
        })
        .map_err(error::request)
    }

    /// The text of tokens.
    fn decode(&self, tokens: Vec<u32>, skip_special_tokens: bool) -> PyResult<String> {
        self.model.decode(&tokens, skip_special_tokens).map_err(error::request)
    }

    /// The sampling parameters of the model's files.
    fn default_sampling<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let sampling = self.model.sampling().map_err(error::model)?;
        let dict = PyDict::new(py);
        dict.set_item("temperature", sampling.temperature)?;
        dict.set_item("top_k", sampling.top_k)?;
        dict.set_item("top_p", sampling.top_p)?;
        dict.set_item("min_p", sampling.min_p)?;
        dict.set_item("repetition_penalty", sampling.repetition_penalty)?;
        Ok(dict)
    }

    /// Tokens of prompt and answer together.
    #[getter]
    fn max_model_len(&self) -> usize {
        self.model.engine().model().config.max_context
    }

    /// Tokens of the vocabulary.
    #[getter]
    fn vocab_size(&self) -> usize {
        self.model.engine().model().config.vocab_size
    }

    /// Most sequences in one step.
    #[getter]
    fn max_num_seqs(&self) -> usize {
        self.model.engine().max_running()
    }

    /// The device that runs the model.
    #[getter]
    fn device(&self) -> &str {
        self.model.engine().device()
    }

    /// The scheduling policy.
    #[getter]
    fn policy(&self) -> String {
        self.model.engine().policy().to_string()
    }

    /// Requests submitted and not finished.
    fn num_unfinished(&self) -> u32 {
        self.model.engine().live()
    }
}
