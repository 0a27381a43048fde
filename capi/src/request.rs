//! A request, from its options to its last event.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use trail_cli::{Answer, OpenModel, random};
use trail_runtime::engine::{Notify, Request, RequestHandle, SamplingParams};

use crate::event::TrailEvent;
use crate::pointers;
use crate::status::{Failure, TrailStatus, guard, value};

/// Called after each event of a request, on a thread of the engine's, perhaps before
/// `trail_engine_submit` returns. It must not wait, not call the functions of its request, and not
/// close a handle. It is not called any more once `trail_request_close` has returned, which waits
/// for a call in progress, nor once a submission has failed.
pub type TrailNotify = Option<unsafe extern "C" fn(data: *mut c_void)>;

/// Options of a request. `trail_request_options_default` fills it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TrailRequestOptions {
    /// Bytes of this structure, as the caller's header has it.
    pub size: usize,
    /// Token ids of the prompt.
    pub prompt: *const u32,
    /// Number of tokens of the prompt, at least 1.
    pub num_prompt: usize,
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// Requests of a lower priority go first, -127 to 127.
    pub priority: i32,
    /// Divides the logits; 0 takes the likeliest token.
    pub temperature: f32,
    /// Share of the probability whose tokens are kept; 1 keeps all.
    pub top_p: f32,
    /// Number of the likeliest tokens that are kept; 0 keeps all.
    pub top_k: u32,
    /// Share of the likeliest token's probability below which none is kept.
    pub min_p: f32,
    /// Divides positive and multiplies negative logits of tokens that have come; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens in the answer; 0 is off.
    pub presence_penalty: f32,
    /// The same for each time that they have come.
    pub frequency_penalty: f32,
    /// Equal seeds give equal answers. The default is random.
    pub seed: u64,
    /// The answer goes on after the model's end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Texts that end the answer, and are no part of it.
    pub stops: *const *const c_char,
    /// Number of these texts.
    pub num_stops: usize,
    /// Token ids that end the answer.
    pub stop_tokens: *const u32,
    /// Number of these tokens.
    pub num_stop_tokens: usize,
    /// Called after each event, until the request is closed; NULL for none.
    pub notify: TrailNotify,
    /// Its argument.
    pub notify_data: *mut c_void,
}

impl Default for TrailRequestOptions {
    fn default() -> TrailRequestOptions {
        let sampling = SamplingParams::default();
        TrailRequestOptions {
            size: size_of::<TrailRequestOptions>(),
            prompt: std::ptr::null(),
            num_prompt: 0,
            max_tokens: 128,
            priority: 0,
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            repetition_penalty: sampling.repetition_penalty,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            seed: random::u64(),
            ignore_eos: false,
            stops: std::ptr::null(),
            num_stops: 0,
            stop_tokens: std::ptr::null(),
            num_stop_tokens: 0,
            notify: None,
            notify_data: std::ptr::null_mut(),
        }
    }
}

/// A function of C with its argument.
struct Call {
    function: unsafe extern "C" fn(data: *mut c_void),
    data: *mut c_void,
}

// SAFETY: the caller of C gives a pointer for the engine's thread, as the header says; this crate
// does not read what is there.
unsafe impl Send for Call {}

/// The notifications of a request: none comes after it is dropped, which waits for one in progress.
pub(crate) struct Notifications(Arc<Mutex<Option<Call>>>);

impl Notifications {
    fn new(options: &TrailRequestOptions) -> Notifications {
        let call = |function| Call { function, data: options.notify_data };
        Notifications(Arc::new(Mutex::new(options.notify.map(call))))
    }

    /// The engine's end.
    fn notify(&self) -> Notify {
        let call = self.0.clone();
        Arc::new(move || {
            if let Some(Call { function, data }) = &*lock(&call) {
                // SAFETY: a function for this argument on this thread, as the header asks for.
                unsafe { function(*data) };
            }
        })
    }
}

