//! The policies by name, with their parameters.

use super::{
    Classification, DEFAULT_C, Fcfs, Gittins, InitialLength, Isrtf, Ltr, Mlfq, Oracle, Po, Ranking,
    Rr, RrSjf, Sjf, Trail, TrailAuto, TrailBert,
};
use crate::Policy;

/// A scheduling policy and its parameters. Text form: the name, then the parameters after colons,
/// where the last ones may be left out: `trail`, `trail:0.5`, `ltr:200:10`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum PolicyKind {
    /// First come, first served, as vLLM with chunked prefill.
    #[default]
    Fcfs,
    /// Shortest predicted job first, by the prompt alone; never preempts.
    Sjf(Sjf),
    /// Limited-preemption shortest predicted remaining processing time.
    Trail(Trail),
    /// TRAIL whose share c falls with the pressure on the KV cache.
    TrailAuto(TrailAuto),
    /// TRAIL that ranks by the Gittins index.
    Gittins(Gittins),
    /// TRAIL with the prediction from the prompt alone, counted down.
    TrailBert(TrailBert),
    /// Shortest remaining processing time with the true lengths of a recorded run.
    Oracle(Oracle),
    /// Learning to rank, with its bound on starvation.
    Ltr(Ltr),
    /// Buckets of the predicted length.
    Classification(Classification),
    /// Perception only: the answer's first tokens state its length.
    Po(Po),
    /// FastServe's multi-level feedback queue.
    Mlfq(Mlfq),
    /// ELIS: ranks change once per window.
    Isrtf(Isrtf),
    /// Round robin.
    Rr(Rr),
    /// Round robin, shortest first within each round.
    RrSjf(RrSjf),
}

/// A requirement of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing.
    Nothing,
    /// A prompt-only predictor.
    Predictor,
    /// A probe.
    Probe,
    /// [`crate::NewRequest::true_length`] on every request.
    TrueLengths,
}

impl PolicyKind {
    /// The names that [`std::str::FromStr`] takes, with a line of help each. `srpt` is `oracle` as
    /// well.
    pub const HELP: [(&'static str, &'static str); 14] = [
        ("fcfs", "running first, then arrival (vLLM with chunked prefill)"),
        ("sjf", "shortest predicted job first, never preempts"),
        (
            "trail",
            "refined predicted remaining length; preempts during a share C of the first; [:C]",
        ),
        ("trail-auto", "TRAIL with a c that falls with the pressure on the KV cache; [:C]"),
        ("gittins", "TRAIL that ranks by the Gittins index of the posterior; [:C]"),
        ("trail-bert", "TRAIL with the prompt's prediction counted down; [:C]"),
        ("oracle", "SRPT, true remaining length; with a C: TRAIL+; [:C]"),
        ("ltr", "learning to rank: score from the prompt, the starved first; [:STEPS[:QUANTUM]]"),
        ("classification", "ten buckets of the predicted length; [:TOKENS_PER_BUCKET]"),
        ("po", "perception only: by arrival for some tokens, then by the length; [:TOKENS]"),
        (
            "mlfq",
            "FastServe: queues by service received; \
             [:QUANTUM_S[:GROWTH[:LEVELS[:STARVATION_S[:PREFILL_S_PER_TOKEN]]]]]",
        ),
        ("isrtf", "ELIS: predicted remaining length, once per window; [:TOKENS]"),
        ("rr", "round robin; [:TOKENS]"),
        ("rr-sjf", "round robin, shortest predicted first in each round; [:TOKENS]"),
    ];

    /// SRPT with the true lengths.
    pub const SRPT: PolicyKind = PolicyKind::Oracle(Oracle { c: None });

    /// TRAIL with a share `c`.
    pub fn trail(c: f32) -> PolicyKind {
        PolicyKind::Trail(Trail { c, ..Trail::default() })
    }

    /// TRAIL's parameters, of the policies that have them.
    pub fn trail_mut(&mut self) -> Option<&mut Trail> {
        match self {
            PolicyKind::Trail(trail)
            | PolicyKind::TrailAuto(TrailAuto { trail })
            | PolicyKind::Gittins(Gittins { trail }) => Some(trail),
            _ => None,
        }
    }

