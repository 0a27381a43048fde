//! The first line of a decision log.

use serde::{Deserialize, Serialize};

use super::json_error::json_error;
use super::policy_line::{PolicyLine, TrailLine};
use crate::config::SchedulerConfig;
use crate::policies::{PolicyKind, Ranking};

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

/// The members by which a log of another version is known.
#[derive(Deserialize)]
struct Version {
    format: String,
    version: u32,
}

impl LogHeader {
    /// The first line, without its line break.
    pub fn line(&self) -> String {
        let PolicyLine { policy, trail, ranking } = self.policy.into();
        let line = HeaderLine {
            format: FORMAT.into(),
            version: VERSION,
            generator: format!("trail-rt {}", env!("CARGO_PKG_VERSION")),
            policy,
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
        let HeaderLine { policy, trail, ranking, .. } = header;
        let policy = PolicyLine { policy, trail, ranking }.try_into()?;
        header.config.validate().map_err(|error| error.to_string())?;
        let HeaderLine { config, max_gap_s, .. } = header;
        if !(0.0..=1e6).contains(&max_gap_s) {
            return Err(format!("max_gap_s is {max_gap_s:?}: give seconds from 0 to 1e6"));
        }
        Ok(LogHeader { config, policy, max_gap_s })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

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
