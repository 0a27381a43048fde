//! Simulations of requests in arrays.

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use numpy::{IntoPyArray, PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use trail_scheduler::SchedulerConfig;
use trail_scheduler::limits::MAX_REQUESTS;
use trail_scheduler::policies::PolicyKind;
use trail_simulator::{Job, Refined, Simulation, SimulationRun, StepModel, Trace};

use crate::params::PRIORITIES;
use crate::signals::Signals;
use crate::{arrays, error, scheduler};

/// Time between two looks at a computation that cannot be stopped.
const WAIT: Duration = Duration::from_millis(1);

/// The columns of a trace.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Columns<'py> {
    arrival: PyReadonlyArray1<'py, f64>,
    prompt: PyReadonlyArray1<'py, i64>,
    output: PyReadonlyArray1<'py, i64>,
    predicted: Option<PyReadonlyArray1<'py, f32>>,
    priority: Option<PyReadonlyArray1<'py, i64>>,
    /// Predictions of the remaining tokens, by request.
    remaining: Option<Vec<PyReadonlyArray1<'py, f32>>>,
}

/// Predictions after the first one, of requests without recorded ones: those of the request of a
/// row.
fn refined(name: &str) -> PyResult<fn(usize) -> Refined> {
    match name {
        "none" => Ok(|_| Refined::None),
        "exact" => Ok(|_| Refined::Exact),
        "probe" => Ok(|row| Refined::Release(row as u64 + 1)),
        _ => Err(error::request(format!("refined is '{name}': choose none, exact or probe"))),
    }
}

/// The predictions that `remaining` has for a row.
fn recorded(remaining: &[PyReadonlyArray1<'_, f32>], row: usize) -> PyResult<Vec<f32>> {
    let of = &remaining[row];
    arrays::column("remaining", of, of.len()).map(<[f32]>::to_vec)
}

/// The priority that a column has.
fn priority(row: usize, given: i64) -> PyResult<i32> {
    let priority = i32::try_from(given).ok().filter(|given| PRIORITIES.contains(given));
    priority.ok_or_else(|| {
        let why = format!("request {row}: priority is {given}: give a number from -127 to 127");
        error::request(why)
    })
}

/// The requests of the columns, in order of arrival.
fn jobs(columns: &Columns<'_>, max_tokens: u32, refine: &str) -> PyResult<Vec<Job>> {
    let refined = refined(refine)?;
    let rows = columns.arrival.len();
    let arrival = arrays::column("arrival", &columns.arrival, rows)?;
    let prompt = arrays::counts("prompt", &columns.prompt, rows)?;
    let output = arrays::counts("output", &columns.output, rows)?;
    let predicted = columns.predicted.as_ref();
    let predicted = predicted.map(|of| arrays::column("predicted", of, rows)).transpose()?;
    let priorities = columns.priority.as_ref();
    let priorities = priorities.map(|of| arrays::column("priority", of, rows)).transpose()?;
    let remaining = columns.remaining.as_ref();
    if let Some(given) = remaining.map(Vec::len).filter(|&given| given != rows) {
        let why = format!("remaining has {given} arrays: give one for each of {rows} requests");
        return Err(error::request(why));
    }
    let job = |row: usize| {
        // The checks of a trace's file.
        let trace = Trace {
            id: row as u64,
            arrival_s: arrival[row],
            prompt_tokens: prompt[row],
            output_tokens: output[row],
            r: predicted.map(|of| of[row]).filter(|tokens| !tokens.is_nan()),
            remaining: remaining.map(|all| recorded(all, row)).transpose()?,
            block_hashes: None,
        };
        let wrong = |why| error::request(format!("request {row}: {why}"));
        trace.validate().map_err(wrong)?;
        let job = trace.job(max_tokens);
        let priority = priorities.map_or(Ok(0), |of| priority(row, of[row]))?;
        let refined = if remaining.is_some() { job.refined } else { refined(row) };
        Ok(Job { priority, refined, ..job })
    };
    let mut jobs: Vec<Job> = (0..rows).map(job).collect::<PyResult<_>>()?;
    jobs.sort_by_key(|job| job.arrival_ns);
    Ok(jobs)
}

/// A simulation that holds all `requests` at once, unless the options say otherwise.
fn simulation(
    requests: usize,
    model: &str,
    policy: &str,
    workers: u32,
    max_gap: f64,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<(Simulation, PolicyKind)> {
    let model: StepModel = model.parse().map_err(|why: String| error::request(why))?;
    let default = model.scheduler();
    let max_requests = (requests as u32).clamp(default.max_requests, MAX_REQUESTS);
    let base = SchedulerConfig { max_requests, ..default };
    let (config, policy) = scheduler::settings(base, policy, options)?;
    let max_gap = Duration::try_from_secs_f64(max_gap)
        .map_err(|_| error::request(format!("max_gap is {max_gap}: give seconds, 0 or more")))?;
    Ok((Simulation { workers, max_gap, ..Simulation::new(config, model) }, policy))
}

/// Runs a trace under a policy.
#[pyfunction]
#[pyo3(signature = (columns, policy, model, max_tokens, refined, workers, max_gap, options=None))]
#[allow(clippy::too_many_arguments)] // one caller, with keywords
pub(crate) fn simulate<'py>(
    py: Python<'py>,
    columns: Columns<'py>,
    policy: &str,
    model: &str,
    max_tokens: u32,
    refined: &str,
    workers: u32,
    max_gap: f64,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyDict>> {
    let jobs = jobs(&columns, max_tokens, refined)?;
    let (simulation, policy) = simulation(jobs.len(), model, policy, workers, max_gap, options)?;
    let mut signals = Signals::new();
    let run = py.detach(|| {
        simulation.run(&|| policy.build(), &jobs, &mut |_| match signals.raised() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        })
    });
    signals.into_result()?;
    result(py, &run.map_err(error::request)?)
}

/// Outcomes by request, in order of arrival, and totals.
fn result<'py>(py: Python<'py>, run: &SimulationRun) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    let outcomes = &run.outcomes;
    let seconds = |name: &str, get: fn(&trail_simulator::JobOutcome) -> f64| {
        dict.set_item(name, outcomes.iter().map(get).collect::<Vec<_>>().into_pyarray(py))
    };
    seconds("arrival", |of| of.arrival_s)?;
    seconds("ttft", |of| of.ttft_s)?;
    seconds("latency", |of| of.latency_s)?;
    seconds("longest_gap", |of| of.longest_gap_s)?;
    let counts = |name: &str, get: fn(&trail_simulator::JobOutcome) -> i64| {
        dict.set_item(name, outcomes.iter().map(get).collect::<Vec<_>>().into_pyarray(py))
    };
    counts("request", |of| of.id as i64)?;
    counts("output", |of| of.output_tokens.into())?;
    counts("preemptions", |of| of.preemptions.into())?;
    counts("evictions", |of| of.evictions.into())?;
    counts("worker", |of| of.worker.into())?;
    dict.set_item("makespan", run.makespan_s)?;
    dict.set_item("steps", run.steps)?;
    dict.set_item("tokens", run.tokens)?;
    dict.set_item("tokens_per_s", run.tokens_per_s())?;
    dict.set_item("recomputed_tokens", run.recomputed_tokens)?;
    dict.set_item("prediction_mae", run.prediction_mae)?;
    Ok(dict)
}

