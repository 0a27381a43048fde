//! A model with its engine.

use std::ffi::c_char;
use std::sync::Arc;

use trail_cli::{Error, OpenModel};
use trail_runtime::text::{ChatMessage, ChatOptions};

use crate::pointers;
use crate::request::{TrailRequest, TrailRequestOptions};
use crate::status::{Failure, TrailStatus, guard, value};

/// A model with its engine. Any number of threads may call its functions at once.
pub struct TrailEngine {
    model: Arc<OpenModel>,
}

/// Sizes of an engine.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct TrailEngineInfo {
    /// Most tokens of prompt and answer together.
    pub max_model_len: usize,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Most sequences in one step.
    pub max_running: usize,
    /// Requests submitted and not finished.
    pub num_unfinished: usize,
}

/// Loads a model and starts its engine. `options` are those of `trail-rt serve` on model,
/// predictions, scheduling and device, a text each: `"--model"`, `"PATH"`, `"--threads"`,
/// `"4"`. The engine is closed by `trail_engine_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_engine_open(
    options: *const *const c_char,
    num_options: usize,
    engine: *mut *mut TrailEngine,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let options = unsafe { pointers::texts("options", options, num_options) }?;
        pointers::check("engine", engine)?;
        let model = OpenModel::open(&options);
        let model = Arc::new(model.map_err(|why| Failure::of(&why, TrailStatus::Model))?);
        // SAFETY: as the header asks for.
        unsafe { pointers::give("engine", engine, TrailEngine { model }) }
    })
}

/// Ends an engine; with open requests it goes on until the last one is closed. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_engine_close(engine: *mut TrailEngine) {
    guard(|| {
        // SAFETY: as the header asks for.
        unsafe { pointers::close(engine) };
        Ok(())
    });
}

/// Writes the sizes of an engine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_engine_info(
    engine: *const TrailEngine,
    info: *mut TrailEngineInfo,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let engine = unsafe { pointers::reference("engine", engine) }?.model.engine();
        let config = &engine.model().config;
        let sizes = TrailEngineInfo {
            max_model_len: config.max_context,
            vocab_size: config.vocab_size,
            max_running: engine.max_running(),
            num_unfinished: engine.live() as usize,
        };
        // SAFETY: as the header asks for.
        unsafe { pointers::write("info", info, sizes) }
    })
}

/// Writes the first `capacity` tokens of `text` to `tokens`, and the number of all to `num_tokens`.
/// With `as_chat` the text is a user's turn, by the model's chat template, if it has one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_engine_encode(
    engine: *const TrailEngine,
    text: *const c_char,
    as_chat: bool,
    tokens: *mut u32,
    capacity: usize,
    num_tokens: *mut usize,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let engine = unsafe { pointers::reference("engine", engine) }?;
        // SAFETY: as the header asks for.
        let text = unsafe { pointers::text("text", text) }?;
        pointers::check("num_tokens", num_tokens)?;
        let all = encode(&engine.model, text, as_chat).map_err(Failure::argument)?;
        let written = &all[..all.len().min(capacity)];
        // SAFETY: as the header asks for.
        unsafe { pointers::write_all("tokens", tokens, written) }?;
        // SAFETY: as the header asks for.
        unsafe { pointers::write("num_tokens", num_tokens, all.len()) }
    })
}

fn encode(model: &OpenModel, text: &str, as_chat: bool) -> Result<Vec<u32>, Error> {
    let setup = model.setup();
    if !as_chat || !setup.template.is_present() {
        return setup.raw_prompt(text);
    }
    let turn = ChatMessage::new("user", text);
    Ok(setup.template.encode(&*setup.tokenizer()?, &[turn], ChatOptions::default())?)
}

/// Submits a request, which is closed by `trail_request_close`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_engine_submit(
    engine: *const TrailEngine,
    options: *const TrailRequestOptions,
    request: *mut *mut TrailRequest,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let engine = unsafe { pointers::reference("engine", engine) }?;
        // SAFETY: as the header asks for.
        let options = unsafe { pointers::sized("options", options) }?;
        // SAFETY: as the header asks for.
        let (new, stops, notifications) = unsafe { options.read() }?;
        pointers::check("request", request)?;
        let answer = engine.model.submit(new, stops, Default::default());
        let answer = answer.map_err(|why| Failure::of(&why, TrailStatus::Engine))?;
        // SAFETY: as the header asks for.
        unsafe {
            let new = TrailRequest::new(&engine.model, answer, notifications);
            pointers::give("request", request, new)
        }
    })
}

/// True if the engine broke down: every request ends with `TRAIL_FINISH_REASON_FAILED`, and another
/// engine must be opened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_engine_has_failed(engine: *const TrailEngine) -> bool {
    value(true, || {
        // SAFETY: as the header asks for.
        let engine = unsafe { pointers::reference("engine", engine) }?;
        Ok(engine.model.engine().fault().is_some())
    })
}
