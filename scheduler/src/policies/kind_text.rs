//! Text form of a policy: the name, then its parameters after colons.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::{FromStr, Split};

use super::{
    Classification, DEFAULT_C, Gittins, Isrtf, Ltr, MAX_LEVELS, Mlfq, Oracle, Po, PolicyKind, Rr,
    RrSjf, Sjf, Trail, TrailAuto, TrailBert,
};
use crate::limits::MAX_CONTEXT;

/// Longest starvation bound in steps.
const MAX_STEPS: u32 = 1_000_000_000;

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match *self {
            PolicyKind::Fcfs | PolicyKind::Sjf(_) | PolicyKind::Oracle(Oracle { c: None }) => {
                Ok(())
            }
            PolicyKind::Trail(Trail { c, .. })
            | PolicyKind::TrailAuto(TrailAuto { trail: Trail { c, .. } })
            | PolicyKind::Gittins(Gittins { trail: Trail { c, .. } })
            | PolicyKind::TrailBert(TrailBert { c })
            | PolicyKind::Oracle(Oracle { c: Some(c) }) => write!(f, ":{c}"),
            PolicyKind::Ltr(Ltr { starvation_threshold, priority_quantum }) => {
                write!(f, ":{starvation_threshold}:{priority_quantum}")
            }
            PolicyKind::Mlfq(mlfq) => {
                let Mlfq { quantum_s, growth, levels, starvation_s, prefill_token_s } = mlfq;
                write!(f, ":{quantum_s}:{growth}:{levels}:{starvation_s}:{prefill_token_s}")
            }
            PolicyKind::Classification(Classification { bucket_tokens: tokens })
            | PolicyKind::Po(Po { perception_tokens: tokens, .. })
            | PolicyKind::Isrtf(Isrtf { window_tokens: tokens })
            | PolicyKind::Rr(Rr { steps_before_preemption: tokens })
            | PolicyKind::RrSjf(RrSjf { steps_before_preemption: tokens }) => {
                write!(f, ":{tokens}")
            }
        }
    }
}

