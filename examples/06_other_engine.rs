//! Example 6: The scheduler in front of another engine: a toy with its own KV pool, as vLLM or
//! candle would have one. The scheduler says which tokens to compute into which blocks; the engine
//! computes.
//!
//! `cargo run --release --example 06_other_engine`

use std::error::Error;
use std::io::Write;

use trail_scheduler::policies::PolicyKind;
use trail_scheduler::rng::{Rng, mix};
use trail_scheduler::{
    BLOCK_TOKENS, BlockId, NewRequest, PlanRow, RequestId, Scheduler, SchedulerConfig,
};

/// A model whose next token depends on every key in its KV pool that its request has written.
struct Toy {
    /// One key a token, by block and place in the block.
    keys: Vec<u64>,
}

impl Toy {
    fn new(num_blocks: u32) -> Toy {
        Toy { keys: vec![u64::MAX; (num_blocks * BLOCK_TOKENS) as usize] }
    }

    /// Computes the tokens of `row`; returns the next one if the row is sampled.
    fn forward(&mut self, row: &PlanRow, blocks: &[BlockId], tokens: &[u64]) -> Option<u64> {
        let place = |position: u32| {
            let block = blocks[(position / BLOCK_TOKENS) as usize];
            (block * BLOCK_TOKENS + position % BLOCK_TOKENS) as usize
        };
        let end = row.start + row.len;
        for position in row.start..end {
            self.keys[place(position)] = key(tokens[position as usize], position);
        }
        row.sample.then(|| next_token((0..end).map(|position| self.keys[place(position)])))
    }
}

fn key(token: u64, position: u32) -> u64 {
    mix(token ^ u64::from(position) << 32)
}

fn next_token(keys: impl Iterator<Item = u64>) -> u64 {
    keys.fold(0, |sum, key| mix(sum ^ key)) % 1000
}

/// The same answer without scheduler, blocks and batches.
fn alone(prompt: &[u64], length: usize) -> Vec<u64> {
    let mut tokens = prompt.to_vec();
    while tokens.len() < prompt.len() + length {
        let keys = tokens.iter().zip(0..).map(|(&token, position)| key(token, position));
        tokens.push(next_token(keys));
    }
    tokens
}

/// A request of the toy: one in five has a long answer.
struct Request {
    prompt: Vec<u64>,
    length: usize,
    arrival_s: f64,
}

impl Request {
    fn workload(count: u64) -> Vec<Request> {
        let mut rng = Rng::new(7);
        let request = |at: u64| Request {
            prompt: (0..8 + rng.below(56)).map(|_| rng.below(1000)).collect(),
            length: if at.is_multiple_of(5) { 150 } else { 10 } + rng.below(10) as usize,
            arrival_s: at as f64 * 0.05,
        };
        (0..count).map(request).collect()
    }
}

/// Mean latency and number of evictions of a run under `policy`.
fn serve(requests: &[Request], policy: PolicyKind) -> Result<(f64, usize), Box<dyn Error>> {
    let config = SchedulerConfig {
        max_running: 8,
        num_blocks: 64,
        max_context: 512,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config, policy.build())?;
    let mut toy = Toy::new(config.num_blocks);
    // The request at each index of the scheduler, and its tokens so far.
    let mut live: Vec<Option<(usize, Vec<u64>)>> = vec![None; config.max_requests as usize];
    let (mut arrived, mut finished, mut evicted) = (0, 0, 0);
    let (mut latency_s, mut now_s) = (0.0, 0.0);
    for step in 0.. {
        while let Some(request) = requests.get(arrived).filter(|new| new.arrival_s <= now_s) {
            let idx = scheduler.submit(NewRequest {
                id: RequestId(arrived as u64),
                prompt_tokens: request.prompt.len() as u32,
                max_tokens: request.length as u32,
                arrival_s: request.arrival_s,
                // A predictor would say so.
                initial_prediction: Some(request.length as f32),
                ..NewRequest::default()
            })?;
            live[idx.index()] = Some((arrived, request.prompt.clone()));
            arrived += 1;
        }
        let plan = scheduler.plan(step, now_s).clone();
        evicted += plan.evicted.len();
        for row in &plan.rows {
            let (_, tokens) = live[row.idx.index()].as_mut().expect("a planned request is live");
            tokens.extend(toy.forward(row, scheduler.blocks(row.idx), tokens));
        }
        scheduler.advance();
        // A step has a fixed cost, and one for each token.
        now_s += 0.01 + 0.0001 * f64::from(plan.tokens());
        for row in &plan.rows {
            let (at, tokens) = live[row.idx.index()].as_ref().expect("a planned request is live");
            let Request { prompt, length, arrival_s } = &requests[*at];
            if tokens.len() == prompt.len() + length {
                assert_eq!(*tokens, alone(prompt, *length), "the blocks were mixed up");
                (finished, latency_s) = (finished + 1, latency_s + now_s - arrival_s);
                live[row.idx.index()] = None;
                scheduler.finish(row.idx);
            }
        }
        if finished == requests.len() {
            break;
        }
    }
    Ok((latency_s / requests.len() as f64, evicted))
}

/// Prints the comparison.
pub fn main() -> Result<(), Box<dyn Error>> {
    run(&mut std::io::stdout())
}

/// Mean latency of the toy's requests under two policies. Every answer is checked.
pub fn run(out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let requests = Request::workload(200);
    for name in ["fcfs", "trail-bert"] {
        let (mean_s, evicted) = serve(&requests, name.parse()?)?;
        writeln!(out, "{name:<12} mean latency {mean_s:>6.2} s, {evicted} evictions")?;
    }
    Ok(())
}
