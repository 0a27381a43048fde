//! Mean response time, memory and preemptions of SPRPT with limited preemption in an M/G/1 queue.

use std::fmt;

use super::predictor::Predictor;
use super::quadrature::integrate;

/// An M/G/1 queue under shortest predicted remaining processing time with limited preemption.
///
/// Jobs arrive at rate `lambda`, have sizes of mean 1, and are preemptable below age `c` r. 0 is
/// the limit c -> 0+: shortest predicted job first without preemption.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queue {
    lambda: f64,
    c: f64,
    predictor: Predictor,
}

/// Parameters of a queue that has no stationary mean, or no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidQueue {
    /// The arrival rate is not between 0 and 1, both excluded.
    Lambda,
    /// The share of the prediction is not in 0..=1.
    C,
}

impl fmt::Display for InvalidQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            InvalidQueue::Lambda => "the arrival rate must be above 0 and below 1",
            InvalidQueue::C => "c must be between 0 and 1",
        })
    }
}

impl std::error::Error for InvalidQueue {}

impl Queue {
    /// The queue with arrival rate `lambda` in (0, 1) and preemptable share `c` in \[0, 1\].
    pub fn new(lambda: f64, c: f64, predictor: Predictor) -> Result<Queue, InvalidQueue> {
        match (lambda > 0.0 && lambda < 1.0, (0.0..=1.0).contains(&c)) {
            (false, _) => Err(InvalidQueue::Lambda),
            (_, false) => Err(InvalidQueue::C),
            (true, true) => Ok(Queue { lambda, c, predictor }),
        }
    }

    /// Arrival rate, which is also the load.
    pub fn lambda(&self) -> f64 {
        self.lambda
    }

    /// Share of the prediction in which a job is preemptable.
    pub fn c(&self) -> f64 {
        self.c
    }

    /// The predictor.
    pub fn predictor(&self) -> Predictor {
        self.predictor
    }

    /// Mean response time, by the corrected lemma.
    pub fn mean_response(&self) -> f64 {
        let slowed = |s: f64| self.predictor.exposed(0, s, self.c) * self.slowdown(s);
        let waits = |r: f64| self.predictor.density(r) * self.wait(r);
        self.predictor.integrate(waits) + 1.0 + self.predictor.integrate(slowed)
    }

    /// Mean response time by the lemma as the paper prints it.
    pub fn mean_response_as_printed(&self) -> f64 {
        let (c, predictor) = (self.c, self.predictor);
        // Predictions left at ages below c r, whatever the size: P(s < R < s / (1 - c)).
        let last = |s: f64| if c < 1.0 { predictor.tail(0, s / (1.0 - c)) } else { 0.0 };
        let slowed = |s: f64| (predictor.tail(0, s) - last(s)) * self.slowdown(s);
        let waits = |r: f64| predictor.density(r) * self.wait_as_printed(r);
        predictor.integrate(waits) + 1.0 + predictor.integrate(slowed)
    }

    /// Mean response time of a job of size `x` and prediction `r`, by the corrected lemma.
    pub fn response(&self, x: f64, r: f64) -> f64 {
        let preemptable = x.min(self.c * r);
        self.wait(r) + x + self.delay(preemptable, r)
    }

    /// The same by the lemma as printed, which integrates up to age c r also where the job is
    /// smaller.
    pub fn response_as_printed(&self, x: f64, r: f64) -> f64 {
        self.wait_as_printed(r) + x + self.delay(self.c * r, r)
    }

    /// Mean response time of the jobs with prediction `r`, by the corrected lemma.
    pub fn response_given_prediction(&self, r: f64) -> f64 {
        let slowed = |a: f64| self.predictor.survival(a, r) * self.slowdown(r - a);
        let delay = self.predictor.integrate_between(0.0, self.c * r, slowed);
        self.wait(r) + (self.predictor.work(r) + delay) / self.predictor.density(r)
    }

    /// The same by the lemma as printed.
    pub fn response_given_prediction_as_printed(&self, r: f64) -> f64 {
        let size = self.predictor.work(r) / self.predictor.density(r);
        self.wait_as_printed(r) + size + self.delay(self.c * r, r)
    }

    /// Time average of the memory: the sum of the ages of all jobs in the system (H = lambda G).
    pub fn mean_memory(&self) -> f64 {
        let slowed = |s: f64| self.predictor.exposed(1, s, self.c) * self.slowdown(s);
        // lambda E[S^2] / 2 = lambda without any preemption.
        self.lambda * (1.0 + self.predictor.integrate(slowed))
    }

    /// Mean number of preemptions of a job: arrivals of smaller predictions while it is served.
    pub fn preemptions_per_job(&self) -> f64 {
        let predictor = self.predictor;
        let hit = |s: f64| predictor.exposed(0, s, self.c) * (1.0 - predictor.tail(0, s));
        self.lambda * predictor.integrate(hit)
    }

    /// 1 - rho'_r, the share of time without service to predictions up to r; `tail` is
    /// E\[S; R > r\]. There is no cancellation where lambda is close to 1.
    fn rest(&self, tail: f64) -> f64 {
        (1.0 - self.lambda) + self.lambda * tail
    }

    /// Time that new arrivals add per unit of service with `s` predicted left:
    /// 1 / (1 - rho'_s) - 1.
    fn slowdown(&self, s: f64) -> f64 {
        let tail = self.predictor.tail(1, s);
        self.lambda * (1.0 - tail) / self.rest(tail)
    }

    /// Mean time that new arrivals add to the service up to age `end` of a job with prediction `r`.
    fn delay(&self, end: f64, r: f64) -> f64 {
        integrate(|left| self.slowdown(left), r - end, r)
    }

    /// Mean time from the arrival of a job with prediction `r` to its first service.
    fn wait(&self, r: f64) -> f64 {
        self.wait_for(r, self.predictor.recycled(r, self.c))
    }

    fn wait_as_printed(&self, r: f64) -> f64 {
        self.wait_for(r, self.predictor.recycled_as_printed(r, self.c))
    }

    fn wait_for(&self, r: f64, recycled: f64) -> f64 {
        // E[S^2] = 2.
        let original = 2.0 - self.predictor.tail(2, r);
        self.lambda * (original + recycled) / (2.0 * self.rest(self.predictor.tail(1, r)).powi(2))
    }
}
