//! The policies by name, with their parameters.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::{FromStr, Split};

use super::{Fcfs, Gittins, Oracle, Ranking, Sjf, Trail, TrailAuto};
use crate::Policy;

/// TRAIL's default share of the first prediction during which a request can be preempted.
pub const DEFAULT_C: f32 = 0.8;

/// A scheduling policy and its parameters. Text form: the name, then the parameters after colons,
/// the last ones of which may be left out: `trail`, `trail:0.5`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PolicyKind {
    /// First come, first served, as vLLM with chunked prefill.
    Fcfs,
    /// Shortest predicted job first, by the prompt alone; never preempts.
    Sjf,
    /// Limited-preemption shortest predicted remaining processing time.
    Trail(Trail),
    /// TRAIL whose share c falls with the pressure on the KV cache.
    TrailAuto(TrailAuto),
    /// TRAIL that ranks by the Gittins index.
    Gittins(Gittins),
    /// Shortest remaining processing time with the true lengths of a recorded run.
    Oracle(Oracle),
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
    /// The names that [`FromStr`] takes, with a line of help each. `srpt` is `oracle` as well.
    pub const HELP: [(&'static str, &'static str); 6] = [
        ("fcfs", "running first, then arrival (vLLM with chunked prefill)"),
        ("sjf", "shortest predicted job first, never preempts"),
        ("trail", "TRAIL: refined predicted remaining length, preempts in a window; [:c]"),
        ("trail-auto", "TRAIL with a c that falls with the pressure on the KV cache; [:c]"),
        ("gittins", "TRAIL that ranks by the Gittins index of the posterior; [:c]"),
        ("oracle", "SRPT: true remaining length; with a c TRAIL+; [:c]"),
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

    /// The same with other options of the rank, if it is a policy that has them.
    pub fn with_ranking(mut self, ranking: Ranking) -> PolicyKind {
        if let Some(trail) = self.trail_mut() {
            trail.ranking = ranking;
        }
        self
    }

    /// The same with the share `c`, if it is TRAIL without a share of its own.
    pub fn with_c(self, c: f32) -> PolicyKind {
        match self {
            PolicyKind::Trail(mut trail) if trail.c == DEFAULT_C => {
                trail.c = c;
                PolicyKind::Trail(trail)
            }
            other => other,
        }
    }

    /// The name, without parameters.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Fcfs => "fcfs",
            PolicyKind::Sjf => "sjf",
            PolicyKind::Trail(_) => "trail",
            PolicyKind::TrailAuto(_) => "trail-auto",
            PolicyKind::Gittins(_) => "gittins",
            PolicyKind::Oracle(_) => "oracle",
        }
    }

    /// The requirement of the policy.
    pub fn needs(self) -> Needs {
        match self {
            PolicyKind::Fcfs => Needs::Nothing,
            PolicyKind::Sjf => Needs::Predictor,
            PolicyKind::Trail(_) | PolicyKind::TrailAuto(_) | PolicyKind::Gittins(_) => {
                Needs::Probe
            }
            PolicyKind::Oracle(_) => Needs::TrueLengths,
        }
    }

    /// The policy itself.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Fcfs => Box::new(Fcfs),
            PolicyKind::Sjf => Box::new(Sjf),
            PolicyKind::Trail(trail) => Box::new(trail.policy()),
            PolicyKind::TrailAuto(auto) => Box::new(auto.policy()),
            PolicyKind::Gittins(gittins) => Box::new(gittins.policy()),
            PolicyKind::Oracle(oracle) => Box::new(oracle),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            PolicyKind::Trail(trail)
            | PolicyKind::TrailAuto(TrailAuto { trail })
            | PolicyKind::Gittins(Gittins { trail }) => write!(f, ":{}", trail.c),
            PolicyKind::Oracle(Oracle { c: Some(c) }) => write!(f, ":{c}"),
            PolicyKind::Fcfs | PolicyKind::Sjf | PolicyKind::Oracle(_) => Ok(()),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut given = Parameters::of(text);
        let kind = match given.policy {
            "fcfs" => PolicyKind::Fcfs,
            "sjf" => PolicyKind::Sjf,
            "trail" => PolicyKind::trail(given.c()?.unwrap_or(DEFAULT_C)),
            "trail-auto" => {
                let mut auto = TrailAuto::default();
                auto.trail.c = given.c()?.unwrap_or(auto.trail.c);
                PolicyKind::TrailAuto(auto)
            }
            "gittins" => {
                let c = given.c()?.unwrap_or(DEFAULT_C);
                PolicyKind::Gittins(Gittins { trail: Trail { c, ..Trail::default() } })
            }
            "oracle" | "srpt" => PolicyKind::Oracle(Oracle { c: given.c()? }),
            other => {
                let names = PolicyKind::HELP.map(|(name, _)| name).join(", ");
                return Err(format!("unknown policy '{other}': choose one of {names}"));
            }
        };
        given.end()?;
        Ok(kind)
    }
}

