//! Predictions of a workload's output lengths, and their errors.

use std::fmt;
use std::str::FromStr;

use trail_platform::rng::{Rng, mix};

use crate::job::{Job, Refined};
use crate::release::prompt_prediction;
use crate::trace_set::TraceSet;
use trail_platform::kendall::kendall_tau_b;

/// Source of predictions.
#[derive(Clone, Debug, PartialEq)]
pub enum Noise {
    /// No predictions.
    None,
    /// The true lengths, and the true remaining tokens.
    Oracle,
    /// One prediction a request: the length plus a normal error, clamped to 1..=`max_tokens`
    /// (RR-SJF, section 5).
    Gaussian {
        /// Standard deviation, tokens.
        sigma: f64,
    },
    /// One prediction a request: the lengths, with a portion shuffled so that predictions
    /// and lengths have this rank correlation (Learning to Rank, figure 2b).
    Rank {
        /// Kendall's tau-b.
        tau: f64,
    },
    /// The bundled probe's recorded predictions, resampled by length: mean error 18.5 tokens.
    Demo,
    /// Synthesised at the level of TRAIL's released predictors: probe 33.9 tokens and 62 % of ten
    /// bins, prompt 46.1 tokens.
    Release,
    /// Recorded predictions, resampled by length.
    Recorded(TraceSet),
}

impl Noise {
    /// Gives each of `jobs` its predictions.
    pub fn predict(&self, jobs: &mut [Job], seed: u64) {
        match self {
            Noise::None => {}
            Noise::Oracle => {
                for job in jobs {
                    (job.r, job.refined) = (Some(job.output_tokens as f32), Refined::Exact);
                }
            }
            Noise::Gaussian { sigma } => {
                let mut rng = Rng::new(seed);
                for job in jobs {
                    let predicted = f64::from(job.output_tokens) + sigma * rng.normal();
                    job.r = Some(predicted.clamp(1.0, f64::from(job.max_tokens)) as f32);
                }
            }
            Noise::Rank { tau } => shuffle_to(*tau, jobs, seed),
            Noise::Demo => resample(&TraceSet::demo(), jobs, seed),
            Noise::Recorded(set) => resample(set, jobs, seed),
            Noise::Release => {
                let mut rng = Rng::new(seed);
                for job in jobs {
                    let cap = job.max_tokens;
                    job.r = Some(prompt_prediction(job.output_tokens, cap, &mut rng));
                    job.refined = Refined::Release(rng.next_u64());
                }
            }
        }
    }
}

fn resample(set: &TraceSet, jobs: &mut [Job], seed: u64) {
    let mut rng = Rng::new(seed);
    for job in jobs {
        let near = set.near(job.output_tokens, &mut rng);
        let stretch = job.output_tokens as f32 / near.remaining.len() as f32;
        job.r = Some(near.r * stretch);
        job.refined = Refined::Recorded(near.remaining.clone());
    }
}

/// Jobs by which the rank correlation is measured.
const TAU_SAMPLE: usize = 20_000;

/// Gives each job its length as the prediction, then shuffles a portion until the rank correlation
/// is `tau`.
fn shuffle_to(tau: f64, jobs: &mut [Job], seed: u64) {
    let mut rng = Rng::new(seed);
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    shuffle(&mut order, &mut rng);
    // Shuffling a larger portion lowers tau, on average by (4 p - p^2) / 3: bisection.
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..20 {
        let portion = 0.5 * (low + high);
        shuffle_portion(portion, jobs, &order, mix(seed));
        let predicted = jobs.iter().take(TAU_SAMPLE);
        let pairs: Vec<(f64, f64)> = predicted
            .map(|job| (f64::from(job.output_tokens), job.r.unwrap_or(0.0).into()))
            .collect();
        if kendall_tau_b(&pairs) > tau { low = portion } else { high = portion }
    }
}

