//! A tracker for callers that may err, as programs of other languages: a wrong call is refused, and
//! changes nothing.

use std::fmt;

use crate::tracker::{Estimate, Filter, Tracker};

/// Most places of a [`CheckedTracker`].
pub const MAX_PLACES: usize = 1 << 20;

/// Distance of the sum of probabilities from 1 that rounding explains.
const ROUNDING: f32 = 0.01;

/// A wrong call: one line, with what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrackerMisuse {
    /// A tracker of so many places.
    Places(usize),
    /// A place that is not there.
    NoPlace {
        /// The place.
        place: usize,
        /// Places of the tracker.
        places: usize,
    },
    /// Numbers that are not the probabilities of so many bins.
    NoProbabilities(usize),
}

impl fmt::Display for TrackerMisuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrackerMisuse::Places(places) => {
                write!(f, "max_requests is {places}: give 1 to {MAX_PLACES}")
            }
            TrackerMisuse::NoPlace { place, places } => {
                write!(f, "there is no place {place}: the tracker has {places}")
            }
            TrackerMisuse::NoProbabilities(bins) => {
                write!(f, "these are no probabilities: give {bins} numbers, 0 or more, of sum 1")
            }
        }
    }
}

impl std::error::Error for TrackerMisuse {}

/// A [`Tracker`] of places, which answers have one after the other.
pub struct CheckedTracker {
    tracker: Tracker,
    bins: usize,
    /// Answers that each place had before.
    generations: Vec<u32>,
}

impl CheckedTracker {
    /// Creates a tracker of `max_requests` places.
    pub fn new(filter: Filter, max_requests: usize) -> Result<CheckedTracker, TrackerMisuse> {
        if !(1..=MAX_PLACES).contains(&max_requests) {
            return Err(TrackerMisuse::Places(max_requests));
        }
        let bins = filter.bins().count();
        let tracker = Tracker::new(filter, max_requests);
        Ok(CheckedTracker { tracker, bins, generations: vec![0; max_requests] })
    }

    /// Takes in the probabilities `p` `[bins]` after `generated` tokens of the answer at `place`.
    /// See [`Tracker::observe`].
    pub fn observe(
        &mut self,
        place: usize,
        generated: u32,
        p: &[f32],
    ) -> Result<Estimate, TrackerMisuse> {
        let generation = *self.generation(place)?;
        let are_numbers = p.len() == self.bins && p.iter().all(|&p| p >= 0.0);
        if !are_numbers || (p.iter().sum::<f32>() - 1.0).abs() > ROUNDING {
            return Err(TrackerMisuse::NoProbabilities(self.bins));
        }
        let estimate = self.tracker.observe(place, generation, generated, p);
        Ok(estimate.expect("the place's last generation"))
    }

    /// Makes `place` free for another answer.
    pub fn forget(&mut self, place: usize) -> Result<(), TrackerMisuse> {
        let generation = self.generation(place)?;
        *generation = generation.wrapping_add(1);
        Ok(())
    }

    /// The generation of `place`, if it is there.
    fn generation(&mut self, place: usize) -> Result<&mut u32, TrackerMisuse> {
        let places = self.generations.len();
        self.generations.get_mut(place).ok_or(TrackerMisuse::NoPlace { place, places })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bins::Bins;
    use crate::smoothing::Smoother;

    #[test]
    fn wrong_calls_are_refused_and_change_nothing() {
        let filter = || Filter::Bins(Smoother::new(Bins::equal(2, 100)));
        for places in [0, MAX_PLACES + 1, usize::MAX] {
            let refused = CheckedTracker::new(filter(), places).err();
            assert_eq!(refused, Some(TrackerMisuse::Places(places)));
        }
        let mut tracker = CheckedTracker::new(filter(), 2).expect("places");
        let first = tracker.observe(1, 0, &[0.25, 0.75]).expect("probabilities");
        for p in [&[1.0][..], &[0.0, 0.0], &[f32::NAN, 1.0], &[1.5, -0.5], &[f32::INFINITY, 0.0]] {
            assert_eq!(tracker.observe(1, 1, p), Err(TrackerMisuse::NoProbabilities(2)), "{p:?}");
        }
        let none = TrackerMisuse::NoPlace { place: 2, places: 2 };
        assert_eq!(tracker.observe(2, 0, &[0.5, 0.5]), Err(none));
        assert_eq!(tracker.forget(2), Err(none));
        tracker.observe(1, 1, &[0.5, 0.5]).expect("probabilities");
        tracker.forget(1).expect("a place");
        let again = tracker.observe(1, 0, &[0.25, 0.75]).expect("probabilities");
        assert_eq!(again.remaining, first.remaining);
    }
}
