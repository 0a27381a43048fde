//! The first line of a decision log.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::json_error::json_error;
use crate::config::SchedulerConfig;
use crate::policies::{InitialLength, PolicyKind, Ranking};

/// Value of the member `format`.
pub const FORMAT: &str = "decision log";

/// Version of the format. A program reads its own version only.
pub const VERSION: u32 = 2;

/// The settings of a logged scheduler.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogHeader {
    /// Sizes and bounds.
    pub config: SchedulerConfig,
    /// The policy with its options.
    pub policy: PolicyKind,
    /// Bound on the gap that prefill causes, seconds; 0 for none. For simulations: a replay has the
    /// prefill limits themselves.
    pub max_gap_s: f64,
}

/// The header as JSON. `generator` names the program, by which a later run knows the file as one
/// that it may replace.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderLine {
    format: String,
    version: u32,
    generator: String,
    policy: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trail: Option<TrailLine>,
    /// Of a policy without TRAIL's other options. Logs recorded before it had some lack them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ranking: Option<Ranking>,
    max_gap_s: f64,
    config: SchedulerConfig,
}

/// Options of TRAIL and its variants that the text form of a policy lacks.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrailLine {
    initial_length: InitialLength,
    #[serde(deserialize_with = "ranking")]
    ranking: Ranking,
}

/// Options of the rank that no longer exist, with the value that left each off. Logs of this
/// version that were recorded before have them.
const REMOVED: [(&str, &str); 5] = [
    ("rank_step", "0.0"),
    ("window", "\"first\""),
    ("ageing", "0.0"),
    ("max_preemptions", "0"),
    ("margin", "0.0"),
];

/// Reads the options of the rank. One that no longer exists must have been off.
fn ranking<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Ranking, D::Error> {
    let mut members = serde_json::Map::deserialize(deserializer)?;
    for (name, off) in REMOVED {
        let value = members.remove(name).map(|value: Value| value.to_string());
        if let Some(value) = value.filter(|value| value != off) {
            return Err(D::Error::custom(format!(
                "{name} is {value}: this program no longer has that option, record the log again"
            )));
        }
    }
    serde_json::from_value(members.into()).map_err(D::Error::custom)
}

/// The members by which a log of another version is known.
#[derive(Deserialize)]
struct Version {
    format: String,
    version: u32,
}

impl LogHeader {
    /// The first line, without its line break.
    pub fn line(&self) -> String {
        let mut policy = self.policy;
        let trail = policy
            .trail_mut()
            .map(|trail| TrailLine { initial_length: trail.r, ranking: trail.ranking });
        let ranking = policy.ranking_mut().copied().filter(|_| trail.is_none());
        let line = HeaderLine {
            format: FORMAT.into(),
            version: VERSION,
            generator: format!("trail-rt {}", env!("CARGO_PKG_VERSION")),
            policy: policy.to_string(),
            trail,
            ranking,
            max_gap_s: self.max_gap_s,
            config: self.config,
        };
        serde_json::to_string(&line).expect("numbers and names are JSON")
    }

    pub(super) fn parse(line: &str) -> Result<LogHeader, String> {
        let error = |error: serde_json::Error| json_error(&error);
        let Version { format, version } = serde_json::from_str(line).map_err(error)?;
        if format != FORMAT {
            return Err(format!("format is '{format}': a {FORMAT} is expected"));
        }
        if version != VERSION {
            return Err(format!(
                "version is {version}: this program reads version {VERSION}, record it again"
            ));
        }
        let header: HeaderLine = serde_json::from_str(line).map_err(error)?;
        let mut policy: PolicyKind = header.policy.parse()?;
        match (policy.trail_mut(), header.trail) {
            (Some(trail), Some(TrailLine { initial_length, ranking })) => {
                (trail.r, trail.ranking) = (initial_length, ranking);
                check(&ranking)?;
            }
            (None, None) => {}
            (Some(_), None) => return Err(format!("policy {policy} lacks its options, trail")),
            (None, Some(_)) => return Err(format!("policy {policy} has no options, trail")),
        }
        match (policy.trail_mut().is_some(), policy.ranking_mut(), header.ranking) {
            (false, Some(own), ranking) => *own = ranking.unwrap_or(Ranking::PAPER),
            (_, _, Some(_)) => return Err(format!("policy {policy} has no options, ranking")),
            (_, _, None) => {}
        }
        header.ranking.as_ref().map_or(Ok(()), check)?;
        header.config.validate().map_err(|error| error.to_string())?;
        let HeaderLine { config, max_gap_s, .. } = header;
        if !(0.0..=1e6).contains(&max_gap_s) {
            return Err(format!("max_gap_s is {max_gap_s:?}: give seconds from 0 to 1e6"));
        }
        Ok(LogHeader { config, policy, max_gap_s })
    }
}

/// Refuses options out of the range of the command line.
fn check(ranking: &Ranking) -> Result<(), String> {
    let Ranking { tail_bound, express, prefill_weight, .. } = *ranking;
    let sound =
        [tail_bound, express, prefill_weight].iter().all(|value| (0.0..=1e6).contains(value));
    sound.then_some(()).ok_or_else(|| "an option of the ranking is out of range".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::{Po, Sjf};

    #[test]
    fn options_of_the_rank_come_back_and_older_logs_had_none() {
        let ranking = Ranking { express: 0.25, ..Ranking::DEFAULT };
        for policy in
            [PolicyKind::Sjf(Sjf { ranking }), PolicyKind::Po(Po { perception_tokens: 7, ranking })]
        {
            let config = SchedulerConfig { max_recompute: 0.5, ..SchedulerConfig::default() };
            let header = LogHeader { config, policy, max_gap_s: 0.0 };
            let line = header.line();
            assert_eq!(LogHeader::parse(&line), Ok(header));
            let mut older: Value = serde_json::from_str(&line).unwrap();
            older.as_object_mut().unwrap().remove("ranking");
            older["config"].as_object_mut().unwrap().remove("max_recompute");
            let config = SchedulerConfig::default();
            let policy = policy.with_ranking(Ranking::PAPER);
            let header = LogHeader { config, policy, max_gap_s: 0.0 };
            assert_eq!(LogHeader::parse(&older.to_string()), Ok(header));
        }
    }
}
