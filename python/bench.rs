//! The costs of the scheduler and the rate of the engine without Python, for `bench.py`: a line of
//! JSON.
//!
//! `bench scheduler`, or `bench engine THREADS`.

use std::error::Error;
use std::time::{Duration, Instant};

use trail_cli::OpenModel;
use trail_runtime::engine::{Event, Request};
use trail_scheduler::policies::PolicyKind;
use trail_scheduler::{CheckedScheduler, NewRequest, SchedulerConfig};

/// Requests in a step.
const RUNNING: u32 = 64;
/// Steps of a measurement, and tokens of an answer of the engine.
const STEPS: u32 = 400;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["scheduler"] => scheduler(),
        ["engine", threads] => engine(threads),
        _ => Err("give scheduler, or engine THREADS".into()),
    }
}

/// Microseconds of a call, of `calls` in `time`.
fn us(time: Duration, calls: u32) -> f64 {
    time.as_secs_f64() * 1e6 / f64::from(calls)
}

fn scheduler() -> Result<(), Box<dyn Error>> {
    let config = SchedulerConfig { num_blocks: 1 << 16, ..SchedulerConfig::default() };
    let config = SchedulerConfig { max_running: RUNNING, token_budget: 4096, ..config };
    let mut scheduler = CheckedScheduler::new(config, PolicyKind::trail(0.8))?;
    let new = NewRequest {
        prompt_tokens: 16,
        max_tokens: 4096,
        initial_prediction: Some(1000.0),
        ..NewRequest::default()
    };
    let begin = Instant::now();
    let requests: Vec<u64> =
        (0..RUNNING).map(|_| scheduler.submit(new)).collect::<Result<_, _>>()?;
    let submit = us(begin.elapsed(), RUNNING);
    let mut times = [Duration::ZERO; 3];
    for step in 0..STEPS {
        let begin = Instant::now();
        let rows = scheduler.plan(f64::from(step) * 1e-3)?.rows.len();
        times[0] += begin.elapsed();
        assert_eq!(rows, RUNNING as usize);
        let begin = Instant::now();
        scheduler.advance()?;
        times[1] += begin.elapsed();
        let begin = Instant::now();
        for &request in &requests {
            scheduler.predict(request, 900.0, [0.0; 3], None)?;
        }
        times[2] += begin.elapsed();
    }
    let [plan, advance, predict] = times;
    let (plan, advance) = (us(plan, STEPS), us(advance, STEPS));
    let predict = us(predict, STEPS * RUNNING);
    println!(
        "{{\"submit\": {submit}, \"plan\": {plan}, \"advance\": {advance}, \"predict\": {predict}}}"
    );
    Ok(())
}

fn engine(threads: &str) -> Result<(), Box<dyn Error>> {
    let options = ["--threads", threads].map(String::from);
    let model = OpenModel::open(&options)?;
    let prompt = model.setup().raw_prompt("Once upon a time")?;
    let mut best: f64 = 0.0;
    for round in 0..6 {
        let begin = Instant::now();
        let submit = |seed: u64| {
            let mut request = Request::new(prompt.clone(), STEPS);
            (request.sampling.seed, request.ignore_eos) = (seed, true);
            model.submit(request, Vec::new(), Default::default())
        };
        let answers: Vec<_> = (0..8).map(submit).collect::<Result<_, _>>()?;
        let mut tokens = 0;
        for mut answer in answers {
            while let Some((event, _)) = answer.next(Duration::from_secs(60)) {
                tokens += u32::from(matches!(event, Event::Token { .. }));
            }
        }
        // The first round warms up.
        let rate = f64::from(tokens) / begin.elapsed().as_secs_f64();
        best = if round == 0 { 0.0 } else { best.max(rate) };
    }
    println!("{{\"tokens_per_s\": {best}}}");
    Ok(())
}