/// Mean latency below which no policy can come.
#[pyfunction]
#[pyo3(signature = (columns, model, max_tokens, workers, max_gap, options=None))]
pub(crate) fn lower_bound<'py>(
    py: Python<'py>,
    columns: Columns<'py>,
    model: &str,
    max_tokens: u32,
    workers: u32,
    max_gap: f64,
    options: Option<&Bound<'py, PyDict>>,
) -> PyResult<f64> {
    let jobs = jobs(&columns, max_tokens, "none")?;
    let (simulation, _) = simulation(jobs.len(), model, "fcfs", workers, max_gap, options)?;
    // After Ctrl-C the thread ends later, and its result is dropped.
    let bound = thread::spawn(move || trail_simulator::lower_bound(&simulation, &jobs));
    while !bound.is_finished() {
        py.detach(|| thread::sleep(WAIT));
        py.check_signals()?;
    }
    Ok(bound.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
}

/// The columns of a trace's text.
#[pyfunction]
pub(crate) fn read_trace<'py>(py: Python<'py>, text: &str) -> PyResult<Bound<'py, PyDict>> {
    let traces = py.detach(|| Trace::parse(text)).map_err(error::model)?;
    let dict = PyDict::new(py);
    let arrival: Vec<f64> = traces.iter().map(|of| of.arrival_s).collect();
    let prompt: Vec<i64> = traces.iter().map(|of| of.prompt_tokens.into()).collect();
    let output: Vec<i64> = traces.iter().map(|of| of.output_tokens.into()).collect();
    dict.set_item("arrival", arrival.into_pyarray(py))?;
    dict.set_item("prompt", prompt.into_pyarray(py))?;
    dict.set_item("output", output.into_pyarray(py))?;
    if traces.iter().any(|of| of.r.is_some()) {
        let predicted: Vec<f32> = traces.iter().map(|of| of.r.unwrap_or(f32::NAN)).collect();
        dict.set_item("predicted", predicted.into_pyarray(py))?;
    }
    if traces.iter().all(|of| of.remaining.is_some()) {
        let all = traces.into_iter().filter_map(|of| of.remaining);
        let remaining: Vec<_> = all.map(|of| of.into_pyarray(py)).collect();
        dict.set_item("remaining", remaining)?;
    }
    Ok(dict)
}
