//! A seeded workload: arrivals, lengths and predictions.

use trail_platform::rng::{Rng, mix};

use crate::arrivals::Arrivals;
use crate::dataset::Dataset;
use crate::job::{Job, Refined};
use crate::noise::Noise;

/// Requests to draw: number, arrivals, lengths and predictions.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Number of requests.
    pub requests: usize,
    /// Process of the arrivals.
    pub arrivals: Arrivals,
    /// Lengths of prompts and outputs.
    pub dataset: Dataset,
    /// Predictions of the output lengths.
    pub noise: Noise,
    /// Seed of lengths, predictions and arrivals.
    pub seed: u64,
}

impl Workload {
    /// The requests, in order of arrival. The same seed gives the same lengths and predictions
    /// under every arrival process.
    pub fn jobs(&self) -> Vec<Job> {
        let mut rng = Rng::new(self.seed);
        let Dataset { prompt, output, max_tokens, .. } = self.dataset;
        let mut jobs: Vec<Job> = (0..self.requests)
            .map(|index| Job {
                id: index as u64,
                arrival_ns: 0,
                prompt_tokens: prompt.tokens(&mut rng),
                output_tokens: output.tokens(&mut rng),
                max_tokens,
                priority: 0,
                r: None,
                refined: Refined::None,
                block_hashes: [].into(),
            })
            .collect();
        self.noise.predict(&mut jobs, mix(self.seed ^ 1));
        schedule(&mut jobs, self.arrivals, self.seed);
        jobs
    }
}

/// Gives `jobs` the arrival times of a process: with one seed the same gaps at every rate, scaled.
pub fn schedule(jobs: &mut [Job], arrivals: Arrivals, seed: u64) {
    let seconds = arrivals.seconds(jobs.len(), &mut Rng::new(mix(seed ^ 2)));
    for (job, second) in jobs.iter_mut().zip(seconds) {
        job.arrival_ns = (second * 1e9).round() as u64;
    }
}
