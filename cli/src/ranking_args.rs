//! Options of the rank under `trail`, `trail-auto`, `gittins`, `sjf` and `po`.

use clap::{Args, ValueEnum};
use trail_scheduler::policies::{InitialLength, PolicyKind, Ranking, Trail};

use crate::count::count_u32;
use crate::notice::notice;

/// Options of the rank under `trail`, `trail-auto` and `gittins`; `sjf` and `po` have the bound,
/// `express` and the weight of prefill. A default is that of [`Ranking::DEFAULT`], before it under
/// `trail` and `trail-auto` that of the probe's file ([`RankOptions`](trail_probe::RankOptions)).
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(
    next_help_heading = "Ranking (trail, trail-auto, gittins; sjf, po: tail bound and express)"
)]
pub struct RankingArgs {
    /// trail, its variants and theory: a request can be preempted during this share of its first
    /// predicted length, 0 to 1 [default: 0.8; trail-auto 1]
    #[arg(long, global = true, value_name = "SHARE", value_parser = share)]
    pub(crate) c: Option<f32>,
    /// The paper's rank: the likeliest bin as the first prediction and none of the options below;
    /// on the engine also the filter over bins, and recomputed victims unless --preemption names
    /// another way. Policy and c stay
    #[arg(
        long, global = true,
        conflicts_with_all = [
            "min_run_tokens", "tail_bound", "express", "prefill_weight", "initial_share",
            "initial_length",
        ],
    )]
    pub(crate) paper: bool,
    /// Output tokens that a request may run, once in the batch, before another takes its place; 0
    /// for none [default: that of the probe's file, else 24]
    #[arg(long, global = true, value_name = "N", value_parser = count_u32::<0>)]
    min_run_tokens: Option<u32>,
    /// Share of the longest recent wait under fcfs: requests that arrived longer ago go before all
    /// that are not express, in order of arrival; 0 for no bound [default: 1.05]
    #[arg(long, global = true, value_name = "SHARE", value_parser = factor)]
    tail_bound: Option<f32>,
    /// Share of the mean expected length below which requests are express: they go before those
    /// that --tail-bound names, those of both kinds first; new ones too until --min-run-tokens,
    /// where many look short by then. 0: none; no effect with --tail-bound 0 [default: that of
    /// the probe's file, else 0.5]
    #[arg(long, global = true, value_name = "SHARE", value_parser = factor)]
    express: Option<f32>,
    /// Output tokens that computing one prompt token costs in a rank; 0 to rank by output alone
    /// [default: 0.2]
    #[arg(long, global = true, value_name = "TOKENS", value_parser = factor)]
    prefill_weight: Option<f32>,
    /// Share that the first prediction, counted down, has in a rank beside the probe's, 0 to 1
    /// (trail, trail-auto) [default: that of the probe's file, else 0]
    #[arg(long, global = true, value_name = "SHARE", value_parser = share)]
    initial_share: Option<f32>,
    /// Point of the prompt's predicted distribution that is the first prediction [default: mean]
    #[arg(long, global = true, value_name = "POINT", value_enum)]
    initial_length: Option<Initial>,
}

/// Values of `--initial-length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Initial {
    /// Middle of the likeliest bin (TRAIL's paper).
    Likeliest,
    /// Expectation over the bins (TRAIL's released code).
    Mean,
    /// The point with the least error when it is counted down over the answer.
    CountdownOptimal,
}

impl RankingArgs {
    /// Says which of the given options `policy` does not have.
    pub(crate) fn warn_of_idle_options(&self, mut policy: PolicyKind) {
        let (is_ranked, is_trail) = (policy.ranking_mut().is_some(), policy.trail_mut().is_some());
        let is_gittins = matches!(policy, PolicyKind::Gittins(_));
        let options = [
            ("--paper", self.paper, is_ranked),
            ("--min-run-tokens", self.min_run_tokens.is_some(), is_trail),
            ("--tail-bound", self.tail_bound.is_some(), is_ranked),
            ("--express", self.express.is_some(), is_ranked),
            ("--prefill-weight", self.prefill_weight.is_some(), is_ranked),
            ("--initial-share", self.initial_share.is_some(), is_trail && !is_gittins),
            ("--initial-length", self.initial_length.is_some(), is_trail),
            ("--c", self.c.is_some(), is_trail || matches!(policy, PolicyKind::TrailBert(_))),
        ];
        let idle = options.iter().filter(|(_, is_given, has_it)| *is_given && !has_it);
        let idle: Vec<&str> = idle.map(|(name, ..)| *name).collect();
        if !idle.is_empty() {
            let (name, options) = (policy.name(), idle.join(", "));
            notice(format_args!("warning: policy {name} has no {options}: not used by it"));
        }
    }

