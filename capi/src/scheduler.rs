//! The scheduler, for engines that compute their own batches.

use std::ffi::c_char;

use trail_scheduler::policies::{Needs, PolicyKind};
use trail_scheduler::{CheckedScheduler, NewRequest, SchedulerConfig};

use crate::pointers;
use crate::status::{Failure, TrailStatus, guard, value};

/// Sizes of a scheduler. `trail_scheduler_options_default` fills it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TrailSchedulerOptions {
    /// Bytes of this structure, as the caller's header has it.
    pub size: usize,
    /// Most sequences in one step.
    pub max_running: u32,
    /// Most requests at once: running, paused and waiting.
    pub max_requests: u32,
    /// Most tokens to compute in one step, at least `max_running`.
    pub token_budget: u32,
    /// KV blocks of 16 tokens.
    pub num_blocks: u32,
    /// Longest prompt and answer together, tokens.
    pub max_context: u32,
    /// Share of the blocks that stays free when a request enters the batch.
    pub watermark: f32,
}

/// A request to submit. `trail_new_request_default` fills it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TrailNewRequest {
    /// Bytes of this structure, as the caller's header has it.
    pub size: usize,
    /// Tokens of the prompt, at least 1.
    pub prompt_tokens: u32,
    /// Most tokens of the answer, at least 1.
    pub max_tokens: u32,
    /// Tokens of the answer that another engine has generated.
    pub generated: u32,
    /// Requests of a lower priority go first, -127 to 127.
    pub priority: i32,
    /// Time of arrival, seconds on the caller's clock.
    pub arrival_s: f64,
    /// Output tokens that a predictor expects of the prompt, above 0; negative for none.
    pub predicted_length: f32,
}

/// The tokens of one request to compute in a step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TrailPlanRow {
    /// Number of the request.
    pub request: u64,
    /// Position of the first token, from 0.
    pub start: u32,
    /// Tokens to compute.
    pub num_tokens: u32,
    /// True if the next token is sampled after the last one.
    pub sample: bool,
}

/// The plan of a step. Its lists are valid until the next call of its scheduler.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TrailPlan {
    /// Number of the step.
    pub step: u64,
    /// The rows, best rank first.
    pub rows: *const TrailPlanRow,
    /// Number of rows.
    pub num_rows: usize,
    /// Requests that were in the last plan and are not in this one.
    pub preempted: *const u64,
    /// Number of these requests.
    pub num_preempted: usize,
    /// Requests that have lost their blocks: their next row begins at 0.
    pub evicted: *const u64,
    /// Number of these requests.
    pub num_evicted: usize,
}

/// A scheduler. One thread at a time calls its functions.
pub struct TrailScheduler {
    scheduler: CheckedScheduler,
    rows: Vec<TrailPlanRow>,
    preempted: Vec<u64>,
    evicted: Vec<u64>,
}

impl TrailScheduler {
    /// Copies the last plan.
    fn copy_plan(&mut self) -> TrailPlan {
        let (scheduler, plan) = (&self.scheduler, self.scheduler.scheduler().last_plan());
        self.rows.clear();
        let rows = scheduler.planned().iter().zip(&plan.rows);
        self.rows.extend(rows.map(|(&request, row)| TrailPlanRow {
            request,
            start: row.start,
            num_tokens: row.len,
            sample: row.sample,
        }));
        let lists = [(&mut self.preempted, &plan.preempted), (&mut self.evicted, &plan.evicted)];
        for (to, from) in lists {
            to.clear();
            to.extend(from.iter().map(|&idx| scheduler.number(idx)));
        }
        TrailPlan {
            step: plan.step,
            rows: self.rows.as_ptr(),
            num_rows: self.rows.len(),
            preempted: self.preempted.as_ptr(),
            num_preempted: self.preempted.len(),
            evicted: self.evicted.as_ptr(),
            num_evicted: self.evicted.len(),
        }
    }
}

/// Fills `options` of `sizeof(TrailSchedulerOptions)` bytes with the defaults: those of vLLM, and
/// 1,024 blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_options_default(
    options: *mut TrailSchedulerOptions,
    size: usize,
) -> TrailStatus {
    let SchedulerConfig {
        max_running,
        max_requests,
        token_budget,
        num_blocks,
        max_context,
        watermark,
        ..
    } = SchedulerConfig::default();
    let default = TrailSchedulerOptions {
        size: size_of::<TrailSchedulerOptions>(),
        max_running,
        max_requests,
        token_budget,
        num_blocks,
        max_context,
        watermark,
    };
    // SAFETY: as the header asks for.
    guard(|| unsafe { pointers::fill("options", options, size, default) })
}

/// Creates a scheduler of a policy, as `"trail:0.8"`; `trail_scheduler_close` ends it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_open(
    policy: *const c_char,
    options: *const TrailSchedulerOptions,
    scheduler: *mut *mut TrailScheduler,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let policy = unsafe { pointers::text("policy", policy) }?;
        // SAFETY: as the header asks for.
        let options = unsafe { pointers::sized("options", options) }?;
        let kind: PolicyKind = policy.parse().map_err(|why: String| Failure::argument(why))?;
        if kind.needs() == Needs::TrueLengths {
            let why = format!("'{policy}' ranks by true lengths, which no request has here");
            return Err(Failure::argument(why));
        }
        let config = SchedulerConfig {
            max_running: options.max_running,
            max_requests: options.max_requests,
            token_budget: options.token_budget,
            num_blocks: options.num_blocks,
            max_context: options.max_context,
            watermark: options.watermark,
            ..SchedulerConfig::default()
        };
        let new = CheckedScheduler::new(config, kind).map_err(Failure::argument)?;
        let new = TrailScheduler {
            scheduler: new,
            rows: Vec::with_capacity(config.max_running as usize),
            preempted: Vec::new(),
            evicted: Vec::new(),
        };
        // SAFETY: as the header asks for.
        unsafe { pointers::give("scheduler", scheduler, new) }
    })
}

