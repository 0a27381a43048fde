//! `bench flips`: whether an answer depends on anything but its request.
//!
//! The same requests are answered under settings that must not matter: threads, other requests,
//! chunks of prefill, memory pressure, policy, prefix cache, speculation, order of arrival, a move
//! from another engine half-way. Every three levels of three settings occur together in some run (a
//! covering array of strength 3).
//! Tokens and the bits of their log-probabilities are compared with those of each request alone.

mod requests;

use clap::Args;
use serde::Serialize;
use serde_json::json;
use trail_cli::{EngineArgs, Error, ModelArgs, Setup};
use trail_platform::covering;
use trail_runtime::engine::{
    ComputeDevice, Engine, Event, FinishReason, PolicyKind, Request, RequestHandle, Stats,
};

use crate::adapters::AdapterArgs;
use crate::report::{BenchReport, Column, Group};

/// Options of `bench flips`.
#[derive(Args, Clone, Debug)]
pub struct FlipsArgs {
    /// Requests of each run: chats, copies, sampled ones and long ones in turn
    #[arg(long, default_value_t = 24,
        value_parser = clap::value_parser!(u32).range(4..=100_000))]
    requests: u32,
    /// Output tokens of each request
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    tokens: u32,
    /// Seed of requests and settings
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Adapters that requests have in turn, as others have none.
    #[command(flatten)]
    adapters: AdapterArgs,
}

/// A setting, and its levels.
type Setting = (&'static str, &'static [&'static str]);

/// The settings; [`Run::engine`] makes options of their levels.
const SETTINGS: [Setting; 9] = [
    ("threads", &["1", "2"]),
    ("max-running", &["1", "4", "16"]),
    ("token-budget", &["32", "512"]),
    ("kv-blocks", &["few", "many"]),
    ("policy", &["fcfs", "trail", "rr"]),
    ("prefix-cache", &["on", "off"]),
    ("speculate", &["off", "ngram", "auto"]),
    ("order", &["as given", "reversed"]),
    ("moved", &["no", "half-way"]),
];

pub const COLUMNS: &[Group] = &[
    Group(
        "",
        &[
            Column("threads", "/threads", 0),
            Column("running", "/max-running", 0),
            Column("budget", "/token-budget", 0),
            Column("KV blocks", "/kv-blocks", 0),
            Column("policy", "/policy", 0),
            Column("prefix cache", "/prefix-cache", 0),
            Column("speculate", "/speculate", 0),
            Column("order", "/order", 0),
            Column("moved", "/moved", 0),
        ],
    ),
    Group(
        "tokens",
        &[
            Column("compared", "/positions", 0),
            Column("cached", "/cached_tokens", 0),
            Column("drafted", "/draft_tokens", 0),
            Column("accepted", "/accepted_tokens", 0),
        ],
    ),
    Group("", &[Column("evictions", "/evictions", 0), Column("flips", "/flips", 0)]),
];

/// An answer to the bit.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<u32>,
}

impl Answer {
    /// Its first `count` tokens.
    fn first(&self, count: usize) -> Answer {
        let (tokens, logprobs) = (&self.tokens[..count], &self.logprobs[..count]);
        Answer { tokens: tokens.to_vec(), logprobs: logprobs.to_vec() }
    }
}

/// Answers of a run that differ from those of the requests alone, and the evidence that the run's
/// settings had an effect.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Found {
    positions: u64,
    flips: u64,
    cached_tokens: u64,
    draft_tokens: u64,
    accepted_tokens: u64,
    evictions: u64,
}

impl Found {
    fn add(&mut self, other: &Found) {
        self.positions += other.positions;
        self.flips += other.flips;
        self.cached_tokens += other.cached_tokens;
        self.draft_tokens += other.draft_tokens;
        self.accepted_tokens += other.accepted_tokens;
        self.evictions += other.evictions;
    }
}

/// Answers the requests alone, then under each row of the covering array. The failure, if any,
/// follows the report.
pub fn run(
    args: &FlipsArgs,
    model: &ModelArgs,
    engine: &EngineArgs,
) -> Result<(BenchReport, Option<Error>), Error> {
    let setup = Setup::load(model)?;
    // Without a probe, policies that rank by one find no predictions.
    let setup = if setup.probe_file().is_some() { setup } else { setup.replaying() };
    let requests = requests::requests(args, &setup)?;
    let longest = requests.iter().map(|r| r.prompt.len() as u32 + r.max_tokens).max().unwrap_or(1);
    let alone = Run { setup: &setup, base: engine, longest, row: [0; SETTINGS.len()] };
    let expected = alone.answers_alone(&requests)?;
    let (mut rows, mut total) = (Vec::new(), Found::default());
    for row in covering::array(&SETTINGS.map(|(_, levels)| levels.len()), args.seed) {
        let run = Run { row, ..alone };
        let (answers, stats) = run.answers(&requests, &expected)?;
        let found = compare(&answers, &expected, &stats);
        let mut object = json!(found);
        for (name, level) in run.levels() {
            object[name] = json!(level);
        }
        rows.push(object);
        total.add(&found);
    }
    let json = json!({
        "model": setup.name,
        "requests": requests.len(),
        "positions": total.positions,
        "flips": total.flips,
        "runs": rows,
    });
    Ok((BenchReport::new(json, COLUMNS), failure(&total)))
}

