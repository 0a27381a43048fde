//! One simulated run, as a value.

use std::fmt;
use std::sync::Arc;

use trail_runtime::engine::PolicyKind;
use trail_scheduler::rng::mix;
use trail_simulator::arrivals::Arrivals;
use trail_simulator::{Dataset, Job, Noise, Simulation, Workload, schedule};

/// Arrivals of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// At a multiple of the capacity.
    Load {
        /// The multiple.
        load: f64,
        /// Gamma-distributed gaps of ELIS's shape instead of exponential ones.
        gamma: bool,
    },
    /// At a rate.
    Rate {
        /// Requests per second.
        rate: f64,
        /// Gamma-distributed gaps of ELIS's shape instead of exponential ones.
        gamma: bool,
    },
    /// All at once.
    Burst,
    /// As in the trace file.
    Recorded,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gaps = |gamma: bool| if gamma { " gamma" } else { "" };
        match *self {
            Pace::Load { load, gamma } => write!(f, "{load:.2}{}", gaps(gamma)),
            Pace::Rate { rate, gamma } => write!(f, "{rate:.3}/s{}", gaps(gamma)),
            Pace::Burst => f.write_str("burst"),
            Pace::Recorded => f.write_str("trace"),
        }
    }
}

/// Origin of the requests.
#[derive(Clone, Debug)]
pub enum RequestSource {
    /// Drawn from distributions.
    Synthetic {
        /// Lengths of prompts and outputs.
        dataset: Dataset,
        /// Predictions.
        noise: Arc<Noise>,
        /// Number of requests.
        requests: usize,
    },
    /// Given, in order of arrival.
    Trace {
        /// The requests.
        jobs: Arc<[Job]>,
        /// Predictions, where the file has none.
        noise: Option<Arc<Noise>>,
        /// Arrivals at a load or rate keep the proportions of the file's gaps.
        keeps_gaps: bool,
    },
}

impl RequestSource {
    /// Number of requests.
    pub fn requests(&self) -> usize {
        match self {
            RequestSource::Synthetic { requests, .. } => *requests,
            RequestSource::Trace { jobs, .. } => jobs.len(),
        }
    }

    /// Longest prompt and `max_tokens` together, tokens; at least 2.
    pub fn longest(&self) -> u32 {
        match self {
            RequestSource::Synthetic { dataset, .. } => {
                dataset.prompt.longest() + dataset.max_tokens
            }
            RequestSource::Trace { jobs, .. } => {
                jobs.iter().map(|job| job.prompt_tokens + job.max_tokens).max().unwrap_or(2)
            }
        }
    }

    /// True if the requests' blocks have hashes, so that some may share them.
    pub fn has_block_hashes(&self) -> bool {
        match self {
            RequestSource::Synthetic { .. } => false,
            RequestSource::Trace { jobs, .. } => {
                jobs.iter().any(|job| !job.block_hashes.is_empty())
            }
        }
    }

    /// Name of lengths and predictions.
    pub fn name(&self) -> String {
        match self {
            RequestSource::Synthetic { dataset, noise, .. } => format!("{dataset}, {noise}"),
            RequestSource::Trace { noise: Some(noise), .. } => format!("trace, {noise}"),
            RequestSource::Trace { .. } => "trace".into(),
        }
    }

    /// The requests, all at once; `count` of distributions.
    pub fn burst(&self, count: usize, seed: u64) -> Vec<Job> {
        match self {
            RequestSource::Synthetic { dataset, noise, .. } => {
                let (arrivals, noise) = (Arrivals::Burst, (**noise).clone());
                Workload { requests: count, arrivals, dataset: *dataset, noise, seed }.jobs()
            }
            RequestSource::Trace { jobs, noise, .. } => {
                let mut jobs = jobs.to_vec();
                if let Some(noise) = noise {
                    noise.predict(&mut jobs, mix(seed ^ 1));
                }
                jobs.iter_mut().for_each(|job| job.arrival_ns = 0);
                jobs
            }
        }
    }

    /// Arrival times of the file, nanoseconds, if arrivals follow them at a rate; scaled to `rate`
    /// requests per second.
    fn scaled_arrivals(&self, rate: f64) -> Option<impl Iterator<Item = u64>> {
        let RequestSource::Trace { jobs, keeps_gaps: true, .. } = self else { return None };
        let recorded_s = jobs.last().map_or(0, |job| job.arrival_ns) as f64 / 1e9;
        let scale = if recorded_s > 0.0 { jobs.len() as f64 / rate / recorded_s } else { 0.0 };
        Some(jobs.iter().map(move |job| (job.arrival_ns as f64 * scale) as u64))
    }
}

/// One run, but for its seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The policy.
    pub policy: PolicyKind,
    /// Arrivals.
    pub pace: Pace,
    /// The requests.
    pub source: RequestSource,
    /// Sizes, step times and workers.
    pub simulation: Simulation,
}

impl Scenario {
    /// The requests with their arrival times. `capacity`: requests per second at a load of 1.
    pub fn jobs(&self, seed: u64, capacity: f64) -> Vec<Job> {
        let mut jobs = self.source.burst(self.source.requests(), seed);
        let (rate, gamma) = match (self.pace, &self.source) {
            (Pace::Recorded, RequestSource::Trace { jobs: recorded, .. }) => {
                for (job, recorded) in jobs.iter_mut().zip(recorded.iter()) {
                    job.arrival_ns = recorded.arrival_ns;
                }
                return jobs;
            }
            (Pace::Recorded | Pace::Burst, _) => return jobs,
            (Pace::Load { load, gamma }, _) => (load * capacity, gamma),
            (Pace::Rate { rate, gamma }, _) => (rate, gamma),
        };
        if let Some(arrivals) = self.source.scaled_arrivals(rate) {
            jobs.iter_mut().zip(arrivals).for_each(|(job, ns)| job.arrival_ns = ns);
            return jobs;
        }
        let arrivals = match gamma {
            true => Arrivals::gamma_at(rate),
            false => Arrivals::Poisson { rate },
        };
        schedule(&mut jobs, arrivals, mix(seed));
        jobs
    }
}
