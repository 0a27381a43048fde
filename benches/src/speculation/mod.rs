//! `bench speculation`: tokens per second with draft tokens over those without, on answers that
//! repeat their prompts (edits of code, quotations, tables as JSON) and on free ones.
//!
//! Two engines that differ in nothing else answer each group of prompts in turn, so that both see
//! the same machine. Answers must be equal.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use serde::Deserialize;
use serde_json::json;
use trail_cli::{EngineArgs, Error, ModelArgs, Setup};
use trail_runtime::engine::{Engine, PolicyKind, Request, SamplingParams};

use crate::answers::answer;
use crate::report::{Column, Group};

/// Options of `bench speculation`.
#[derive(Args, Clone, Debug)]
pub struct SpeculationArgs {
    /// Requests at a time
    #[arg(long, value_delimiter = ',', default_value = "1,8",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    batches: Vec<u32>,
    /// Most output tokens of a request
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    tokens: u32,
    /// Runs of all prompts
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Temperature; 0 is greedy
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Measure the draft tokens of this smaller model, instead of prompt lookup
    #[arg(long, value_name = "PATH")]
    draft: Option<PathBuf>,
}

pub const COLUMNS: &[Group] = &[
    Group("", &[Column("batch", "/batch", 0), Column("kind", "/kind", 0)]),
    Group(
        "tokens/s",
        &[
            Column("off", "/off_tokens_per_s", 1),
            Column("with", "/tokens_per_s", 1),
            Column("with / off", "/ratio", 2),
        ],
    ),
    Group(
        "tokens",
        &[
            Column("all", "/tokens", 0),
            Column("drafted", "/draft_tokens", 0),
            Column("accepted", "/accepted_tokens", 0),
        ],
    ),
];

/// A prompt of the file.
#[derive(Deserialize)]
struct Prompt {
    kind: String,
    prompt: String,
}

/// Seconds and tokens of one kind of prompts.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    off_s: f64,
    s: f64,
    tokens: u64,
    drafts: u64,
    accepted: u64,
}

pub fn run(
    args: &SpeculationArgs,
    model: &ModelArgs,
    engine: &EngineArgs,
) -> Result<serde_json::Value, Error> {
    let setup = Setup::load(model)?;
    let mut kinds: BTreeMap<String, Vec<Request>> = BTreeMap::new();
    for line in include_str!("prompts.jsonl").lines() {
        let Prompt { kind, prompt } = serde_json::from_str(line).expect("a line of the file");
        let temperature = args.temperature;
        let sampling = SamplingParams { temperature, seed: 1, ..SamplingParams::default() };
        let request = Request::new(setup.user_prompt(&prompt)?, args.tokens);
        kinds.entry(kind).or_default().push(Request { sampling, ..request });
    }
    let draft = args.draft.as_ref().map(|path| format!("draft:{}", path.display()));
    let mode = draft.as_deref().unwrap_or("auto");
    let mut rows = Vec::new();
    for &batch in &args.batches {
        let new = |mode: &str| {
            let options = [format!("--speculate={mode}"), format!("--max-running={batch}")];
            let engine = engine.parsed(&[&options[..], &["--no-prefix-cache".into()]].concat())?;
            setup.engine_with(&engine, PolicyKind::Fcfs, batch as usize, None)
        };
        let engines = [new("off")?, new(mode)?];
        for (kind, requests) in &kinds {
            let mut sum = Sum::default();
            for _ in 0..args.rounds {
                requests
                    .chunks(batch as usize)
                    .try_for_each(|of| compare(&engines, of, &mut sum))?;
            }
            rows.push(json!({
                "batch": batch,
                "kind": kind,
                "off_tokens_per_s": sum.tokens as f64 / sum.off_s,
                "tokens_per_s": sum.tokens as f64 / sum.s,
                "ratio": sum.off_s / sum.s,
                "tokens": sum.tokens,
                "draft_tokens": sum.drafts,
                "accepted_tokens": sum.accepted,
            }));
        }
    }
    Ok(json!({ "model": setup.name, "mode": mode, "threads": engine.threads(), "rows": rows }))
}

/// Answers `requests` by each engine.
fn compare([off, with]: &[Engine; 2], requests: &[Request], sum: &mut Sum) -> Result<(), Error> {
    let expected = answer(off, requests.iter().cloned())?;
    let before = with.stats();
    let answers = answer(with, requests.iter().cloned())?;
    if answers.tokens != expected.tokens {
        return Err(Error::failed(
            "an answer differs with speculation: this is a defect of trail-rt, please report it",
        ));
    }
    let after = with.stats();
    sum.off_s += expected.seconds;
    sum.s += answers.seconds;
    sum.tokens += answers.tokens.iter().map(|answer| answer.len() as u64).sum::<u64>();
    sum.drafts += after.draft_tokens - before.draft_tokens;
    sum.accepted += after.accepted_tokens - before.accepted_tokens;
    Ok(())
}
