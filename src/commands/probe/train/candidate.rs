//! The choice among trained probes and their filters by how they schedule.

use serde::Serialize;
use trail_cli::{Error, Table};
use trail_probe::{FilterKind, Probe, Tracker};
use trail_runtime::engine::PolicyKind;
use trail_scheduler::policies::Trail;
use trail_simulator::Job;
use trail_training::Dataset;
use trail_training::fit::{Observed, fit_probe, observed};

use super::replay::{Contender, LOADS, Replayed, job, replay};

/// A trained probe, and what it predicts for the validation's answers.
pub struct Candidate {
    /// The probe, with a fit where its head has one.
    pub probe: Probe,
    /// The answers.
    pub answers: Vec<Observed>,
}

impl Candidate {
    /// That of `probe`, trained on `data`.
    pub fn new(mut probe: Probe, data: &Dataset<'_>) -> Candidate {
        let answers = observed(&probe, data);
        probe.fit = probe.has_filters().then(|| fit_probe(&probe, data, &answers));
        Candidate { probe, answers }
    }

    /// The filters that it has what they need for.
    pub fn filters(&self) -> impl Iterator<Item = FilterKind> + use<> {
        // Only a head of bins has a fit, and only it has filters.
        let kinds =
            if self.probe.fit.is_some() { &FilterKind::ALL[..] } else { &[FilterKind::Raw] };
        kinds.iter().copied()
    }

    /// The answers with the predictions of its filter.
    pub fn jobs(&self) -> Vec<Job> {
        let mut tracker = Tracker::new(self.probe.filter(), 1);
        let longest = self.probe.bins.max_tokens();
        let of = |(generation, answer)| job(&mut tracker, generation, answer, longest);
        (0..).zip(&self.answers).map(of).collect()
    }
}

/// How a probe schedules with a filter.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// The candidate, by its place.
    #[serde(skip)]
    pub candidate: usize,
    /// `bins` or `survival`.
    pub head: &'static str,
    /// Its inputs.
    pub inputs: String,
    /// `raw`, `bins` or `tokens`.
    pub filter: &'static str,
    /// Under `trail` with its default options.
    #[serde(flatten)]
    pub replayed: Replayed,
}

/// Judges every candidate with every filter, the best first, whose filter becomes the candidate's.
pub fn judge(candidates: &mut [Candidate]) -> Result<Vec<Judged>, Error> {
    let pairs: Vec<(usize, FilterKind)> = (0..candidates.len())
        .flat_map(|at| candidates[at].filters().map(move |kind| (at, kind)))
        .collect();
    let jobs: Vec<Vec<Job>> = pairs
        .iter()
        .map(|&(at, kind)| {
            candidates[at].probe.filter_kind = Some(kind);
            candidates[at].jobs()
        })
        .collect();
    let policy = PolicyKind::Trail(Trail::default());
    let contenders: Vec<Contender<'_>> =
        jobs.iter().map(|jobs| Contender { policy, jobs }).collect();
    let judged = pairs.iter().zip(replay(&contenders)?).map(|(&(candidate, filter), replayed)| {
        let weights = &candidates[candidate].probe.weights;
        let (head, inputs) = (weights.kind.name(), weights.inputs().to_string());
        Judged { candidate, head, inputs, filter: filter.name(), replayed }
    });
    let mut judged: Vec<Judged> = judged.collect();
    let best = judged.iter().position(|of| of.replayed.is_best()).expect("a candidate");
    candidates[pairs[best].0].probe.filter_kind = Some(pairs[best].1);
    judged.swap(0, best);
    Ok(judged)
}

/// The table of `judged`.
pub fn table(judged: &[Judged]) -> Table {
    let columns = LOADS.map(|load| format!("load {load}"));
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = Table::default()
        .group("", &["head", "inputs", "filter"])
        .group("FCFS / trail, mean latency", &columns)
        .group("behind the best by", &["mean", "standard error"]);
    for of in judged {
        let name = [of.head, &of.inputs, of.filter].map(str::to_owned);
        let gains = of.replayed.gains.map(|gain| format!("{gain:.3}"));
        table.row([&name[..], &gains, &of.replayed.cells()].concat());
    }
    table
}