    /// The same without `--c`, for a policy whose parameters are named.
    pub fn without_c(self) -> RankingArgs {
        RankingArgs { c: None, ..self }
    }

    /// `policy` with these options, if it is one that has them; with `--c`, if its share is the
    /// default.
    pub fn apply(&self, mut policy: PolicyKind) -> PolicyKind {
        policy = self.c.map_or(policy, |c| policy.with_c(c));
        if self.paper {
            if let Some(trail) = policy.trail_mut() {
                *trail = Trail { c: trail.c, ..Trail::PAPER };
            }
            return policy.with_ranking(Ranking::PAPER);
        }
        let Some(ranking) = policy.ranking_mut() else { return policy };
        set(&mut ranking.min_run_tokens, self.min_run_tokens);
        set(&mut ranking.tail_bound, self.tail_bound);
        set(&mut ranking.express, self.express);
        set(&mut ranking.prefill_weight, self.prefill_weight);
        set(&mut ranking.initial_share, self.initial_share);
        if let (Some(trail), Some(point)) = (policy.trail_mut(), self.initial_length) {
            trail.r = match point {
                Initial::Likeliest => InitialLength::Likeliest,
                Initial::Mean => InitialLength::Mean,
                Initial::CountdownOptimal => InitialLength::CountdownOptimal,
            };
        }
        policy
    }
}

/// Name of a policy, with the parameters and the options of its rank that are not the defaults.
pub fn described_policy(mut policy: PolicyKind) -> String {
    let mut text = policy.label();
    let default: Option<PolicyKind> = policy.name().parse().ok();
    let default = default.and_then(|mut default| default.ranking_mut().copied());
    if let (Some(own), Some(default)) = (policy.ranking_mut(), default) {
        let options = |of: &Ranking| {
            [
                ("tail bound", of.tail_bound),
                ("minimum run", of.min_run_tokens as f32),
                ("express", of.express),
                ("prefill weight", of.prefill_weight),
                ("share of the first prediction", of.initial_share),
            ]
        };
        let other = options(own).into_iter().zip(options(&default)).filter(|(own, of)| own != of);
        other.for_each(|((name, value), _)| text += &format!(", {name} {value}"));
    }
    text
}

fn set<T>(to: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *to = value;
    }
}

fn share(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("give a number from 0 to 1".into()),
    }
}

fn factor(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(factor) if (0.0..=1e6).contains(&factor) => Ok(factor),
        _ => Err("give a number from 0 to 1e6".into()),
    }
}

#[cfg(test)]
mod tests {
    use trail_probe::RankOptions;
    use trail_runtime::engine::with_rank_options;

    use super::*;

    #[test]
    fn a_policy_is_described_by_what_is_not_the_default() {
        let parsed = |name: &str| -> PolicyKind { name.parse().expect("a policy") };
        assert_eq!(described_policy(parsed("fcfs")), "fcfs");
        assert_eq!(described_policy(parsed("trail:0.5")), "trail:0.5");
        let options = RankOptions {
            min_run_tokens: Some(0),
            initial_share: Some(0.25),
            ..RankOptions::default()
        };
        let trail = with_rank_options(parsed("trail"), options);
        let says = "trail:0.8, minimum run 0, share of the first prediction 0.25";
        assert_eq!(described_policy(trail), says);
        let sjf = with_rank_options(parsed("sjf"), options);
        assert_eq!(described_policy(sjf), "sjf", "they are of trail");
    }
}
