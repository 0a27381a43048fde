//! The policy and the options of the rank that a model begins with.

use trail_cli::with_rank_options;
use trail_probe::RankOptions;
use trail_runtime::engine::PolicyKind;

/// Parameters of the policies that a model can be set to, where a change names none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyDefaults {
    /// Policy that the engine began with.
    pub first: PolicyKind,
    /// Options of the rank that the probe's file names.
    pub probe: RankOptions,
}

impl PolicyDefaults {
    /// `policy` with the options of the rank that the model began with, if the names are the same,
    /// else with those of the probe's file.
    pub(crate) fn apply(self, policy: PolicyKind) -> PolicyKind {
        let PolicyDefaults { mut first, probe } = self;
        if policy.name() != first.name() {
            return with_rank_options(policy, probe);
        }
        let mut policy =
            first.ranking_mut().map_or(policy, |ranking| policy.with_ranking(*ranking));
        if let (Some(trail), Some(first)) = (policy.trail_mut(), first.trail_mut()) {
            trail.r = first.r;
        }
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_takes_the_options_of_the_start_or_of_the_probe() {
        let parsed = |name: &str| -> PolicyKind { name.parse().expect("a policy") };
        let mut first = parsed("trail:0.5");
        first.ranking_mut().expect("a rank").min_run_tokens = 3;
        let probe = RankOptions { express: Some(1.0), ..RankOptions::default() };
        let mut same = PolicyDefaults { first, probe }.apply(parsed("trail:0.9"));
        assert_eq!(same.trail_mut().expect("trail").c, 0.9);
        assert_eq!(same.ranking_mut(), first.ranking_mut());
        let mut other = PolicyDefaults { first, probe }.apply(parsed("trail-auto"));
        assert_eq!(other.ranking_mut().expect("a rank").express, 1.0);
        assert_ne!(other.ranking_mut().expect("a rank").min_run_tokens, 3);
        let sjf = parsed("sjf");
        assert_eq!(PolicyDefaults { first, probe }.apply(sjf), sjf, "the probe says nothing of it");
    }
}