impl FromStr for PolicyKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut given = Parameters::of(text);
        let kind = match given.policy {
            "fcfs" => PolicyKind::Fcfs,
            "sjf" => PolicyKind::Sjf(Sjf::default()),
            "trail" => PolicyKind::trail(given.share()?.unwrap_or(DEFAULT_C)),
            "trail-auto" => {
                let mut auto = TrailAuto::default();
                given.set(&mut auto.trail.c, "c", 0.0..=1.0)?;
                PolicyKind::TrailAuto(auto)
            }
            "gittins" => {
                let c = given.share()?.unwrap_or(DEFAULT_C);
                PolicyKind::Gittins(Gittins { trail: Trail { c, ..Trail::default() } })
            }
            "trail-bert" => {
                PolicyKind::TrailBert(TrailBert { c: given.share()?.unwrap_or(DEFAULT_C) })
            }
            "oracle" | "srpt" => PolicyKind::Oracle(Oracle { c: given.share()? }),
            "ltr" => PolicyKind::Ltr(given.ltr()?),
            "classification" => {
                let mut classification = Classification::default();
                given.set(&mut classification.bucket_tokens, "bucket", 1..=MAX_CONTEXT)?;
                PolicyKind::Classification(classification)
            }
            "po" => {
                let mut po = Po::default();
                given.set(&mut po.perception_tokens, "perception", 0..=MAX_CONTEXT)?;
                PolicyKind::Po(po)
            }
            "mlfq" => PolicyKind::Mlfq(given.mlfq()?),
            "isrtf" => {
                let mut isrtf = Isrtf::default();
                given.set(&mut isrtf.window_tokens, "window", 1..=MAX_CONTEXT)?;
                PolicyKind::Isrtf(isrtf)
            }
            "rr" => {
                let mut rr = Rr::default();
                given.set(&mut rr.steps_before_preemption, "slice", 1..=MAX_CONTEXT)?;
                PolicyKind::Rr(rr)
            }
            "rr-sjf" => {
                let mut rr_sjf = RrSjf::default();
                given.set(&mut rr_sjf.steps_before_preemption, "slice", 1..=MAX_CONTEXT)?;
                PolicyKind::RrSjf(rr_sjf)
            }
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

    /// The next parameter, if any; `name` for the message.
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

    /// Replaces `value` by the next parameter, if any.
    fn set<T>(&mut self, value: &mut T, name: &str, range: RangeInclusive<T>) -> Result<(), String>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        if let Some(given) = self.next(name, range)? {
            *value = given;
        }
        Ok(())
    }

    fn share(&mut self) -> Result<Option<f32>, String> {
        self.next("c", 0.0..=1.0)
    }

    fn ltr(&mut self) -> Result<Ltr, String> {
        let mut ltr = Ltr::default();
        self.set(&mut ltr.starvation_threshold, "threshold", 0..=MAX_STEPS)?;
        self.set(&mut ltr.priority_quantum, "quantum", 1..=MAX_CONTEXT)?;
        Ok(ltr)
    }

    fn mlfq(&mut self) -> Result<Mlfq, String> {
        let mut mlfq = Mlfq::default();
        self.set(&mut mlfq.quantum_s, "quantum", 1e-6..=1e6)?;
        self.set(&mut mlfq.growth, "growth", 1.0..=100.0)?;
        self.set(&mut mlfq.levels, "number of levels", 1..=MAX_LEVELS)?;
        self.set(&mut mlfq.starvation_s, "starvation bound", 0.0..=1e6)?;
        self.set(&mut mlfq.prefill_token_s, "prefill time", 0.0..=1e3)?;
        Ok(mlfq)
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
            assert_eq!((kind.to_string().parse(), kind.label()), (Ok(kind), name.into()));
        }
        assert_eq!("trail".parse(), Ok(PolicyKind::Trail(Trail::default())));
        assert_eq!("srpt".parse(), Ok(PolicyKind::SRPT));
    }

    #[test]
    fn the_common_share_replaces_only_the_default() {
        for (text, want) in [
            ("trail", "trail:0.5"),
            ("trail:1", "trail:1"),
            ("trail-auto", "trail-auto:0.5"),
            ("trail-auto:0.8", "trail-auto:0.8"),
            ("gittins", "gittins:0.5"),
            ("trail-bert", "trail-bert:0.5"),
            ("oracle", "oracle"),
            ("sjf", "sjf"),
        ] {
            assert_eq!(text.parse::<PolicyKind>().map(|kind| kind.with_c(0.5)), want.parse());
        }
    }

    #[test]
    fn parameters_follow_colons() {
        for text in [
            "fcfs",
            "sjf",
            "trail:0.25",
            "trail-bert:0.1",
            "oracle:0.8",
            "oracle",
            "ltr:0:7",
            "classification:52",
            "po:0",
            "mlfq:0.03:10:5:0:0.000031",
            "isrtf:25",
            "rr:1",
            "rr-sjf:200",
        ] {
            let kind: PolicyKind = text.parse().unwrap();
            assert_eq!((kind.to_string(), kind.label()), (text.into(), text.into()));
            assert_eq!(kind.build().name(), kind.name());
        }
        for (text, want) in [
            ("trail", "trail:0.8"),
            ("ltr:50", "ltr:50:10"),
            ("ltr", "ltr:200:10"),
            ("mlfq:0.03", "mlfq:0.03:2:16:3:0"),
            ("classification", "classification:820"),
            ("po", "po:15"),
            ("isrtf", "isrtf:50"),
            ("rr-sjf", "rr-sjf:5"),
        ] {
            assert_eq!(text.parse::<PolicyKind>().map(|kind| kind.to_string()), Ok(want.into()));
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
            ("ltr:200:0", "quantum of policy ltr is '0': give a number from 1 to 1048576"),
            (
                "mlfq:0.01:2:65",
                "number of levels of policy mlfq is '65': give a number from 1 to 64",
            ),
            ("mlfq:-1", "quantum of policy mlfq is '-1': give a number from 0.000001 to 1000000"),
            ("rr-sjf:5:5", "policy rr-sjf takes no parameter '5'"),
            ("isrtf:2.5", "window of policy isrtf is '2.5': give a number from 1 to "),
        ] {
            let error = text.parse::<PolicyKind>().unwrap_err();
            assert!(error.starts_with(message) && !error.contains('\n'), "{text}: {error}");
        }
    }
}