/// The parameters of a policy's text form that were not taken yet.
struct Parameters<'a> {
    policy: &'a str,
    rest: Option<Split<'a, char>>,
}

impl<'a> Parameters<'a> {
    fn of(text: &'a str) -> Parameters<'a> {
        match text.split_once(':') {
            Some((policy, rest)) => Parameters { policy, rest: Some(rest.split(':')) },
            None => Parameters { policy: text, rest: None },
        }
    }

    /// The next parameter, if there is one; `name` for the message.
    fn next<T>(&mut self, name: &str, range: RangeInclusive<T>) -> Result<Option<T>, String>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let Some(text) = self.rest.as_mut().and_then(Iterator::next) else { return Ok(None) };
        match text.parse() {
            Ok(value) if range.contains(&value) => Ok(Some(value)),
            _ => Err(format!(
                "{name} of policy {} is '{text}': give a number from {} to {}",
                self.policy,
                range.start(),
                range.end()
            )),
        }
    }

    fn c(&mut self) -> Result<Option<f32>, String> {
        self.next("c", 0.0..=1.0)
    }

    fn end(mut self) -> Result<(), String> {
        match self.rest.as_mut().and_then(Iterator::next) {
            Some(extra) => Err(format!("policy {} takes no parameter '{extra}'", self.policy)),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_prints_and_builds() {
        for (name, _) in PolicyKind::HELP {
            let kind: PolicyKind = name.parse().unwrap();
            assert_eq!((kind.name(), kind.build().name()), (name, name));
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("trail".parse(), Ok(PolicyKind::Trail(Trail::default())));
        assert_eq!("srpt".parse(), Ok(PolicyKind::SRPT));
    }

    #[test]
    fn the_common_share_replaces_only_the_default() {
        for (text, want) in [("trail", "trail:0.5"), ("trail:1", "trail:1"), ("sjf", "sjf")] {
            assert_eq!(text.parse::<PolicyKind>().map(|kind| kind.with_c(0.5)), want.parse());
        }
    }

    #[test]
    fn parameters_follow_colons() {
        for text in ["trail:0.25", "oracle:0.8", "oracle"] {
            assert_eq!(text.parse::<PolicyKind>().map(|kind| kind.to_string()), Ok(text.into()));
        }
    }

    #[test]
    fn wrong_names_and_values_get_one_line() {
        for (text, message) in [
            ("SJF", "unknown policy 'SJF': choose one of fcfs, sjf, "),
            ("", "unknown policy '': choose one of "),
            ("trail:", "c of policy trail is '': give a number from 0 to 1"),
            ("trail:nan", "c of policy trail is 'nan': give a number from 0 to 1"),
            ("oracle:1.5", "c of policy oracle is '1.5': give a number from 0 to 1"),
            ("trail:1:2", "policy trail takes no parameter '2'"),
            ("fcfs:1", "policy fcfs takes no parameter '1'"),
        ] {
            let error = text.parse::<PolicyKind>().unwrap_err();
            assert!(error.starts_with(message) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
