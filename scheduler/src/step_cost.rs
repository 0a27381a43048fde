//! The work of a step, and its cost as a linear function of that work: the time of the engine's
//! step clock and of the simulator.
//!
//! `trail-rt bench steps --out FILE` measures the coefficients of a model on a machine.

#[cfg(feature = "log")]
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

/// The cost of the experts of a mixture: a step reads those that some of its rows go to, which the
/// coefficient of a row cannot say, as rows share them.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize))]
pub struct ExpertCost {
    /// Number of experts of a layer.
    pub num_experts: u32,
    /// Number of experts that a row goes to in a layer.
    pub per_row: u32,
    /// Per expert that is read in every layer, nanoseconds.
    pub read: f64,
}

impl ExpertCost {
    /// Experts of a layer that `rows` rows go to, expected of rows that choose apart and all alike:
    /// `num_experts * (1 - (1 - per_row / num_experts)^rows)`. Routers are trained to spread rows
    /// so; rows of one text share more.
    pub fn experts_read(&self, rows: u64) -> f64 {
        let (all, per_row) = (f64::from(self.num_experts), f64::from(self.per_row));
        all * (1.0 - (1.0 - per_row / all).powf(rows as f64))
    }
}

/// Coefficients of the cost of a step, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize))]
pub struct StepCost {
    /// Per step.
    pub fixed: f64,
    /// Per sampled row.
    pub decode_row: f64,
    /// Per other row.
    pub prefill_token: f64,
    /// Per context token attended to by a row.
    pub context_token: f64,
    /// Of the experts, if the model is a mixture.
    #[cfg_attr(feature = "log", serde(default, skip_serializing_if = "Option::is_none"))]
    pub experts: Option<ExpertCost>,
}

impl StepCost {
    /// Parses a JSON object with the four coefficients, and that of a mixture's experts, if
    /// any; other members are ignored.
    #[cfg(feature = "log")]
    pub fn parse(text: &str) -> Result<StepCost, String> {
        let cost: StepCost = serde_json::from_str(text).map_err(|error| error.to_string())?;
        cost.check().map(|()| cost)
    }

    /// Refuses costs by which time would stand still, run backwards or overflow.
    pub fn check(&self) -> Result<(), String> {
        let StepCost { fixed, decode_row, prefill_token, context_token, experts } = *self;
        let all = [
            ("fixed", fixed),
            ("decode_row", decode_row),
            ("prefill_token", prefill_token),
            ("context_token", context_token),
            ("experts.read", experts.map_or(0.0, |experts| experts.read)),
        ];
        // A step of an hour is beyond any machine, and its sums stay within 64 bits for centuries.
        if let Some((name, ns)) = all.into_iter().find(|(_, ns)| !(0.0..3.6e12).contains(ns)) {
            return Err(format!("{name} is {ns}: give nanoseconds, 0 or more"));
        }
        if fixed < 1.0 {
            return Err(format!("fixed is {fixed}: give at least 1 ns, or time would stand still"));
        }
        if let Some(ExpertCost { num_experts, per_row, .. }) = experts
            && !(1..=num_experts).contains(&per_row)
        {
            return Err(format!(
                "experts.per_row is {per_row}: give 1 to num_experts ({num_experts})"
            ));
        }
        Ok(())
    }

    /// Cost of `work`, rounded to nanoseconds.
    pub fn ns(&self, work: &StepWork) -> u64 {
        let ns = self.fixed
            + self.decode_row * work.decode_rows as f64
            + self.prefill_token * work.prefill_tokens as f64
            + self.context_token * work.context_tokens as f64;
        let rows = work.decode_rows + work.prefill_tokens;
        let experts = self.experts.map_or(0.0, |cost| cost.read * cost.experts_read(rows));
        let ns = ns + experts;
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

    #[cfg(feature = "log")]
    #[test]
    fn bad_files_are_refused_by_name() {
        let good = r#"{"fixed": 1000, "decode_row": 1, "prefill_token": 0.5, "context_token": 0}"#;
        assert_eq!(StepCost::parse(good).map(|cost| cost.prefill_token), Ok(0.5));
        let refused = |from: &str, to: &str| StepCost::parse(&good.replace(from, to)).unwrap_err();
        assert!(refused("1000", "0").contains("time would stand still"));
        assert!(refused("0.5", "-1").contains("prefill_token is -1"));
        assert!(refused("0.5", "1e300").contains("prefill_token is"));
        assert!(refused("\"fixed\"", "\"fix\"").contains("fixed"));
        let experts = |text: &str| format!(r#""context_token": 0, "experts": {text}"#);
        let mixture = experts(r#"{"num_experts": 4, "per_row": 2, "read": 1}"#);
        let mixture = StepCost::parse(&good.replace("\"context_token\": 0", &mixture));
        assert_eq!(
            mixture.map(|cost| cost.experts.map(|experts| experts.num_experts)),
            Ok(Some(4))
        );
        let refused = |text: &str| refused("\"context_token\": 0", &experts(text));
        assert!(refused(r#"{"num_experts": 4, "per_row": 5, "read": 1}"#).contains("per_row is 5"));
        assert!(refused(r#"{"num_experts": 4, "per_row": 2, "read": -1}"#).contains("read is -1"));
        assert!(refused(r#"{"num_experts": 4, "per_row": 2}"#).contains("read"));
    }

    /// The first row reads its own experts; more and more rows read all.
    #[test]
    fn rows_share_the_experts_of_a_mixture() {
        let experts = Some(ExpertCost { num_experts: 128, per_row: 8, read: 100.0 });
        let (fixed, decode_row, prefill_token, context_token) = (1000.0, 10.0, 0.0, 0.0);
        let cost = StepCost { fixed, decode_row, prefill_token, context_token, experts };
        let ns = |decode_rows: u64, prefill_tokens: u64| {
            cost.ns(&StepWork { decode_rows, prefill_tokens, ..StepWork::default() })
        };
        assert_eq!(ns(1, 0), 1000 + 10 + 800);
        // 128 (1 - (120 / 128)^2) = 15.5
        assert_eq!((ns(2, 0), ns(1, 1)), (1000 + 20 + 1550, 1000 + 10 + 1550));
        assert_eq!(ns(0, 1000), 1000 + 12_800);
    }
}