impl Drop for Notifications {
    fn drop(&mut self) {
        lock(&self.0).take();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TrailRequestOptions {
    /// The request, its stop strings and its notifications.
    pub(crate) unsafe fn read(&self) -> Result<(Request, Vec<String>, Notifications), Failure> {
        // SAFETY: as the header asks for.
        let prompt = unsafe { pointers::slice("prompt", self.prompt, self.num_prompt) }?;
        // SAFETY: as the header asks for.
        let stops = unsafe { pointers::texts("stops", self.stops, self.num_stops) }?;
        let stop_tokens =
            // SAFETY: as the header asks for.
            unsafe { pointers::slice("stop_tokens", self.stop_tokens, self.num_stop_tokens) }?;
        let notifications = Notifications::new(self);
        let request = Request {
            stop_tokens: stop_tokens.to_vec(),
            ignore_eos: self.ignore_eos,
            priority: self.priority,
            notify: self.notify.map(|_| notifications.notify()),
            sampling: SamplingParams {
                temperature: self.temperature,
                top_p: self.top_p,
                top_k: self.top_k,
                min_p: self.min_p,
                repetition_penalty: self.repetition_penalty,
                presence_penalty: self.presence_penalty,
                frequency_penalty: self.frequency_penalty,
                seed: self.seed,
                ..SamplingParams::default()
            },
            ..Request::new(prompt.to_vec(), self.max_tokens)
        };
        Ok((request, stops, notifications))
    }
}

/// Fills `options` of `sizeof(TrailRequestOptions)` bytes with the defaults: 128 tokens,
/// temperature 1, a random seed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_request_options_default(
    options: *mut TrailRequestOptions,
    size: usize,
) -> TrailStatus {
    // SAFETY: as the header asks for.
    guard(|| unsafe { pointers::fill("options", options, size, TrailRequestOptions::default()) })
}

/// An answer so far.
struct State {
    answer: Answer,
    /// The text of the last event, with a zero byte at its end.
    text: Vec<u8>,
}

/// A request. One thread polls it; any one may cancel it meanwhile.
pub struct TrailRequest {
    /// Ended first.
    _notifications: Notifications,
    /// Apart from the state, which a thread that waits holds.
    handle: Arc<RequestHandle>,
    state: Mutex<State>,
    /// Keeps the engine, whose thread writes the events.
    _model: Arc<OpenModel>,
}

impl TrailRequest {
    pub(crate) fn new(
        model: &Arc<OpenModel>,
        answer: Answer,
        notifications: Notifications,
    ) -> TrailRequest {
        let handle = answer.handle().clone();
        let state = Mutex::new(State { answer, text: vec![0] });
        TrailRequest { _notifications: notifications, handle, state, _model: model.clone() }
    }
}

/// Waits at most `timeout_ms` for the next event, and writes it: `TRAIL_EVENT_KIND_NONE` if none
/// came. 0 does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_request_poll(
    request: *mut TrailRequest,
    timeout_ms: u32,
    event: *mut TrailEvent,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let request = unsafe { pointers::reference("request", request) }?;
        pointers::check("event", event)?;
        let mut state = lock(&request.state);
        let next = state.answer.next(Duration::from_millis(timeout_ms.into()));
        let (next, text) = next.map_or((None, String::new()), |(event, text)| (Some(event), text));
        state.text = text.into_bytes();
        state.text.push(0);
        // SAFETY: as the header asks for.
        unsafe { pointers::write("event", event, TrailEvent::new(next, &state.text)) }
    })
}

/// Ends an answer where it is; its last event still comes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_request_cancel(request: *const TrailRequest) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        unsafe { pointers::reference("request", request) }?.handle.cancel();
        Ok(())
    })
}

/// Output tokens that were expected on submission; a negative number without a predictor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_request_predicted(request: *const TrailRequest) -> f32 {
    value(-1.0, || {
        // SAFETY: as the header asks for.
        let request = unsafe { pointers::reference("request", request) }?;
        Ok(request.handle.initial_prediction().unwrap_or(-1.0))
    })
}

/// Ends a request, which is cancelled if it goes on; its `notify` is not called any more. NULL is
/// none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_request_close(request: *mut TrailRequest) {
    guard(|| {
        // SAFETY: as the header asks for.
        unsafe { pointers::close(request) };
        Ok(())
    });
}