/// Ends a scheduler. NULL is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_close(scheduler: *mut TrailScheduler) {
    guard(|| {
        // SAFETY: as the header asks for.
        unsafe { pointers::close(scheduler) };
        Ok(())
    });
}

/// Fills `request` of `sizeof(TrailNewRequest)` bytes with the defaults: no prediction.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_new_request_default(
    request: *mut TrailNewRequest,
    size: usize,
) -> TrailStatus {
    let default = TrailNewRequest {
        size: size_of::<TrailNewRequest>(),
        prompt_tokens: 0,
        max_tokens: 0,
        generated: 0,
        priority: 0,
        arrival_s: 0.0,
        predicted_length: -1.0,
    };
    // SAFETY: as the header asks for.
    guard(|| unsafe { pointers::fill("request", request, size, default) })
}

/// Takes a request into the queue, and writes its number, which no other one of the scheduler has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_submit(
    scheduler: *mut TrailScheduler,
    request: *const TrailNewRequest,
    number: *mut u64,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let scheduler = unsafe { pointers::exclusive("scheduler", scheduler) }?;
        // SAFETY: as the header asks for.
        let request = unsafe { pointers::sized("request", request) }?;
        pointers::check("number", number)?;
        let submitted = scheduler.scheduler.submit(NewRequest {
            prompt_tokens: request.prompt_tokens,
            max_tokens: request.max_tokens,
            generated: request.generated,
            priority: request.priority,
            arrival_s: request.arrival_s,
            initial_prediction: Some(request.predicted_length)
                .filter(|&length| length.is_nan() || length >= 0.0),
            ..NewRequest::default()
        });
        // SAFETY: as the header asks for.
        unsafe { pointers::write("number", number, submitted.map_err(Failure::argument)?) }
    })
}

/// Records how many output tokens a request is expected to need from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_predict(
    scheduler: *mut TrailScheduler,
    request: u64,
    remaining: f32,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let scheduler = &mut unsafe { pointers::exclusive("scheduler", scheduler) }?.scheduler;
        scheduler.predict(request, remaining, [0.0; 3], None).map_err(Failure::argument)
    })
}

/// Plans the next step, at `now_s` seconds on the caller's clock.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_plan(
    scheduler: *mut TrailScheduler,
    now_s: f64,
    plan: *mut TrailPlan,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let scheduler = unsafe { pointers::exclusive("scheduler", scheduler) }?;
        pointers::check("plan", plan)?;
        scheduler.scheduler.plan(now_s).map_err(Failure::argument)?;
        // SAFETY: as the header asks for.
        unsafe { pointers::write("plan", plan, scheduler.copy_plan()) }
    })
}

/// Records that the plan's rows were computed, and a token sampled where they say so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_advance(scheduler: *mut TrailScheduler) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let scheduler = &mut unsafe { pointers::exclusive("scheduler", scheduler) }?.scheduler;
        scheduler.advance().map_err(Failure::argument)
    })
}

/// Records `tokens` that the last step sampled beyond one: draft tokens that were right.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_accept(
    scheduler: *mut TrailScheduler,
    request: u64,
    tokens: u32,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let scheduler = &mut unsafe { pointers::exclusive("scheduler", scheduler) }?.scheduler;
        scheduler.accept(request, tokens).map_err(Failure::argument)
    })
}

/// Removes a request, completed or cancelled.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_finish(
    scheduler: *mut TrailScheduler,
    request: u64,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let scheduler = &mut unsafe { pointers::exclusive("scheduler", scheduler) }?.scheduler;
        scheduler.finish(request).map_err(Failure::argument)
    })
}

/// Writes the KV blocks of a request, in the order of its tokens; the list is valid until the next
/// call of the scheduler.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_blocks(
    scheduler: *const TrailScheduler,
    request: u64,
    blocks: *mut *const u32,
    num_blocks: *mut usize,
) -> TrailStatus {
    guard(|| {
        // SAFETY: as the header asks for.
        let scheduler = &unsafe { pointers::reference("scheduler", scheduler) }?.scheduler;
        pointers::check("blocks", blocks)?;
        let list = scheduler.blocks(request).map_err(Failure::argument)?;
        // SAFETY: as the header asks for.
        unsafe { pointers::write("num_blocks", num_blocks, list.len()) }?;
        // SAFETY: as the header asks for.
        unsafe { pointers::write("blocks", blocks, list.as_ptr()) }
    })
}

/// Output tokens that a request is expected to need; negative without a prediction, or if it has
/// finished.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn trail_scheduler_remaining(
    scheduler: *const TrailScheduler,
    request: u64,
) -> f32 {
    value(-1.0, || {
        // SAFETY: as the header asks for.
        let scheduler = &unsafe { pointers::reference("scheduler", scheduler) }?.scheduler;
        let state = scheduler.state(request).map_err(Failure::argument)?;
        Ok(state.remaining().unwrap_or(-1.0))
    })
}
