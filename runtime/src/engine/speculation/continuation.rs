//! Text that may continue a request's tokens.

/// Fewest and most last tokens that are looked for.
const MATCH: std::ops::RangeInclusive<usize> = 3..=16;

/// A place in a text after an occurrence of the last tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Occurrence {
    /// Tokens that are alike, at most [`MATCH`].
    pub(super) length: usize,
    place: usize,
}

/// The longest occurrence of the last of `tokens` in `text` before its last token, the latest of
/// equals. Reads the text backwards once: 4 bytes a token beside a step that reads the model.
fn longest_occurrence(text: &[u32], tokens: &[u32]) -> Option<Occurrence> {
    let last = tokens.last()?;
    let mut best = None;
    for place in (1..text.len()).rev().filter(|&place| text[place - 1] == *last) {
        let alike = text[..place].iter().rev().zip(tokens.iter().rev()).take(*MATCH.end());
        let length = alike.take_while(|(a, b)| a == b).count();
        if length > best.map_or(MATCH.start() - 1, |best: Occurrence| best.length) {
            best = Some(Occurrence { length, place });
        }
        if length == *MATCH.end() {
            break;
        }
    }
    best
}

/// The tokens that came after the last ones before, in the request's tokens or in the text that its
/// client expects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Continuation<'a> {
    /// The expected text, from the continuation on; `None` for the request's own tokens.
    expected: Option<&'a [u32]>,
    pub(super) occurrence: Occurrence,
}

impl<'a> Continuation<'a> {
    pub(super) fn find(expected: &'a [u32], tokens: &[u32]) -> Option<Continuation<'a>> {
        let earlier = longest_occurrence(tokens, tokens);
        let in_expected = longest_occurrence(expected, tokens);
        let length = |of: Option<Occurrence>| of.map_or(0, |of| of.length);
        if let Some(occurrence) = in_expected.filter(|of| of.length >= length(earlier)) {
            return Some(Continuation {
                expected: Some(&expected[occurrence.place..]),
                occurrence,
            });
        }
        earlier.map(|occurrence| Continuation { expected: None, occurrence })
    }

    /// Tokens that it has, at most `max`. A repetition in the request's own tokens has no end.
    pub(super) fn len(&self, max: usize) -> usize {
        self.expected.map_or(max, |rest| rest.len().min(max))
    }

    /// Its first token.
    pub(super) fn first(&self, tokens: &[u32]) -> u32 {
        self.expected.map_or_else(|| tokens[self.occurrence.place], |rest| rest[0])
    }

    /// Appends the first `count` tokens.
    pub(super) fn append(&self, tokens: &mut Vec<u32>, count: usize) {
        match self.expected {
            Some(rest) => tokens.extend_from_slice(&rest[..count]),
            // One by one: the continuation of a repetition is itself.
            None => {
                for next in self.occurrence.place..self.occurrence.place + count {
                    tokens.push(tokens[next]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Up to `count` tokens after `tokens`.
    fn proposed(expected: &[u32], tokens: &[u32], count: usize) -> Vec<u32> {
        let mut all = tokens.to_vec();
        if let Some(found) = Continuation::find(expected, tokens) {
            let count = found.len(count);
            found.append(&mut all, count);
            assert_eq!(all.get(tokens.len()), Some(&found.first(tokens)).filter(|_| count > 0));
        }
        all.split_off(tokens.len())
    }

    #[test]
    fn the_longest_and_latest_occurrence_is_continued() {
        assert_eq!(proposed(&[], &[1, 2, 3, 4, 9, 1, 2, 3, 5, 9, 2, 3, 6, 1, 2, 3], 2), [5, 9]);
        assert_eq!(proposed(&[], &[7, 1, 2, 3, 4, 8, 1, 2, 3, 5, 7, 1, 2, 3], 2), [4, 8]);
        assert!(proposed(&[], &[1, 2, 3, 1, 2], 2).is_empty(), "two tokens are not enough");
        assert!(proposed(&[], &[], 2).is_empty());
    }

    #[test]
    fn a_repetition_goes_on() {
        assert_eq!(proposed(&[], &[5, 1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn the_expected_text_is_continued_to_its_end() {
        assert_eq!(proposed(&[4, 1, 2, 3, 7, 8], &[9, 1, 2, 3], 5), [7, 8]);
        assert!(proposed(&[4, 1, 2, 3], &[9, 1, 2, 3], 5).is_empty());
    }
}
