//! Recorded predictions for answers of any length: a set of traces, resampled by length.
//!
//! With forced or synthetic lengths there is nothing to predict; the effect of predictions on a
//! schedule can still be simulated, if they err as a probe does: in the first tokens most, and for
//! a while in the same direction. A request is given the predictions of a recorded answer of about
//! its length, so that r, the first tokens and the late ones belong together.

use std::sync::Arc;

use trail_platform::rng::Rng;

use crate::trace::Trace;

/// Relative difference of two lengths that count as equal.
const NEAR: f64 = 0.03;

/// Fewest recorded answers from which one is drawn.
const LEAST: usize = 8;

/// Fixed point of the compact form: units per token.
const UNITS: f32 = 64.0;

/// First bytes of the compact form.
const MAGIC: &[u8; 8] = b"TRTRACE1";

/// The predictions of one recorded answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Output tokens predicted from the prompt alone.
    pub r: f32,
    /// Predicted remaining tokens, one for each output token.
    pub remaining: Arc<[f32]>,
}

/// A set of recorded answers, by ascending length.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSet(Vec<Recorded>);

impl TraceSet {
    /// The traces that have predictions; an error if none has.
    pub fn new(traces: &[Trace]) -> Result<TraceSet, String> {
        let of = |trace: &Trace| {
            Some(Recorded { r: trace.r?, remaining: trace.remaining.as_deref()?.into() })
        };
        TraceSet::sorted(traces.iter().filter_map(of).collect())
    }

    fn sorted(mut all: Vec<Recorded>) -> Result<TraceSet, String> {
        all.sort_by_key(|recorded| recorded.remaining.len());
        if all.is_empty() {
            Err("no request has r and remaining".into())
        } else {
            Ok(TraceSet(all))
        }
    }

    /// The predictions of the bundled probe and predictor for 400 of the bundled held-out prompts.
    pub fn demo() -> TraceSet {
        TraceSet::from_bytes(DEMO).expect("the checked-in traces are whole: a test reads them")
    }

    /// The recorded answers, by ascending length.
    pub fn recorded(&self) -> &[Recorded] {
        &self.0
    }

    /// Draws a recorded answer of about `length` tokens.
    pub fn near(&self, length: u32, rng: &mut Rng) -> &Recorded {
        let slack = NEAR * f64::from(length);
        let (low, high) = (f64::from(length) - slack, f64::from(length) + slack);
        let len = |recorded: &Recorded| recorded.remaining.len() as f64;
        let mut first = self.0.partition_point(|recorded| len(recorded) < low);
        let mut end = self.0.partition_point(|recorded| len(recorded) <= high);
        while end - first < LEAST.min(self.0.len()) {
            let below = first.checked_sub(1).map(|at| f64::from(length) - len(&self.0[at]));
            let above = self.0.get(end).map(|recorded| len(recorded) - f64::from(length));
            match (below, above) {
                (Some(below), Some(above)) if below <= above => first -= 1,
                (Some(_), None) => first -= 1,
                _ => end += 1,
            }
        }
        &self.0[first + rng.below((end - first) as u64) as usize]
    }

    /// The compact form: a head, then for each answer its length, r and predictions, each as a
    /// 16-bit number; the latter in units of 1/64 token.
    pub fn to_bytes(&self) -> Vec<u8> {
        let units = |tokens: f32| (tokens * UNITS).round().clamp(0.0, f32::from(u16::MAX)) as u16;
        let mut bytes = MAGIC.to_vec();
        for Recorded { r, remaining } in &self.0 {
            let words = [remaining.len().min(usize::from(u16::MAX)) as u16, units(*r)];
            let words = words.into_iter().chain(remaining.iter().map(|&tokens| units(tokens)));
            bytes.extend(words.flat_map(u16::to_le_bytes));
        }
        bytes
    }

    /// Reads the compact form.
    pub fn from_bytes(bytes: &[u8]) -> Result<TraceSet, String> {
        let body = bytes.strip_prefix(MAGIC).ok_or("not a file of compact traces")?;
        let words = body.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        let words: Vec<u16> = words.collect();
        let tokens = |units: &u16| f32::from(*units) / UNITS;
        let (mut all, mut rest) = (Vec::new(), &words[..]);
        while let [length, r, tail @ ..] = rest {
            let (remaining, after) =
                tail.split_at_checked(usize::from(*length)).ok_or("the last trace is cut off")?;
            let remaining = remaining.iter().map(tokens).collect();
            all.push(Recorded { r: tokens(r), remaining });
            rest = after;
        }
        if !rest.is_empty() || body.len() % 2 != 0 || all.iter().any(|t| t.remaining.is_empty()) {
            return Err("the last trace is cut off".into());
        }
        TraceSet::sorted(all)
    }
}

const DEMO: &[u8] = include_bytes!("demo.traces");

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(length: usize) -> Recorded {
        Recorded { r: length as f32, remaining: (1..=length).rev().map(|t| t as f32).collect() }
    }

    #[test]
    fn an_answer_is_drawn_from_those_of_about_its_length() {
        let set = TraceSet::sorted((1..=400).map(recorded).collect()).expect("traces");
        let mut rng = Rng::new(1);
        for length in [1, 2, 100, 399, 512] {
            for _ in 0..50 {
                let near = set.near(length, &mut rng).remaining.len() as i64;
                let max = if length == 512 { 120 } else { 12 };
                assert!((near - i64::from(length)).abs() <= max, "{near} for {length}");
            }
        }
        let few = TraceSet::sorted(vec![recorded(3)]).expect("a trace");
        assert_eq!(few.near(50, &mut rng).remaining.len(), 3);
    }

    #[test]
    fn the_compact_form_reads_back() {
        let set = TraceSet::sorted(vec![recorded(3), recorded(1)]).expect("traces");
        let bytes = set.to_bytes();
        assert_eq!(TraceSet::from_bytes(&bytes), Ok(set));
        for end in 0..bytes.len() {
            // Two whole traces, or one: 8 bytes of head and 3 or 5 words.
            assert_eq!(TraceSet::from_bytes(&bytes[..end]).is_ok(), end == 14, "{end} bytes");
        }
    }

    /// The recorded error of the bundled probe is 18.5 tokens over 400 prompts.
    #[test]
    fn the_bundled_traces_are_as_wrong_as_the_probe() {
        let (set, mut sum, mut count) = (TraceSet::demo(), 0.0, 0);
        assert!(set.recorded().len() >= 300 && DEMO.len() <= 300_000);
        for recorded in set.recorded() {
            let length = recorded.remaining.len();
            for (generated, &predicted) in recorded.remaining.iter().enumerate() {
                sum += f64::from((predicted - (length - generated) as f32).abs());
                count += 1;
            }
        }
        let mae = sum / f64::from(count);
        assert!((mae - 18.5).abs() < 0.5, "{mae}");
    }
}
