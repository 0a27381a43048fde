//! Limits within which a request counts as good.

use std::str::FromStr;

use super::client::Answer;

/// Limits, seconds; infinite where there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Slo {
    ttft: f64,
    gap: f64,
    e2e: f64,
}

impl FromStr for Slo {
    type Err = String;

    fn from_str(text: &str) -> Result<Slo, String> {
        let mut slo = Slo { ttft: f64::INFINITY, gap: f64::INFINITY, e2e: f64::INFINITY };
        for part in text.split(',').filter(|part| !part.trim().is_empty()) {
            let expected =
                || format!("'{part}': expected ttft=SECONDS, gap=SECONDS or e2e=SECONDS");
            let (name, value) = part.split_once('=').ok_or_else(expected)?;
            let value = value.trim().parse().ok().filter(|of: &f64| *of > 0.0);
            let limit = match name.trim() {
                "ttft" => &mut slo.ttft,
                "gap" => &mut slo.gap,
                "e2e" => &mut slo.e2e,
                _ => return Err(expected()),
            };
            *limit = value.ok_or_else(expected)?;
        }
        Ok(slo)
    }
}

impl Slo {
    /// True if there is a limit.
    pub(super) fn is_any(&self) -> bool {
        [self.ttft, self.gap, self.e2e].iter().any(|limit| limit.is_finite())
    }

    /// True if `answer` is whole and within all limits.
    pub(super) fn is_met(&self, answer: &Answer) -> bool {
        answer.error.is_none()
            && ttft_s(answer) <= self.ttft
            && longest_gap_s(answer) <= self.gap
            && answer.latency_s <= self.e2e
    }
}

/// Seconds to the first text; to the end for an answer without.
pub(super) fn ttft_s(answer: &Answer) -> f64 {
    answer.chunks_s.first().copied().unwrap_or(answer.latency_s)
}

/// The longest time between two chunks, seconds; 0 for one chunk.
pub(super) fn longest_gap_s(answer: &Answer) -> f64 {
    answer.chunks_s.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
}

/// True if a reader who begins with the first text and reads `speed` tokens a second never waits
/// (delivered on time, Andes, arXiv 2404.16283): the chunks share the tokens evenly.
pub(super) fn is_smooth(answer: &Answer, speed: f64) -> bool {
    let tokens_of_chunk = answer.tokens as f64 / answer.chunks_s.len().max(1) as f64;
    let first = ttft_s(answer);
    let needed = |at: usize| first + at as f64 * tokens_of_chunk / speed;
    let mut chunks = answer.chunks_s.iter().enumerate();
    // Less than the precision of a thread that wakes is no stall.
    answer.error.is_none() && chunks.all(|(at, &time)| time <= needed(at) + 0.02)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(chunks_s: &[f64], tokens: u64) -> Answer {
        let latency_s = chunks_s.last().copied().unwrap_or(1.0);
        Answer { chunks_s: chunks_s.to_vec(), tokens, latency_s, ..Answer::default() }
    }

    #[test]
    fn limits_are_read_and_kept_to() {
        let slo: Slo = "ttft=1, e2e=3".parse().expect("sound");
        assert!(slo.is_any() && !"".parse::<Slo>().expect("none").is_any());
        assert!(slo.is_met(&answer(&[1.0, 2.9], 2)));
        assert!(!slo.is_met(&answer(&[1.1, 2.9], 2)) && !slo.is_met(&answer(&[1.0, 3.1], 2)));
        let gap: Slo = "gap=0.5".parse().expect("sound");
        assert!(gap.is_met(&answer(&[9.0, 9.4], 2)) && !gap.is_met(&answer(&[0.0, 0.6], 2)));
        for text in ["ttft", "ttft=0", "ttft=x", "p99=1"] {
            assert!(text.parse::<Slo>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_reader_stalls_where_text_comes_later_than_it_is_read() {
        assert!(is_smooth(&answer(&[5.0, 5.5, 6.0], 3), 2.0), "a late beginning is no stall");
        assert!(!is_smooth(&answer(&[0.0, 0.6], 2), 2.0));
        assert!(is_smooth(&answer(&[0.0, 0.1, 1.4], 3), 2.0) == (1.4 <= 1.02));
        assert!(is_smooth(&answer(&[0.0, 1.9], 8), 2.0), "four tokens a chunk take two seconds");
    }
}
