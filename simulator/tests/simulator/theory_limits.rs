//! The theory against classical results and its own definitions, by an independent quadrature.

use trail_simulator::theory::simulation::simulate;
use trail_simulator::theory::{InvalidQueue, Predictor, Queue};

const LAMBDAS: [f64; 4] = [0.5, 0.7, 0.9, 0.99];

/// Five digits and a reserve.
const PRECISION: f64 = 1e-7;

fn queue(lambda: f64, c: f64, predictor: Predictor) -> Queue {
    Queue::new(lambda, c, predictor).expect("valid parameters")
}

fn assert_close(got: f64, want: f64, of: &str) {
    assert!((got / want - 1.0).abs() < PRECISION, "{of}: {got}, not {want}");
}

/// Running integral of `f` from 0 in steps of `step`, by Simpson's rule over each step.
fn running(f: impl Fn(f64) -> f64, step: f64, count: usize) -> Vec<f64> {
    let mut sums = vec![0.0];
    for i in 0..count {
        let a = step * i as f64;
        let part = (f(a) + 4.0 * f(a + step / 2.0) + f(a + step)) * step / 6.0;
        sums.push(sums[i] + part);
    }
    sums
}

/// Mean over an exponential size, from values at multiples of `step`.
fn mean_over_sizes(values: &[f64], step: f64) -> f64 {
    let last = values.len() - 1;
    let weight = |i: usize| match i {
        _ if i == 0 || i == last => 1.0,
        _ if i % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let terms = values.iter().enumerate();
    terms.map(|(i, value)| weight(i) * value * (-step * i as f64).exp()).sum::<f64>() * step / 3.0
}

const STEP: f64 = 0.005;
const COUNT: usize = 10_000;

/// Schrage and Miller (1966): SRPT.
fn srpt(lambda: f64) -> f64 {
    let load = running(|x| lambda * x * (-x).exp(), STEP, COUNT);
    let squares = running(|x| x * x * (-x).exp(), STEP, COUNT);
    let mut residence = 0.0;
    let values: Vec<f64> = (0..=COUNT)
        .map(|i| {
            let x = STEP * i as f64;
            let old = lambda * (squares[i] + x * x * (-x).exp());
            if i > 0 {
                let middle = x - STEP / 2.0;
                let load_there = lambda * (1.0 - (1.0 + middle) * (-middle).exp());
                let rate = |load: f64| 1.0 / (1.0 - load);
                residence +=
                    (rate(load[i - 1]) + 4.0 * rate(load_there) + rate(load[i])) * STEP / 6.0;
            }
            old / (2.0 * (1.0 - load[i]).powi(2)) + residence
        })
        .collect();
    mean_over_sizes(&values, STEP)
}

/// Phipps (1956): shortest job first without preemption.
fn sjf(lambda: f64) -> f64 {
    let load = running(|x| lambda * x * (-x).exp(), STEP, COUNT);
    let values: Vec<f64> = load.iter().map(|load| lambda / (1.0 - load).powi(2)).collect();
    1.0 + mean_over_sizes(&values, STEP)
}

#[test]
fn with_perfect_predictions_c_1_is_srpt_and_c_0_is_sjf() {
    for lambda in LAMBDAS {
        let at = |c| queue(lambda, c, Predictor::Perfect).mean_response();
        assert_close(at(1.0), srpt(lambda), "SRPT");
        assert_close(at(0.0), sjf(lambda), "SJF");
        // The limit c -> 0+ is approached from below.
        assert!(at(0.0) > at(1e-6) && at(0.0) / at(1e-6) - 1.0 < 1e-4, "{}", at(1e-6));
        assert!((at(1.0) / at(1.0 - 1e-9) - 1.0).abs() < 1e-7, "{}", at(1.0 - 1e-9));
    }
}

/// Non-preemptive priority by an exponential prediction: the wait given r is that of Phipps'
/// formula with the load of smaller predictions.
#[test]
fn with_exponential_predictions_c_0_is_shortest_predicted_job_first() {
    for lambda in LAMBDAS {
        let at = |c| queue(lambda, c, Predictor::Exponential);
        // In u = 2 sqrt(r): the load below r by its definition, the integral of
        // x g(x, y) over x and y < r.
        let work = |u: f64| at(0.0).predictor().work(u * u / 4.0) * u / 2.0;
        let (step, count) = (0.01, 10_000);
        let load = running(|u| if u > 0.0 { work(u) } else { 0.0 }, step, count);
        let density = |u: f64| at(0.0).predictor().density(u * u / 4.0) * u / 2.0;
        let values: Vec<f64> = (0..=count)
            .map(|i| {
                let u = step * i as f64;
                let wait = lambda / (1.0 - lambda * load[i]).powi(2);
                // Undo the weight exp(-u) of the mean.
                if i > 0 { density(u) * wait * u.exp() } else { 0.0 }
            })
            .collect();
        let want = 1.0 + mean_over_sizes(&values, step);
        // Simpson's rule on u log u near 0.
        let got = at(0.0).mean_response();
        assert!((got / want - 1.0).abs() < 1e-5, "{lambda}: {got}, not {want}");
        let near = at(1e-6).mean_response();
        assert!((got / near - 1.0).abs() < 1e-4, "{lambda}: {got}, {near}");
    }
}

#[test]
fn the_mean_is_the_mean_of_the_conditional_means() {
    for (lambda, c) in [(0.5, 0.2), (0.9, 0.8), (0.7, 1.0)] {
        for predictor in Predictor::ALL {
            let queue = queue(lambda, c, predictor);
            // Beyond r = 400 the density is below 1e-17.
            let over = |f: &dyn Fn(f64) -> f64| {
                let term = |u: f64| predictor.density(u * u) * f(u * u) * 2.0 * u;
                predictor.integrate_between(0.0, 20.0, term)
            };
            let given = over(&|r| queue.response_given_prediction(r));
            assert_close(queue.mean_response(), given, "corrected");
            let printed = over(&|r| queue.response_given_prediction_as_printed(r));
            assert_close(queue.mean_response_as_printed(), printed, "printed");
        }
        // Given r: the mean over sizes.
        let queue = queue(lambda, c, Predictor::Exponential);
        for r in [0.01, 0.7, 5.0] {
            let weight = |x: f64| (-x - r / x).exp() / x;
            let over = |f: &dyn Fn(f64) -> f64| {
                let kink = c * r;
                let left = queue.predictor().integrate_between(1e-9, kink, |x| weight(x) * f(x));
                left + queue
                    .predictor()
                    .integrate_between(kink.max(1e-9), 60.0, |x| weight(x) * f(x))
            };
            let mean = over(&|x| queue.response(x, r)) / over(&|_| 1.0);
            assert_close(queue.response_given_prediction(r), mean, "given r");
        }
    }
}

#[test]
fn preemptions_with_perfect_predictions() {
    for c in [0.1, 0.5, 0.8, 1.0] {
        let want = 0.7 * (c + 0.5 - 1.0 / (2.0 - c));
        let got = queue(0.7, c, Predictor::Perfect).preemptions_per_job();
        assert_close(got, want, "preemptions per job");
    }
    for predictor in Predictor::ALL {
        assert_eq!(queue(0.7, 0.0, predictor).preemptions_per_job(), 0.0);
        assert_close(queue(0.7, 0.0, predictor).mean_memory(), 0.7, "memory");
    }
}

/// Limited preemption buys memory and pays in response time, at every step of c; with exponential
/// predictions only up to a load between 0.9 and 0.95.
#[test]
fn response_falls_and_memory_rises_with_c() {
    for predictor in Predictor::ALL {
        let is_monotone = |lambda: &f64| predictor == Predictor::Perfect || *lambda <= 0.9;
        for lambda in LAMBDAS.into_iter().filter(is_monotone) {
            let queues = (0..=10).map(|tenths| queue(lambda, f64::from(tenths) / 10.0, predictor));
            let all: Vec<(f64, f64)> =
                queues.map(|queue| (queue.mean_response(), queue.mean_memory())).collect();
            for pair in all.windows(2) {
                assert!(pair[1].0 < pair[0].0 && pair[1].1 > pair[0].1, "{predictor}: {pair:?}");
            }
        }
    }
}

/// A preempting job is smaller than the preempted job's remainder, so ages add up to less than
/// the largest size.
#[test]
fn with_perfect_predictions_peak_memory_is_the_largest_job_whatever_c() {
    for seed in 1..=3 {
        for c in [0.0, 0.2, 0.5, 0.8, 1.0] {
            let outcome = simulate(&queue(0.9, c, Predictor::Perfect), 50_000, seed);
            let off = outcome.peak_memory - outcome.largest_size;
            assert!(off.abs() < 1e-9, "c {c}: {outcome:?}");
        }
    }
    let exponential = |c| simulate(&queue(0.9, c, Predictor::Exponential), 50_000, 1).peak_memory;
    assert!(exponential(1.0) > exponential(0.0), "{} {}", exponential(1.0), exponential(0.0));
}

#[test]
fn heavy_load_and_invalid_parameters() {
    for predictor in Predictor::ALL {
        for c in [0.0, 1e-9, 0.5, 1.0 - 1e-12, 1.0] {
            let queue = queue(1.0 - 1e-9, c, predictor);
            let all = [queue.mean_response(), queue.mean_memory(), queue.preemptions_per_job()];
            assert!(all.iter().all(|value| value.is_finite()), "{queue:?}: {all:?}");
        }
        for lambda in [0.0, 1.0, -0.5, f64::NAN, f64::INFINITY] {
            assert_eq!(Queue::new(lambda, 0.5, predictor), Err(InvalidQueue::Lambda));
        }
        for c in [-0.1, 1.1, f64::NAN] {
            assert_eq!(Queue::new(0.5, c, predictor), Err(InvalidQueue::C));
        }
    }
}
