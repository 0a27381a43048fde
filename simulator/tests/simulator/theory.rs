//! An M/G/1 simulation decides between the corrected lemma and the printed one.
//!
//! `TRAIL_THEORY_JOBS` sets the jobs simulated at each point. docs/theory.md has the tables of
//! `TRAIL_THEORY_JOBS=20000000 cargo test -p trail-simulator theory:: -- --nocapture`.

use trail_simulator::theory::simulation::{Completed, Observer, observe};
use trail_simulator::theory::{Estimate, Predictor, Queue, Ratio};

const LAMBDAS: [f64; 3] = [0.5, 0.7, 0.9];

/// Preemptable shares; 0 is the limit c -> 0+.
const SHARES: [f64; 4] = [0.0, 0.2, 0.5, 1.0];

/// Bound on a deviation in standard errors. A normal variable exceeds it with probability 7e-6; a
/// run makes about 300 comparisons, and its seeds are fixed.
const MAX_Z: f64 = 4.5;

/// Ranges of predictions over which response times are compared.
const RANGES: [(f64, f64); 5] = [(0.1, 0.3), (0.3, 0.8), (0.8, 1.5), (1.5, 3.0), (3.0, 6.0)];

/// Ranges of size and prediction: far too long, far too short, and good predictions.
const BOXES: [((f64, f64), (f64, f64)); 3] =
    [((0.2, 0.6), (1.0, 3.0)), ((2.0, 4.0), (0.2, 0.6)), ((0.8, 1.2), (0.8, 1.2))];

fn jobs() -> u64 {
    let set = std::env::var("TRAIL_THEORY_JOBS");
    set.map_or(1_000_000, |count| count.parse().expect("TRAIL_THEORY_JOBS is a number"))
}

/// Integral of `f` over [a, b] by Simpson's rule, of no part in the code under test.
fn simpson(a: f64, b: f64, f: impl Fn(f64) -> f64) -> f64 {
    let intervals = 12;
    let step = (b - a) / f64::from(intervals);
    let weight = |i: i32| match i {
        0 => 1.0,
        _ if i == intervals => 1.0,
        _ if i % 2 == 1 => 4.0,
        _ => 2.0,
    };
    (0..=intervals).map(|i| weight(i) * f(a + step * f64::from(i))).sum::<f64>() * step / 3.0
}

/// Response times of one class of jobs, by cycle.
struct Class<F> {
    contains: F,
    total: f64,
    count: f64,
    ratio: Ratio,
}

/// The classes of one run.
struct Classes<F>(Vec<Class<F>>);

impl<F: Fn(&Completed) -> bool> Classes<F> {
    fn of(contains: impl IntoIterator<Item = F>) -> Classes<F> {
        let class = |contains| Class { contains, total: 0.0, count: 0.0, ratio: Ratio::default() };
        Classes(contains.into_iter().map(class).collect())
    }

    fn estimates(&self) -> Vec<Estimate> {
        self.0.iter().map(|class| class.ratio.estimate()).collect()
    }
}

impl<F: Fn(&Completed) -> bool> Observer for Classes<F> {
    fn completed(&mut self, job: &Completed) {
        for class in self.0.iter_mut().filter(|class| (class.contains)(job)) {
            class.total += job.response;
            class.count += 1.0;
        }
    }

    fn cycle(&mut self, control: f64) {
        for class in &mut self.0 {
            class.ratio.add(class.total, class.count, control);
            (class.total, class.count) = (0.0, 0.0);
        }
    }
}

/// Every queue, with its own seed, so that deviations are independent.
fn queues() -> impl Iterator<Item = (Queue, u64)> {
    let points = Predictor::ALL.into_iter().flat_map(|predictor| {
        let shares = SHARES.into_iter();
        shares.flat_map(move |c| LAMBDAS.into_iter().map(move |lambda| (lambda, c, predictor)))
    });
    points
        .zip(1..)
        .map(|((lambda, c, predictor), seed)| (Queue::new(lambda, c, predictor).unwrap(), seed))
}

/// Total response times and jobs of each cycle, with its control.
#[derive(Default)]
struct Cycles(Vec<(f64, f64, f64)>, f64, f64);

impl Observer for Cycles {
    fn completed(&mut self, job: &Completed) {
        self.1 += job.response;
        self.2 += 1.0;
    }

    fn cycle(&mut self, control: f64) {
        self.0.push((self.1, self.2, control));
        (self.1, self.2) = (0.0, 0.0);
    }
}

/// Runs of equal seeds have the same cycles whatever c is, so that the difference is known far
/// better than either mean.
#[test]
fn at_high_load_with_poor_predictions_a_small_c_is_faster() {
    let queue = |c| Queue::new(0.99, c, Predictor::Exponential).expect("valid parameters");
    let run = |c| {
        let mut cycles = Cycles::default();
        observe(&queue(c), 2 * jobs(), 300, &mut cycles);
        cycles.0
    };
    let mut difference = Ratio::default();
    for (limited, whole) in run(0.1).iter().zip(run(1.0)) {
        assert_eq!(limited.1, whole.1, "the same cycles");
        difference.add(limited.0 - whole.0, limited.1, limited.2);
    }
    let estimate = difference.estimate();
    let theory = queue(0.1).mean_response() - queue(1.0).mean_response();
    println!("c = 0.1 less c = 1 at 0.99: {estimate:?}, {theory}");
    assert!(estimate.z(theory).abs() < MAX_Z && estimate.z(0.0) > MAX_Z, "{estimate:?}, {theory}");
}

/// Asserts that the squares of `deviations` sum to the value of a chi-square variable: neither a
/// bias of many small deviations nor intervals that are too wide.
fn assert_normal(deviations: &[f64]) {
    let (sum, count) = (deviations.iter().map(|z| z * z).sum::<f64>(), deviations.len() as f64);
    assert!((sum - count).abs() < 4.0 * (2.0 * count).sqrt(), "{sum} of {count}");
}

