//! `bench structured`: what constraints on answers cost a step, and what forced tokens gain.
//!
//! One engine answers the same prompts free and constrained, in turn, so that both see the same
//! machine. `masks`: each step needs a mask that no other has computed, and no token is forced.
//! `half`: every other request is constrained, and the answers of the others must be those that
//! they have among free ones, to the bit. `schema`: a JSON of a fixed schema without whitespace,
//! whose names are forced, against free answers of as many tokens.

use std::sync::Arc;

use clap::Args;
use serde_json::{Value, json};
use trail_cli::{EngineArgs, Error, ModelArgs, Setup};
use trail_grammar::{GrammarCompiler, GrammarSpec};
use trail_runtime::engine::{Constraint, Engine, PolicyKind, Request, SamplingParams};

use crate::answers::{Answers, answer};
use crate::report::{Column, Group};

/// Options of `bench structured`.
#[derive(Args, Clone, Debug)]
pub struct StructuredArgs {
    /// Requests at a time
    #[arg(long, value_delimiter = ',', default_value = "1,8,64",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    batches: Vec<u32>,
    /// Output tokens of a request
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(2..=4096))]
    tokens: u32,
    /// Runs of each kind
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
}

pub const COLUMNS: &[Group] = &[
    Group("", &[Column("requests", "/batch", 0), Column("kind", "/kind", 0)]),
    Group("tokens/s", &[Column("free", "/free", 1), Column("constrained", "/constrained", 1)]),
    Group(
        "",
        &[
            Column("constrained / free", "/ratio", 3),
            Column("ms a step more", "/added_ms", 3),
            Column("forced", "/forced_share", 2),
        ],
    ),
];

/// The subject of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Masks,
    Half,
    Schema,
}

impl Kind {
    const ALL: [(Kind, &'static str); 3] =
        [(Kind::Masks, "masks"), (Kind::Half, "half"), (Kind::Schema, "schema")];

    /// True if request `index` of a batch is constrained.
    fn constrains(self, index: usize) -> bool {
        self != Kind::Half || index % 2 == 1
    }

    /// Draft tokens, other than forced ones, would be a gain of the free answers alone.
    fn speculate(self) -> &'static str {
        if self == Kind::Schema { "auto" } else { "off" }
    }

    fn spec(self) -> GrammarSpec {
        match self {
            // Longer than any answer: texts of any characters.
            Kind::Masks | Kind::Half => GrammarSpec::JsonSchema {
                schema: json!({"type": "array", "items": {"type": "string"}, "minItems": 100_000}),
                compact: false,
            },
            Kind::Schema => GrammarSpec::JsonSchema { schema: order(), compact: true },
        }
    }
}

/// An order as a shop has it.
fn order() -> Value {
    let whole = json!({"type": "integer", "minimum": 0, "maximum": 999});
    let properties = json!({
        "order_number": whole, "customer_id": whole, "quantity_ordered": whole,
        "currency": {"enum": ["EUR", "USD", "CHF"]},
        "is_express_delivery": {"type": "boolean"}, "is_gift_wrapped": {"type": "boolean"},
        "payment_method": {"enum": ["card", "invoice", "cash"]}, "discount_percent": whole,
    });
    let names: Vec<String> = properties.as_object().expect("an object").keys().cloned().collect();
    json!({"type": "object", "properties": properties, "required": names,
        "additionalProperties": false})
}

pub fn run(args: &StructuredArgs, model: &ModelArgs, engine: &EngineArgs) -> Result<Value, Error> {
    let setup = Setup::load(model)?;
    let compiler = GrammarCompiler::new(setup.tokenizer()?, &setup.model.config);
    let mut rows = Vec::new();
    for &batch in &args.batches {
        for (kind, name) in Kind::ALL {
            let options = [
                format!("--max-running={batch}"),
                format!("--speculate={}", kind.speculate()),
                "--no-prefix-cache".into(),
            ];
            let engine = engine.parsed(&options)?;
            let engine = setup.engine_with(&engine, PolicyKind::Fcfs, batch as usize, None)?;
            let grammar = compiler.compile(&kind.spec());
            let grammar: Arc<dyn Constraint> =
                grammar.map_err(|error| Error::failed(format!("the grammar: {error}")))?;
            let mut sums = Sums::default();
            for round in 0..args.rounds {
                sums.add(&measure(&setup, &engine, args, (kind, round), batch, &grammar)?);
            }
            rows.push(sums.row(batch, name));
        }
    }
    Ok(json!({ "model": setup.name, "threads": engine.threads(), "rows": rows }))
}

/// Seconds and tokens of all rounds, without prefill.
#[derive(Default)]
struct Sums {
    free_s: f64,
    free_tokens: usize,
    s: f64,
    tokens: usize,
    /// Tokens with those of the prefill's time.
    all_tokens: usize,
    steps: u64,
    forced: u64,
}

/// One round: free answers, constrained ones, and the forced tokens and steps of these.
struct Round {
    free: Answers,
    constrained: Answers,
    forced: u64,
    steps: u64,
}

impl Sums {
    fn add(&mut self, round: &Round) {
        self.free_s += round.free.decode_s;
        self.free_tokens += round.free.decoded;
        self.s += round.constrained.decode_s;
        self.tokens += round.constrained.decoded;
        self.all_tokens += round.constrained.tokens.iter().map(Vec::len).sum::<usize>();
        self.steps += round.steps;
        self.forced += round.forced;
    }

