//! The scheduler, for engines that compute their own batches.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use trail_scheduler::policies::{PolicyKind, Ranking};
use trail_scheduler::{
    CheckedScheduler, Misuse, NewRequest, PlanRow, RequestIdx, RequestState, Reserve,
    SchedulerConfig,
};

use crate::error;

fn parse(policy: &str) -> PyResult<PolicyKind> {
    policy.parse().map_err(|why| error::request(format!("policy '{policy}': {why}")))
}

/// Options by their names in [`SchedulerConfig`] and in [`Ranking`].
type Options<'a, 'py> = Option<&'a Bound<'py, PyDict>>;

/// The sizes of a simulated machine, and its policy: one that does not rank by length leaves the
/// options of a rank out, as it is compared with others.
pub(crate) fn settings(
    mut base: SchedulerConfig,
    policy: &str,
    options: Options<'_, '_>,
) -> PyResult<(SchedulerConfig, PolicyKind)> {
    let mut policy = parse(policy)?;
    let mut unused = Ranking::DEFAULT;
    let ranking = policy.ranking_mut().unwrap_or(&mut unused);
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        if !set_size(&mut base, &name, &value)? && !set_rank(ranking, &name, &value)? {
            return Err(unexpected(&name, "a scheduler"));
        }
    }
    Ok((base, policy))
}

/// A policy with the options of a rank, which it must have. Other options are those of `sizes`.
pub(crate) fn ranked(
    policy: &str,
    options: Options<'_, '_>,
    mut sizes: Option<&mut SchedulerConfig>,
) -> PyResult<PolicyKind> {
    let mut kind = parse(policy)?;
    let (mut own, mut unused) = (kind.ranking_mut(), Ranking::DEFAULT);
    for (name, value) in options.into_iter().flatten() {
        let name: String = name.extract()?;
        if let Some(config) = &mut sizes
            && set_size(config, &name, &value)?
        {
            continue;
        }
        let has_rank = own.is_some();
        if !set_rank(own.as_deref_mut().unwrap_or(&mut unused), &name, &value)? {
            return Err(unexpected(
                &name,
                if sizes.is_some() { "a scheduler" } else { "a policy" },
            ));
        }
        if !has_rank {
            let why = format!("{name} is of policies that rank by length, not of '{policy}'");
            return Err(error::request(why));
        }
    }
    Ok(kind)
}

fn unexpected(name: &str, of: &str) -> PyErr {
    PyTypeError::new_err(format!("'{name}' is an unexpected keyword: no option of {of}"))
}

