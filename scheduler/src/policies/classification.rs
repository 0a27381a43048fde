//! The classification baseline of learning to rank: lengths in buckets.

use super::expected_length;
use crate::{Key, Policy, RequestState};

/// Number of buckets; the last one has no upper end.
const BUCKETS: u32 = 10;

/// By the bucket of the predicted length, then by arrival; preemptive, never refreshed.
///
/// Source: the baseline "Classification" of arXiv 2408.15792, section 5.1: 10 buckets of a tenth of
/// the longest context each (paper). The code's buckets have 820 tokens, 8192 / 10 rounded up
/// (code); here the predicted length is put into its bucket, where the paper's model predicts the
/// bucket. Ties go by arrival; the code compares request ids as strings (code), a slip not
/// repeated. The batch ends at the first request that does not fit, as in [`super::Ltr`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classification {
    /// Tokens of a bucket; 0 is taken as 1.
    pub bucket_tokens: u32,
}

impl Default for Classification {
    /// 820 tokens: a tenth of a context of 8192.
    fn default() -> Self {
        Classification { bucket_tokens: 820 }
    }
}

impl Policy for Classification {
    fn name(&self) -> &'static str {
        "classification"
    }

    fn key(&self, request: &RequestState) -> Key {
        // Truncates, and saturates at 0 for a negative prediction.
        let bucket = expected_length(request) as u32 / self.bucket_tokens.max(1);
        Key::new(Key::OPEN, f64::from(bucket.min(BUCKETS - 1)), request.seq)
    }

    fn preemptable(&self, _request: &RequestState) -> bool {
        true
    }

    fn strict_order(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::request;

    #[test]
    fn within_a_bucket_by_arrival_and_the_last_is_open() {
        let policy = Classification { bucket_tokens: 50 };
        let value = |seq, r| policy.key(&request(seq, Some(r)));
        assert!(value(1, 49.9) < value(2, 0.0) && value(2, -9.0) < value(0, 50.0));
        assert_eq!(value(0, 450.0), Key::new(Key::OPEN, 9.0, 0));
        assert_eq!(value(0, 511.0), Key::new(Key::OPEN, 9.0, 0));
    }
}
