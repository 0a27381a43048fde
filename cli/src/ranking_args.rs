//! Options of the rank under `trail`, `trail-auto` and `gittins`.

use clap::{Args, ValueEnum};
use trail_scheduler::policies::{InitialLength, PolicyKind, Ranking, Trail, WindowLength};

use crate::args::{count_u32, share};

/// Options of the rank under `trail`, `trail-auto` and `gittins`. A default is that of
/// [`Ranking::DEFAULT`].
#[derive(Args, Clone, Copy, Debug, Default)]
#[command(next_help_heading = "Ranking (trail, trail-auto, gittins)")]
pub(crate) struct RankingArgs {
    /// The paper's rank: the likeliest bin as the first prediction and none of the options below;
    /// on the engine also the filter over bins, and recomputed victims unless --preemption names
    /// another way. Policy and c stay
    #[arg(
        long, global = true,
        conflicts_with_all = [
            "min_run_tokens", "rank_step", "tail_bound", "express", "window", "prefill_weight",
            "ageing", "max_preemptions", "margin", "initial_length",
        ],
    )]
    pub(crate) paper: bool,
    /// Output tokens that a request may run, once in the batch, before another takes its place; 0
    /// for none [default: 24]
    #[arg(long, global = true, value_name = "N", value_parser = count_u32::<0>)]
    min_run_tokens: Option<u32>,
    /// Ratio of neighbouring ranks: expected tokens are rounded down to a power of it, equal ranks
    /// go by arrival; 0 for exact values [default: 0]
    #[arg(long, global = true, value_name = "RATIO", value_parser = ratio)]
    rank_step: Option<f32>,
    /// Share of the longest recent wait under fcfs: requests that would end later after their
    /// arrival go before all that are not express, in order of arrival; 0 for no bound [default: 1]
    #[arg(long, global = true, value_name = "SHARE", value_parser = factor)]
    tail_bound: Option<f32>,
    /// Share of the mean expected length below which requests are express: they go before those
    /// that --tail-bound names, those of both kinds first; new ones too until --min-run-tokens,
    /// where many look short by then. 0: none; no effect with --tail-bound 0 [default: 0.5]
    #[arg(long, global = true, value_name = "SHARE", value_parser = factor)]
    express: Option<f32>,
    /// Length that c is a share of: the first prediction, or the larger of it and the present one
    /// [default: first]
    #[arg(long, global = true, value_name = "LENGTH", value_enum)]
    window: Option<Window>,
    /// Output tokens that computing one prompt token costs in a rank [default: 0]
    #[arg(long, global = true, value_name = "TOKENS", value_parser = factor)]
    prefill_weight: Option<f32>,
    /// Tokens by which a later second of arrival worsens a rank [default: 0]
    #[arg(long, global = true, value_name = "TOKENS", value_parser = factor)]
    ageing: Option<f32>,
    /// Preemptions of a request after which it is not preempted again; 0 for no limit [default: 0]
    #[arg(long, global = true, value_name = "N", value_parser = count_u32::<0>)]
    max_preemptions: Option<u32>,
    /// Share by which a newcomer must be shorter than the request it replaces, 0 to 1 [default: 0]
    #[arg(long, global = true, value_name = "SHARE", value_parser = share)]
    margin: Option<f32>,
    /// Point of the prompt's predicted distribution that is the first prediction [default: mean]
    #[arg(long, global = true, value_name = "POINT", value_enum)]
    initial_length: Option<Initial>,
}

/// Values of `--window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Window {
    First,
    Refined,
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
    /// `policy` with these options, if it is one that has them.
    pub(crate) fn apply(&self, mut policy: PolicyKind) -> PolicyKind {
        let Some(trail) = policy.trail_mut() else { return policy };
        if self.paper {
            *trail = Trail { c: trail.c, ..Trail::PAPER };
            return policy;
        }
        let set = |to: &mut f32, value: Option<f32>| *to = value.unwrap_or(*to);
        let Ranking { rank_step, tail_bound, express, prefill_weight, ageing, margin, .. } =
            &mut trail.ranking;
        set(rank_step, self.rank_step);
        set(tail_bound, self.tail_bound);
        set(express, self.express);
        set(prefill_weight, self.prefill_weight);
        set(ageing, self.ageing);
        set(margin, self.margin);
        let ranking = &mut trail.ranking;
        ranking.min_run_tokens = self.min_run_tokens.unwrap_or(ranking.min_run_tokens);
        ranking.max_preemptions = self.max_preemptions.unwrap_or(ranking.max_preemptions);
        ranking.window = match self.window {
            Some(Window::First) => WindowLength::First,
            Some(Window::Refined) => WindowLength::Refined,
            None => ranking.window,
        };
        trail.r = match self.initial_length {
            Some(Initial::Likeliest) => InitialLength::Likeliest,
            Some(Initial::Mean) => InitialLength::Mean,
            Some(Initial::CountdownOptimal) => InitialLength::CountdownOptimal,
            None => trail.r,
        };
        policy
    }
}

fn factor(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(factor) if (0.0..=1e6).contains(&factor) => Ok(factor),
        _ => Err("give a number from 0 to 1e6".into()),
    }
}

fn ratio(text: &str) -> Result<f32, String> {
    match text.parse() {
        Ok(ratio) if ratio == 0.0 || (1.001..=1e3).contains(&ratio) => Ok(ratio),
        _ => Err("give a ratio from 1.001 to 1000, or 0".into()),
    }
}