/// Shuffles the predictions of the first `portion` of `order`; those of the others are the lengths.
fn shuffle_portion(portion: f64, jobs: &mut [Job], order: &[usize], seed: u64) {
    let chosen = &order[..(portion * order.len() as f64) as usize];
    let mut from = chosen.to_vec();
    shuffle(&mut from, &mut Rng::new(seed));
    jobs.iter_mut().for_each(|job| job.r = Some(job.output_tokens as f32));
    for (&to, &from) in chosen.iter().zip(&from) {
        jobs[to].r = Some(jobs[from].output_tokens as f32);
    }
}

fn shuffle(order: &mut [usize], rng: &mut Rng) {
    for last in (1..order.len()).rev() {
        order.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Noise::None => f.write_str("none"),
            Noise::Oracle => f.write_str("oracle"),
            Noise::Gaussian { sigma } => write!(f, "gaussian:{sigma}"),
            Noise::Rank { tau } => write!(f, "tau:{tau}"),
            Noise::Demo => f.write_str("demo"),
            Noise::Release => f.write_str("release"),
            Noise::Recorded(_) => f.write_str("recorded"),
        }
    }
}

impl FromStr for Noise {
    type Err = String;

    fn from_str(text: &str) -> Result<Noise, String> {
        let number = |value: &str, min: f64, max: f64| match value.parse::<f64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(format!("'{value}' in noise '{text}': give a number from {min} to {max}")),
        };
        match text.split_once(':') {
            Some(("gaussian", sigma)) => Ok(Noise::Gaussian { sigma: number(sigma, 0.0, 1e6)? }),
            Some(("tau", tau)) => Ok(Noise::Rank { tau: number(tau, 0.0, 1.0)? }),
            None if text == "none" => Ok(Noise::None),
            None if text == "oracle" => Ok(Noise::Oracle),
            None if text == "demo" => Ok(Noise::Demo),
            None if text == "release" => Ok(Noise::Release),
            _ => Err(format!(
                "unknown noise '{text}': choose demo, release, oracle, none, gaussian:SIGMA or \
                 tau:TAU"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrivals::Arrivals;
    use crate::{Dataset, Workload};

    fn jobs(noise: Noise, requests: usize) -> Vec<Job> {
        let dataset = Dataset::ALPACA;
        Workload { requests, arrivals: Arrivals::Burst, dataset, noise, seed: 4 }.jobs()
    }

    #[test]
    fn a_rank_correlation_is_met() {
        for tau in [0.2, 0.54, 0.8, 1.0] {
            let jobs = jobs(Noise::Rank { tau }, if cfg!(miri) { 200 } else { 4000 });
            let pair = |job: &Job| (f64::from(job.output_tokens), f64::from(job.r.expect("r")));
            let got = kendall_tau_b(&jobs.iter().map(pair).collect::<Vec<_>>());
            assert!((got - tau).abs() < 0.02, "{got}, not {tau}");
        }
    }

    #[test]
    fn gaussian_predictions_have_their_deviation_and_limits() {
        let jobs = jobs(Noise::Gaussian { sigma: 25.0 }, if cfg!(miri) { 200 } else { 4000 });
        let off = jobs.iter().filter(|job| (60..450).contains(&job.output_tokens));
        let errors: Vec<f64> =
            off.map(|job| f64::from(job.r.expect("r")) - f64::from(job.output_tokens)).collect();
        let variance = errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64;
        assert!((variance.sqrt() / 25.0 - 1.0).abs() < 0.15, "{}", variance.sqrt());
        assert!(jobs.iter().all(|job| (1.0..=512.0).contains(&job.r.expect("r"))));
    }

    #[test]
    fn names_read_back() {
        for name in ["none", "oracle", "gaussian:25", "tau:0.54", "demo", "release"] {
            assert_eq!(name.parse::<Noise>().expect(name).to_string(), name);
        }
        for name in ["", "gaussian", "gaussian:-1", "tau:2", "tau:NaN", "trail"] {
            assert!(name.parse::<Noise>().is_err(), "{name}");
        }
    }
}
