//! Classes of estimates that are corrected alike.

use trail_scheduler::{LiveRequest, Phase};

use super::calibration::{Correction, Interval, Scale};

/// Bounds of the sizes of estimates, steps: errors of lengths rule the long ones, and the queue's
/// first seconds the short ones.
const SIZES: [f64; 4] = [24.0, 96.0, 384.0, 1536.0];

/// Bounds of the ages of those with a place, tokens.
const AGES: [u32; 4] = [1, 16, 64, 256];

/// Steps in which times hardly differ.
const LEAST_STEPS: f64 = 16.0;

/// Number of classes.
pub(super) const CLASSES: usize = 6 * (SIZES.len() + 1);

/// Which of a request's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    First,
    Last,
}

/// State of a request when its time is estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It arrives; others wait, or none.
    Arrival { waits: bool },
    /// It waits for its first place, or for the next one.
    Waiting { started: bool },
    /// It has a place, and others may take it, or not.
    Running { age: u32, at_risk: bool },
}

impl Stage {
    pub(super) fn of(request: &LiveRequest, contended: bool) -> Stage {
        match request.phase {
            Phase::Running => {
                Stage::Running { age: request.generated, at_risk: contended && request.preemptable }
            }
            _ => Stage::Waiting { started: request.started },
        }
    }

    /// Numbers of the stage and of its part, by age or by size.
    fn numbers(self, steps: f64) -> (usize, usize) {
        let size = SIZES.partition_point(|&bound| bound <= steps);
        match self {
            Stage::Arrival { waits } => (usize::from(waits), size),
            Stage::Waiting { started } => (2 + usize::from(started), size),
            Stage::Running { age, at_risk } => {
                (4 + usize::from(at_risk), AGES.partition_point(|&bound| bound <= age))
            }
        }
    }
}

/// A class: the stage, and the size of what samples say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Class(usize);

impl Class {
    /// Share of the class numbered `at` that is to come before an interval, and behind it: less
    /// than a tenth, as a correction follows what has come. It lags most for those that have begun
    /// and whose place others may take.
    pub(super) fn outside(at: usize) -> f64 {
        let (stage, part) = (at / (SIZES.len() + 1), at % (SIZES.len() + 1));
        let is_young = AGES.get(part).is_some_and(|&bound| bound <= 64);
        if stage == 5 && is_young { 0.02 } else { 0.08 }
    }

    /// True for estimates made on arrival.
    pub(super) fn is_of_arrivals(self) -> bool {
        self.0 < 2 * (SIZES.len() + 1)
    }
}

/// The corrections of all classes, with the time of a step.
#[derive(Clone, Debug)]
pub(super) struct Corrections {
    /// By token.
    pub(super) of: [[Correction; CLASSES]; 2],
    pub(super) step_s: f64,
}

impl Default for Corrections {
    fn default() -> Corrections {
        Corrections { of: [[Correction::default(); CLASSES]; 2], step_s: 1e-3 }
    }
}

impl Corrections {
    /// The scale on which errors are compared.
    pub(super) fn scale(&self) -> Scale {
        Scale { least_s: LEAST_STEPS * self.step_s }
    }

    /// The class of an estimate.
    pub(super) fn class(&self, stage: Stage, raw: Interval) -> Class {
        let steps = raw.median / self.step_s;
        let (stage, part) = stage.numbers(steps);
        Class(stage * (SIZES.len() + 1) + part)
    }

    /// The corrected form of an estimate.
    pub(super) fn correct(&self, token: Token, class: Class, raw: Interval) -> Interval {
        self.of[token as usize][class.0].correct(raw, self.scale())
    }
}

impl From<Class> for usize {
    fn from(class: Class) -> usize {
        class.0
    }
}
