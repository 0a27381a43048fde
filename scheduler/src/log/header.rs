//! The first line of a decision log.

use serde::{Deserialize, Serialize};

use super::parse::json_error;
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
    max_gap_s: f64,
    config: SchedulerConfig,
}

/// Options of TRAIL and its variants that the text form of a policy lacks.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TrailLine {
    initial_length: InitialLength,
    ranking: Ranking,
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
        let line = HeaderLine {
            format: FORMAT.into(),
            version: VERSION,
            generator: format!("trail-rt {}", env!("CARGO_PKG_VERSION")),
            policy: policy.to_string(),
            trail,
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
    let Ranking { rank_step, tail_bound, express, prefill_weight, ageing, margin, .. } = *ranking;
    let all = [rank_step, tail_bound, express, prefill_weight, ageing];
    let sound =
        all.iter().all(|value| (0.0..=1e6).contains(value)) && (0.0..=1.0).contains(&margin);
    sound.then_some(()).ok_or_else(|| "an option of the ranking is out of range".into())
}
