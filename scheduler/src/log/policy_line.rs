//! A policy as JSON: its text form, and the options that this form lacks.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::policies::{InitialLength, PolicyKind, Ranking};

/// A policy and its options.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PolicyLine {
    pub(super) policy: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) trail: Option<TrailLine>,
    /// Of a policy without TRAIL's other options. Logs recorded before it had some lack them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ranking: Option<Ranking>,
}

/// Options of TRAIL and its variants that the text form of a policy lacks.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TrailLine {
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

impl From<PolicyKind> for PolicyLine {
    fn from(mut policy: PolicyKind) -> PolicyLine {
        let trail = policy
            .trail_mut()
            .map(|trail| TrailLine { initial_length: trail.r, ranking: trail.ranking });
        let ranking = policy.ranking_mut().copied().filter(|_| trail.is_none());
        PolicyLine { policy: policy.to_string(), trail, ranking }
    }
}

impl TryFrom<PolicyLine> for PolicyKind {
    type Error = String;

    fn try_from(line: PolicyLine) -> Result<PolicyKind, String> {
        let mut policy: PolicyKind = line.policy.parse()?;
        match (policy.trail_mut(), line.trail) {
            (Some(trail), Some(TrailLine { initial_length, ranking })) => {
                (trail.r, trail.ranking) = (initial_length, ranking);
                check(&ranking)?;
            }
            (None, None) => {}
            (Some(_), None) => return Err(format!("policy {policy} lacks its options, trail")),
            (None, Some(_)) => return Err(format!("policy {policy} has no options, trail")),
        }
        match (policy.trail_mut().is_some(), policy.ranking_mut(), line.ranking) {
            (false, Some(own), ranking) => *own = ranking.unwrap_or(Ranking::PAPER),
            (_, _, Some(_)) => return Err(format!("policy {policy} has no options, ranking")),
            (_, _, None) => {}
        }
        line.ranking.as_ref().map_or(Ok(()), check)?;
        Ok(policy)
    }
}

/// Writes a policy, for serde.
pub(super) fn serialize<S: Serializer>(of: &PolicyKind, to: S) -> Result<S::Ok, S::Error> {
    PolicyLine::from(*of).serialize(to)
}

/// Reads a policy, for serde.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PolicyKind, D::Error> {
    PolicyLine::deserialize(from)?.try_into().map_err(D::Error::custom)
}

/// Refuses options out of the range of the command line.
fn check(ranking: &Ranking) -> Result<(), String> {
    let Ranking { tail_bound, express, prefill_weight, initial_share, .. } = *ranking;
    let sound =
        [tail_bound, express, prefill_weight].iter().all(|value| (0.0..=1e6).contains(value));
    let sound = sound && (0.0..=1.0).contains(&initial_share);
    sound.then_some(()).ok_or_else(|| "an option of the ranking is out of range".into())
}