#[test]
fn simulation_agrees_with_the_corrected_lemma_not_the_printed_one() {
    println!(
        "\n| predictor | lambda | c | simulated | corrected | z | as printed | z | \
              memory | z | preemptions | z |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|");
    let mut deviations = Vec::new();
    let mut printed = Vec::new();
    for (queue, seed) in queues() {
        let outcome = observe(&queue, jobs(), seed, &mut Classes::<fn(&Completed) -> bool>::of([]));
        let response = outcome.response.z(queue.mean_response());
        let as_printed = outcome.response.z(queue.mean_response_as_printed());
        let memory = outcome.memory.z(queue.mean_memory());
        // Without preemption both are exactly 0.
        let preemptions = match queue.c() > 0.0 {
            true => outcome.preemptions.z(queue.preemptions_per_job()),
            false => outcome.preemptions.mean + queue.preemptions_per_job(),
        };
        println!(
            "| {} | {} | {} | {:.4} ± {:.4} | {:.5} | {response:.1} | {:.5} | {as_printed:.0} | \
             {:.5} | {memory:.1} | {:.5} | {preemptions:.1} |",
            queue.predictor(),
            queue.lambda(),
            queue.c(),
            outcome.response.mean,
            1.96 * outcome.response.standard_error,
            queue.mean_response(),
            queue.mean_response_as_printed(),
            queue.mean_memory(),
            queue.preemptions_per_job(),
        );
        for z in [response, memory, preemptions] {
            assert!(z.abs() < MAX_Z, "{queue:?}: {outcome:?}");
        }
        deviations.push(response);
        printed.push(as_printed);
    }
    assert_normal(&deviations);
    let beyond = |z: &&f64| z.abs() > MAX_Z;
    let excluded = printed.iter().filter(beyond).count();
    println!("rms z {:.2}", (deviations.iter().map(|z| z * z).sum::<f64>() / 24.0).sqrt());
    assert_eq!(excluded, printed.len(), "the printed form is at {printed:?} standard errors");
}

#[test]
fn response_times_given_the_prediction() {
    println!("\n| predictor | lambda | c | r | simulated | corrected | z | as printed | z |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let (mut deviations, mut excluded) = (Vec::new(), 0);
    for (queue, seed) in queues() {
        let contains =
            RANGES.map(|(from, to)| move |job: &Completed| (from..to).contains(&job.prediction));
        let mut classes = Classes::of(contains);
        observe(&queue, jobs() / 2, 100 + seed, &mut classes);
        for ((from, to), estimate) in RANGES.into_iter().zip(classes.estimates()) {
            let density = |r: f64| queue.predictor().density(r);
            let mean = |response: &dyn Fn(f64) -> f64| {
                simpson(from, to, |r| density(r) * response(r)) / simpson(from, to, density)
            };
            let corrected = mean(&|r| queue.response_given_prediction(r));
            let printed = mean(&|r| queue.response_given_prediction_as_printed(r));
            let (z, printed_z) = (estimate.z(corrected), estimate.z(printed));
            println!(
                "| {} | {} | {} | {from} to {to} | {:.4} ± {:.4} | {corrected:.5} | {z:.1} | \
                 {printed:.5} | {printed_z:.0} |",
                queue.predictor(),
                queue.lambda(),
                queue.c(),
                estimate.mean,
                1.96 * estimate.standard_error,
            );
            assert!(z.abs() < MAX_Z, "{queue:?}, r {from} to {to}: {estimate:?}, {corrected}");
            deviations.push(z);
            excluded += usize::from(printed_z.abs() > MAX_Z);
        }
    }
    // Ranges of one run share its arrivals, but their deviations are nearly uncorrelated once the
    // control has removed the common part.
    assert_normal(&deviations);
    // The two errors cancel in a few ranges.
    println!("the printed form is excluded in {excluded} of {} ranges", deviations.len());
    assert!(excluded > deviations.len() * 3 / 4, "{excluded} of {}", deviations.len());
}

#[test]
fn response_times_given_size_and_prediction() {
    let (mut deviations, mut excluded) = (Vec::new(), 0);
    for (queue, seed) in queues().filter(|(queue, _)| queue.predictor() == Predictor::Exponential) {
        let contains = BOXES.map(|(sizes, predictions)| {
            move |job: &Completed| {
                let inside = |(from, to): (f64, f64), value| (from..to).contains(&value);
                inside(sizes, job.size) && inside(predictions, job.prediction)
            }
        });
        let mut classes = Classes::of(contains);
        observe(&queue, jobs() / 2, 200 + seed, &mut classes);
        for ((sizes, predictions), estimate) in BOXES.into_iter().zip(classes.estimates()) {
            let over = |f: &dyn Fn(f64, f64) -> f64| {
                simpson(predictions.0, predictions.1, |r| {
                    simpson(sizes.0, sizes.1, |x| (-x - r / x).exp() / x * f(x, r))
                })
            };
            let mean = |f: &dyn Fn(f64, f64) -> f64| over(f) / over(&|_, _| 1.0);
            let corrected = estimate.z(mean(&|x, r| queue.response(x, r)));
            assert!(corrected.abs() < MAX_Z, "{queue:?}, {sizes:?}, {predictions:?}: {corrected}");
            deviations.push(corrected);
            let printed = estimate.z(mean(&|x, r| queue.response_as_printed(x, r)));
            excluded += usize::from(printed.abs() > MAX_Z);
        }
    }
    assert_normal(&deviations);
    assert!(excluded > deviations.len() / 2, "{excluded} of {}", deviations.len());
}