    fn row(&self, batch: u32, kind: &str) -> Value {
        let [free, constrained] = [(self.free_tokens, self.free_s), (self.tokens, self.s)]
            .map(|(tokens, seconds)| tokens as f64 / seconds);
        let free_s = self.tokens as f64 / free;
        let share = self.tokens as f64 / self.all_tokens as f64;
        json!({
            "batch": batch,
            "kind": kind,
            "free": free,
            "constrained": constrained,
            "ratio": constrained / free,
            "added_ms": (self.s - free_s) / (self.steps as f64 * share) * 1e3,
            "forced_share": self.forced as f64 / self.all_tokens as f64,
        })
    }
}

fn measure(
    setup: &Setup,
    engine: &Engine,
    args: &StructuredArgs,
    (kind, round): (Kind, u32),
    batch: u32,
    grammar: &Arc<dyn Constraint>,
) -> Result<Round, Error> {
    let prompt = setup.user_prompt("Describe an order of a small shop as JSON.")?;
    let request = |index: usize, length: Option<u32>| {
        let seed = u64::from(round) << 32 | index as u64;
        let max_tokens = length.unwrap_or(512);
        let sampling = SamplingParams { seed, ..SamplingParams::default() };
        Request { sampling, forced_length: length, ..Request::new(prompt.clone(), max_tokens) }
    };
    let length = (kind != Kind::Schema).then_some(args.tokens);
    let constrained = |index: usize| {
        let constraint = kind.constrains(index).then(|| grammar.clone());
        Request { constraint, ..request(index, length) }
    };
    let before = engine.stats();
    let constrained = answer(engine, (0..batch as usize).map(constrained))?;
    let after = engine.stats();
    let lengths: Vec<u32> = constrained.tokens.iter().map(|tokens| tokens.len() as u32).collect();
    let free = answer(engine, (0..batch as usize).map(|at| request(at, Some(lengths[at]))))?;
    let free_alike = (0..batch as usize).filter(|&at| !kind.constrains(at));
    for at in free_alike {
        if free.tokens[at] != constrained.tokens[at] {
            return Err(Error::failed(
                "a free answer differs beside constrained ones: this is a defect of trail-rt, \
                 please report it",
            ));
        }
    }
    let forced = after.accepted_tokens - before.accepted_tokens;
    Ok(Round { free, constrained, forced, steps: after.steps - before.steps })
}
