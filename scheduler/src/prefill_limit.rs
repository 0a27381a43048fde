//! The bound on a step's prefill chunks beside decode rows.

#[cfg(feature = "log")]
use serde::{Deserialize, Serialize};

/// Fewest tokens of a chunk that the bound cuts: below, a step's fixed costs outweigh the chunk.
pub const MIN_CHUNK_TOKENS: u32 = 16;

/// Time that the prefill chunks of a step may take while a request decodes, and their costs.
///
/// A chunk of n tokens from position s costs `token_ns` n + `context_token_ns` (n s + n (n + 1) /
/// 2): each token attends to all before it, so late chunks of a long prompt are shorter.
#[derive(Clone, Copy, Debug, PartialEq)]
#[cfg_attr(feature = "log", derive(Serialize, Deserialize), serde(deny_unknown_fields))]
pub struct PrefillLimit {
    /// Time for all chunks of a step, nanoseconds.
    pub ns: f64,
    /// Cost of a prompt token, nanoseconds.
    pub token_ns: f64,
    /// Cost of a context token that a prompt token attends to, nanoseconds.
    pub context_token_ns: f64,
}

impl PrefillLimit {
    /// Most tokens from position `start` on that cost at most [`PrefillLimit::ns`].
    pub(crate) fn tokens(&self, start: u32) -> u32 {
        // The positive root of (c / 2) n^2 + (t + c (s + 1/2)) n = ns, in the form that does not
        // cancel. Costs of 0 give infinity, which saturates.
        let half = 0.5 * self.context_token_ns;
        let linear = self.token_ns + self.context_token_ns * (f64::from(start) + 0.5);
        let ns = self.ns.max(0.0);
        (2.0 * ns / (linear + (linear * linear + 4.0 * half * ns).sqrt())) as u32
    }

    /// The limit after a chunk of `len` tokens from position `start` on was taken from it.
    pub(crate) fn after(self, start: u32, len: u32) -> PrefillLimit {
        let (s, n) = (f64::from(start), f64::from(len));
        let context = n * s + 0.5 * n * (n + 1.0);
        let cost_ns = self.token_ns * n + self.context_token_ns * context;
        PrefillLimit { ns: self.ns - cost_ns, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_the_longest_that_the_time_allows_at_any_context() {
        for context_token_ns in [0.0, 0.01, 1.0] {
            for start in [0, 100, 10_000, 1_000_000] {
                let limit = PrefillLimit { ns: 50_000.0, token_ns: 100.0, context_token_ns };
                let tokens = limit.tokens(start);
                // Rounding may move the root by one token.
                assert!(limit.after(start, tokens).ns > -1e-6, "{tokens} from {start}");
                assert!(limit.after(start, tokens + 2).ns < 0.0, "{tokens} from {start}");
            }
        }
    }

    #[test]
    fn nothing_fits_into_no_time_and_anything_into_no_cost() {
        let limit = PrefillLimit { ns: 0.0, token_ns: 1.0, context_token_ns: 1.0 };
        assert_eq!(limit.tokens(7), 0);
        assert_eq!(limit.after(0, 5).tokens(5), 0);
        let free = PrefillLimit { ns: 1.0, token_ns: 0.0, context_token_ns: 0.0 };
        assert_eq!(free.tokens(7), u32::MAX);
    }
}