/// The error that the totals mean, if any.
fn failure(total: &Found) -> Option<Error> {
    let Found { flips, positions, cached_tokens, accepted_tokens, evictions, .. } = *total;
    if flips > 0 {
        let found = format!("{flips} answers differ from those alone, of {positions} positions");
        return Some(Error::failed(found));
    }
    let unused = [
        ("the prefix cache", cached_tokens),
        ("speculation", accepted_tokens),
        ("eviction", evictions),
    ];
    let unused = unused.iter().find(|(_, count)| *count == 0)?.0;
    Some(Error::failed(format!(
        "{unused} had no effect in any run: ask for more requests or tokens"
    )))
}

fn compare(answers: &[Answer], expected: &[Answer], stats: &Stats) -> Found {
    let pairs = answers.iter().zip(expected);
    Found {
        positions: expected.iter().map(|answer| answer.tokens.len() as u64).sum(),
        flips: pairs.filter(|(answer, expected)| answer != expected).count() as u64,
        cached_tokens: stats.cached_tokens,
        draft_tokens: stats.draft_tokens,
        accepted_tokens: stats.accepted_tokens,
        evictions: stats.evictions,
    }
}

/// One run: a level of each setting.
#[derive(Clone, Copy)]
struct Run<'a> {
    setup: &'a Setup,
    base: &'a EngineArgs,
    /// Tokens of the longest request.
    longest: u32,
    row: [usize; SETTINGS.len()],
}

impl Run<'_> {
    fn levels(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        SETTINGS.into_iter().zip(self.row).map(|((name, levels), level)| (name, levels[level]))
    }

    /// Answers each request after the one before.
    fn answers_alone(&self, requests: &[Request]) -> Result<Vec<Answer>, Error> {
        let engine = self.engine(requests.len(), true)?;
        let answer = |request| collect(&submit(&engine, request)?, Answer::default());
        requests.iter().cloned().map(answer).collect()
    }

    /// Answers `requests` all at once. Of those that moved here, another engine has generated the
    /// first half of the `expected` answer.
    fn answers(
        &self,
        requests: &[Request],
        expected: &[Answer],
    ) -> Result<(Vec<Answer>, Stats), Error> {
        let engine = self.engine(requests.len(), false)?;
        let has = |level| self.levels().any(|of| of == level);
        let (reversed, moved) = (has(("order", "reversed")), has(("moved", "half-way")));
        let count = |of: &Answer| if moved { of.tokens.len() / 2 } else { 0 };
        let begun: Vec<Answer> = expected.iter().map(|of| of.first(count(of))).collect();
        let mut order: Vec<usize> = (0..requests.len()).collect();
        if reversed {
            order.reverse();
        }
        let mut handles: Vec<Option<RequestHandle>> = requests.iter().map(|_| None).collect();
        for at in order {
            let mut request = requests[at].clone();
            request.prompt.extend(&begun[at].tokens);
            request.generated = begun[at].tokens.len() as u32;
            handles[at] = Some(submit(&engine, request)?);
        }
        let handles = handles.into_iter().flatten().zip(begun);
        let answers =
            handles.map(|(handle, begun)| collect(&handle, begun)).collect::<Result<_, _>>();
        Ok((answers?, engine.stats()))
    }

    /// The engine of the levels; the plainest one if `alone`.
    fn engine(&self, requests: usize, alone: bool) -> Result<Engine, Error> {
        let blocks = self.longest.div_ceil(trail_scheduler::BLOCK_TOKENS);
        let device = self.base.device();
        let mut options = Vec::new();
        let mut policy = PolicyKind::Fcfs;
        for (name, level) in self.levels() {
            match (name, level, alone) {
                // One thread launches the kernels of a GPU.
                ("threads", ..) if device != ComputeDevice::Cpu => {}
                ("policy", level, false) => policy = level.parse().map_err(Error::usage)?,
                ("prefix-cache", "on", false) | ("order" | "moved", ..) | ("policy", _, true) => {}
                ("prefix-cache", _, _) => options.push("--no-prefix-cache".into()),
                ("speculate", _, true) => options.push("--speculate=off".into()),
                ("max-running", _, true) => options.push("--max-running=1".into()),
                ("kv-blocks", "few", false) => {
                    options.push(format!("--kv-blocks={}", blocks * 3 / 2 + 1));
                }
                ("kv-blocks", ..) => options.push(format!("--kv-blocks={}", blocks * 24)),
                (name, level, _) => options.push(format!("--{name}={level}")),
            }
        }
        let engine = self.base.parsed(&options)?;
        let policy = self.setup.with_options(&engine, policy)?;
        self.setup.engine_with(&engine, policy, requests, None)
    }
}

fn submit(engine: &Engine, request: Request) -> Result<RequestHandle, Error> {
    engine.submit(request).map_err(|error| Error::refused("a request: ", &error))
}

/// The whole answer: `answer` has its beginning.
fn collect(handle: &RequestHandle, mut answer: Answer) -> Result<Answer, Error> {
    while let Some(event) = handle.recv() {
        match event {
            Event::Token { id, logprob } => {
                answer.tokens.push(id);
                answer.logprobs.push(logprob.to_bits());
            }
            Event::Finished { reason: FinishReason::Stop | FinishReason::Length } => {}
            Event::Finished { reason } => {
                return Err(Error::failed(format!("a request ended early: {}", reason.name())));
            }
            _ => {}
        }
    }
    Ok(answer)
}