/// Sets a size by its name. False if there is none of this name.
fn set_size(config: &mut SchedulerConfig, name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    match name {
        "max_running" => config.max_running = value.extract()?,
        "max_requests" => config.max_requests = value.extract()?,
        "token_budget" => config.token_budget = value.extract()?,
        "num_blocks" => config.num_blocks = value.extract()?,
        "max_context" => config.max_context = value.extract()?,
        "watermark" => config.watermark = value.extract()?,
        "max_skipped_steps" => config.max_skipped_steps = value.extract()?,
        "max_barrier_steps" => config.max_barrier_steps = value.extract()?,
        "max_lookahead" => config.max_lookahead = value.extract()?,
        "max_recompute" => config.max_recompute = value.extract()?,
        "refresh_tokens" => config.refresh_tokens = value.extract()?,
        "reserve" => config.reserve = reserve(&value.extract::<String>()?)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Sets an option of a rank by its name. False if there is none of this name.
fn set_rank(ranking: &mut Ranking, name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    match name {
        "min_run_tokens" => ranking.min_run_tokens = value.extract()?,
        "tail_bound" => ranking.tail_bound = factor(name, value)?,
        "express" => ranking.express = factor(name, value)?,
        "prefill_weight" => ranking.prefill_weight = factor(name, value)?,
        "initial_share" => ranking.initial_share = share(name, value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn factor(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f32> {
    number(name, value, 1e6)
}

fn share(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f32> {
    number(name, value, 1.0)
}

/// A number from 0 to `max`.
fn number(name: &str, value: &Bound<'_, PyAny>, max: f32) -> PyResult<f32> {
    let value: f32 = value.extract()?;
    match (0.0..=max).contains(&value) {
        true => Ok(value),
        false => Err(error::request(format!("{name} is {value}: give a number from 0 to {max}"))),
    }
}

fn reserve(name: &str) -> PyResult<Reserve> {
    match name {
        "present" => Ok(Reserve::None),
        "mean" => Ok(Reserve::Mean),
        "p90" => Ok(Reserve::P90),
        _ => Err(error::request(format!("reserve is '{name}': choose present, mean or p90"))),
    }
}

/// The tokens of one request to compute in a step.
#[pyclass(frozen, get_all, module = "trail_rt._native")]
pub(crate) struct Row {
    request: u64,
    start: u32,
    num_tokens: u32,
    sample: bool,
}

/// The plan of a step.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct Plan {
    rows: Vec<(u64, PlanRow)>,
    #[pyo3(get)]
    step: u64,
    #[pyo3(get)]
    preempted: Vec<u64>,
    #[pyo3(get)]
    evicted: Vec<u64>,
    #[pyo3(get)]
    recomputed_tokens: u32,
}

#[pymethods]
impl Plan {
    /// The rows, best rank first.
    #[getter]
    fn rows(&self) -> Vec<Row> {
        let row = |&(request, PlanRow { start, len, sample, .. }): &_| Row {
            request,
            start,
            num_tokens: len,
            sample,
        };
        self.rows.iter().map(row).collect()
    }

    /// Tokens that the step computes.
    #[getter]
    fn num_tokens(&self) -> u32 {
        self.rows.iter().map(|(_, row)| row.len).sum()
    }

    fn __len__(&self) -> usize {
        self.rows.len()
    }
}

/// Ranks requests by what they have left, and plans the steps of an engine.
#[pyclass(frozen, module = "trail_rt._native")]
pub(crate) struct Scheduler {
    scheduler: Mutex<CheckedScheduler>,
}

impl Scheduler {
    fn lock(&self) -> MutexGuard<'_, CheckedScheduler> {
        self.scheduler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Scheduler {
    #[new]
    #[pyo3(signature = (policy="trail", **options))]
    fn new(policy: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<Scheduler> {
        let mut config = SchedulerConfig::default();
        let policy = ranked(policy, options, Some(&mut config))?;
        let scheduler = CheckedScheduler::new(config, policy).map_err(error::request)?;
        Ok(Scheduler { scheduler: Mutex::new(scheduler) })
    }

    /// Takes a request into the queue; returns its number.
    #[pyo3(signature = (prompt_tokens, max_tokens, *, arrival=0.0, predicted_length=None,
                        true_length=None, priority=0, generated=0))]
    #[allow(clippy::too_many_arguments)] // keywords of Python
    fn submit(
        &self,
        prompt_tokens: u32,
        max_tokens: u32,
        arrival: f64,
        predicted_length: Option<f32>,
        true_length: Option<u32>,
        priority: i32,
        generated: u32,
    ) -> PyResult<u64> {
        let number = self.lock().submit(NewRequest {
            prompt_tokens,
            max_tokens,
            generated,
            arrival_s: arrival,
            initial_prediction: predicted_length,
            true_length,
            priority,
            ..NewRequest::default()
        });
        number.map_err(error::request)
    }

    /// Records how many output tokens `request` is expected to need from now on, or from the
    /// beginning of `step`. One whose request has finished has no effect.
    #[pyo3(signature = (request, remaining, *, quantiles=None, step=None))]
    fn predict(
        &self,
        request: u64,
        remaining: f32,
        quantiles: Option<(f32, f32, f32)>,
        step: Option<u64>,
    ) -> PyResult<()> {
        let quantiles = quantiles.unwrap_or_default();
        match self.lock().predict(request, remaining, quantiles.into(), step) {
            // It may have ended since.
            Ok(()) | Err(Misuse::NoRequest(_)) => Ok(()),
            Err(why) => Err(error::request(why)),
        }
    }

    /// Plans the next step, at `now` seconds.
    fn plan(&self, now: f64) -> PyResult<Plan> {
        let mut scheduler = self.lock();
        scheduler.plan(now).map_err(error::request)?;
        let plan = scheduler.scheduler().last_plan();
        let numbers = |of: &[RequestIdx]| of.iter().map(|&idx| scheduler.number(idx)).collect();
        Ok(Plan {
            rows: scheduler.planned().iter().copied().zip(plan.rows.iter().copied()).collect(),
            step: plan.step,
            preempted: numbers(&plan.preempted),
            evicted: numbers(&plan.evicted),
            recomputed_tokens: plan.recomputed_tokens,
        })
    }

    /// Records that the plan's rows were computed, and a token sampled in each that says so.
    fn advance(&self) -> PyResult<()> {
        self.lock().advance().map_err(error::request)
    }

    /// Records `tokens` more for a request for which the last step sampled: draft tokens that were
    /// the ones sampled.
    fn accept(&self, request: u64, tokens: u32) -> PyResult<()> {
        self.lock().accept(request, tokens).map_err(error::request)
    }

    /// Removes a request, completed or not. False if it has finished before.
    fn finish(&self, request: u64) -> bool {
        self.lock().finish(request).is_ok()
    }

    /// The KV blocks of a request, in the order of its tokens.
    fn blocks(&self, request: u64) -> PyResult<Vec<u32>> {
        self.lock().blocks(request).map(<[u32]>::to_vec).map_err(error::request)
    }

    /// Output tokens of a request so far.
    fn generated(&self, request: u64) -> PyResult<u32> {
        self.lock().state(request).map(|state| state.generated).map_err(error::request)
    }

    /// Output tokens that a request is expected to need.
    fn remaining(&self, request: u64) -> PyResult<Option<f32>> {
        self.lock().state(request).map(RequestState::remaining).map_err(error::request)
    }

    /// Ranks by another policy from the next plan on.
    #[pyo3(signature = (policy, **options))]
    fn set_policy(&self, policy: &str, options: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        let policy = ranked(policy, options, None)?;
        self.lock().set_policy(policy).map_err(error::request)
    }

    /// Requests in the last plan that are not finished.
    #[getter]
    fn num_running(&self) -> usize {
        self.lock().scheduler().running()
    }

    /// Requests without KV.
    #[getter]
    fn num_waiting(&self) -> usize {
        self.lock().scheduler().waiting()
    }

    /// Preempted requests that hold their KV.
    #[getter]
    fn num_paused(&self) -> usize {
        self.lock().scheduler().paused()
    }

    /// KV blocks that requests hold.
    #[getter]
    fn blocks_used(&self) -> u32 {
        self.lock().scheduler().blocks_used()
    }

    /// Tokens of a KV block.
    #[classattr]
    const BLOCK_TOKENS: u32 = trail_scheduler::BLOCK_TOKENS;

    fn __len__(&self) -> usize {
        self.lock().scheduler().live()
    }
}