    /// The options of the rank, of the policies that have them.
    pub fn ranking_mut(&mut self) -> Option<&mut Ranking> {
        match self {
            PolicyKind::Sjf(Sjf { ranking }) | PolicyKind::Po(Po { ranking, .. }) => Some(ranking),
            other => other.trail_mut().map(|trail| &mut trail.ranking),
        }
    }

    /// The point of the prompt's predicted distribution that the policy wants as r.
    pub fn initial_length(mut self) -> InitialLength {
        self.trail_mut().map_or(InitialLength::default(), |trail| trail.r)
    }

    /// The same with other options of the rank, if it is a policy that has them.
    pub fn with_ranking(mut self, ranking: Ranking) -> PolicyKind {
        if let Some(own) = self.ranking_mut() {
            *own = ranking;
        }
        self
    }

    /// The same with the share `c`, if it is a policy with one that has its default. Not `oracle`,
    /// which is SRPT and has no share.
    pub fn with_c(mut self, c: f32) -> PolicyKind {
        let default = match self {
            PolicyKind::TrailAuto(_) => TrailAuto::default().trail.c,
            _ => DEFAULT_C,
        };
        let own = match &mut self {
            PolicyKind::TrailBert(TrailBert { c }) => Some(c),
            other => other.trail_mut().map(|trail| &mut trail.c),
        };
        if let Some(own) = own.filter(|own| **own == default) {
            *own = c;
        }
        self
    }

    /// The name, without parameters.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Fcfs => "fcfs",
            PolicyKind::Sjf(_) => "sjf",
            PolicyKind::Trail(_) => "trail",
            PolicyKind::TrailAuto(_) => "trail-auto",
            PolicyKind::Gittins(_) => "gittins",
            PolicyKind::TrailBert(_) => "trail-bert",
            PolicyKind::Oracle(_) => "oracle",
            PolicyKind::Ltr(_) => "ltr",
            PolicyKind::Classification(_) => "classification",
            PolicyKind::Po(_) => "po",
            PolicyKind::Mlfq(_) => "mlfq",
            PolicyKind::Isrtf(_) => "isrtf",
            PolicyKind::Rr(_) => "rr",
            PolicyKind::RrSjf(_) => "rr-sjf",
        }
    }

    /// The name, with parameters where they differ from the defaults: unique in a comparison.
    pub fn label(self) -> String {
        let is_default = self.name().parse() == Ok(self);
        if is_default { self.name().into() } else { self.to_string() }
    }

    /// The requirement of the policy.
    pub fn needs(self) -> Needs {
        match self {
            PolicyKind::Fcfs | PolicyKind::Mlfq(_) | PolicyKind::Rr(_) => Needs::Nothing,
            PolicyKind::Sjf(_)
            | PolicyKind::TrailBert(_)
            | PolicyKind::Ltr(_)
            | PolicyKind::Classification(_)
            | PolicyKind::Po(_)
            | PolicyKind::RrSjf(_) => Needs::Predictor,
            PolicyKind::Trail(_)
            | PolicyKind::TrailAuto(_)
            | PolicyKind::Gittins(_)
            | PolicyKind::Isrtf(_) => Needs::Probe,
            PolicyKind::Oracle(_) => Needs::TrueLengths,
        }
    }

    /// The policy itself.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Fcfs => Box::new(Fcfs),
            PolicyKind::Sjf(sjf) => Box::new(sjf.policy()),
            PolicyKind::Trail(trail) => Box::new(trail.policy()),
            PolicyKind::TrailAuto(auto) => Box::new(auto.policy()),
            PolicyKind::Gittins(gittins) => Box::new(gittins.policy()),
            PolicyKind::TrailBert(trail_bert) => Box::new(trail_bert),
            PolicyKind::Oracle(oracle) => Box::new(oracle),
            PolicyKind::Ltr(ltr) => Box::new(ltr.policy()),
            PolicyKind::Classification(classification) => Box::new(classification),
            PolicyKind::Po(po) => Box::new(po.policy()),
            PolicyKind::Mlfq(mlfq) => Box::new(mlfq.policy()),
            PolicyKind::Isrtf(isrtf) => Box::new(isrtf.policy()),
            PolicyKind::Rr(rr) => Box::new(rr.policy()),
            PolicyKind::RrSjf(rr_sjf) => Box::new(rr_sjf.policy()),
        }
    }
}
