//! The work of a step, and its cost as a linear function of that work: the time of the engine's
//! step clock and of the simulator.
//!
//! `trail-rt bench steps --out FILE` measures the coefficients of a model on a machine.

use serde::{Deserialize, Serialize};

/// The work of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Rows whose logits are computed and sampled.
    pub decode_rows: u64,
    /// All other rows: prompt tokens, and tokens that are recomputed.
    pub prefill_tokens: u64,
    /// Context tokens attended to, summed over rows.
    pub context_tokens: u64,
    /// Context tokens whose keys and values are read: those of a segment once for all its rows.
    pub kv_tokens: u64,
}

impl StepWork {
    /// Adds a segment of `len` rows from position `start` on; `sample`: its last row is sampled.
    pub fn add(&mut self, start: u32, len: u32, sample: bool) {
        let (start, len) = (u64::from(start), u64::from(len));
        let sampled = u64::from(sample);
        self.decode_rows += sampled;
        self.prefill_tokens += len - sampled;
        self.context_tokens += len * start + len * (len + 1) / 2;
        self.kv_tokens += start + len;
    }
}

/// Coefficients of the cost of a step, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepCost {
    /// Per step.
    pub fixed: f64,
    /// Per sampled row.
    pub decode_row: f64,
    /// Per other row.
    pub prefill_token: f64,
    /// Per context token attended to by a row.
    pub context_token: f64,
}

impl StepCost {
    /// Parses a JSON object with the four coefficients; other members are ignored.
    pub fn parse(text: &str) -> Result<StepCost, String> {
        let cost: StepCost = serde_json::from_str(text).map_err(|error| error.to_string())?;
        cost.check().map(|()| cost)
    }

    /// Refuses costs by which time would stand still, run backwards or overflow.
    pub fn check(&self) -> Result<(), String> {
        let StepCost { fixed, decode_row, prefill_token, context_token } = *self;
        let all = [
            ("fixed", fixed),
            ("decode_row", decode_row),
            ("prefill_token", prefill_token),
            ("context_token", context_token),
        ];
        // A step of an hour is beyond any machine, and its sums stay within 64 bits for centuries.
        if let Some((name, ns)) = all.into_iter().find(|(_, ns)| !(0.0..3.6e12).contains(ns)) {
            return Err(format!("{name} is {ns}: give nanoseconds, 0 or more"));
        }
        if fixed < 1.0 {
            return Err(format!("fixed is {fixed}: give at least 1 ns, or time would stand still"));
        }
        Ok(())
    }

    /// Cost of `work`, rounded to nanoseconds.
    pub fn ns(&self, work: &StepWork) -> u64 {
        let ns = self.fixed
            + self.decode_row * work.decode_rows as f64
            + self.prefill_token * work.prefill_tokens as f64
            + self.context_token * work.context_tokens as f64;
        ns.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_sampled_rows_other_rows_and_their_context() {
        let mut work = StepWork::default();
        work.add(9, 1, true);
        work.add(4, 3, false);
        work.add(0, 2, true);
        let expected = StepWork {
            decode_rows: 2,
            prefill_tokens: 4,
            context_tokens: 10 + 18 + 3,
            kv_tokens: 10 + 7 + 2,
        };
        assert_eq!(work, expected);
    }

    #[test]
    fn bad_files_are_refused_by_name() {
        let good = r#"{"fixed": 1000, "decode_row": 1, "prefill_token": 0.5, "context_token": 0}"#;
        assert_eq!(StepCost::parse(good).map(|cost| cost.prefill_token), Ok(0.5));
        let refused = |from: &str, to: &str| StepCost::parse(&good.replace(from, to)).unwrap_err();
        assert!(refused("1000", "0").contains("time would stand still"));
        assert!(refused("0.5", "-1").contains("prefill_token is -1"));
        assert!(refused("0.5", "1e300").contains("prefill_token is"));
        assert!(refused("\"fixed\"", "\"fix\"").contains("fixed"));
    }
}
