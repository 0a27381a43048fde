//! The policy and the options of the rank that a model begins with.

use trail_cli::RankingArgs;
use trail_probe::RankOptions;
use trail_runtime::engine::{PolicyKind, with_rank_options};

/// Parameters of the policies that a model can be set to, where a change names none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PolicyDefaults {
    /// Policy that the engine began with.
    pub first: PolicyKind,
    /// Options of the command line.
    pub ranking: RankingArgs,
    /// Options of the rank that the probe's file names.
    pub probe: RankOptions,
}

impl PolicyDefaults {
    /// The policy `name`. One without parameters, of the name that the model began with, is that of
    /// the beginning; with parameters it has the options of the rank of the beginning. Another one
    /// has the options of the command line, and where that names none those of the probe's file.
    pub(crate) fn policy(self, name: &str) -> Result<PolicyKind, String> {
        let PolicyDefaults { mut first, ranking, probe } = self;
        if name == first.name() {
            return Ok(first);
        }
        let mut policy: PolicyKind = name.parse()?;
        if policy.name() != first.name() {
            let ranking = if name.contains(':') { ranking.without_c() } else { ranking };
            return Ok(ranking.apply(with_rank_options(policy, probe)));
        }
        policy = first.ranking_mut().map_or(policy, |ranking| policy.with_ranking(*ranking));
        if let (Some(trail), Some(first)) = (policy.trail_mut(), first.trail_mut()) {
            trail.r = first.r;
        }
        Ok(policy)
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
        let defaults = PolicyDefaults { first, ranking: RankingArgs::default(), probe };
        let policy = |name: &str| defaults.policy(name).expect("a policy");
        assert_eq!(policy("trail"), first, "with its share c");
        let mut same = policy("trail:0.8");
        assert_eq!(same.trail_mut().expect("trail").c, 0.8, "the default, by name");
        assert_eq!(same.ranking_mut(), first.ranking_mut());
        let mut other = policy("trail-auto");
        assert_eq!(other.ranking_mut().expect("a rank").express, 1.0);
        assert_ne!(other.ranking_mut().expect("a rank").min_run_tokens, 3);
        assert_eq!(policy("sjf"), parsed("sjf"), "the probe says nothing of it");
        assert!(defaults.policy("sjf:1:2:3").is_err());
    }
}
