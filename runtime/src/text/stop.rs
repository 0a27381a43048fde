//! Stop strings: end an answer at a text, and hold back text that may become one.

/// Maximum number of stop strings of one request.
pub const MAX_STOPS: usize = 16;
/// Maximum length of a stop string, bytes.
pub const MAX_STOP_BYTES: usize = 256;

/// Result of appending a piece of text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Text that is safe to send: no stop string can begin in it.
    pub emit: String,
    /// True if a stop string has been completed; all text after it is dropped.
    pub stopped: bool,
}

/// Finds the stop string that is completed first in a text that arrives in pieces.
///
/// Of several stop strings completed by the same character the longest counts. So the result does
/// not depend on the division into pieces, and it is known as soon as that character arrives.
pub struct StopMatcher {
    stops: Vec<String>,
    include_stop: bool,
    /// Suffix of the text so far that may still become a stop string.
    held: String,
    /// Index of the stop string that was found.
    found: Option<usize>,
}

impl StopMatcher {
    /// Creates a matcher for `stops`, which may be empty. Errors are one line.
    pub fn new(stops: Vec<String>) -> Result<Self, String> {
        if stops.len() > MAX_STOPS {
            return Err(format!("stop must have at most {MAX_STOPS} strings, not {}", stops.len()));
        }
        if let Some(stop) = stops.iter().find(|stop| !(1..=MAX_STOP_BYTES).contains(&stop.len())) {
            return Err(format!(
                "a stop string must have 1 to {MAX_STOP_BYTES} bytes, not {}",
                stop.len()
            ));
        }
        Ok(StopMatcher { stops, include_stop: false, held: String::new(), found: None })
    }

    /// Emits the stop string itself if `include`; by default it is cut off.
    pub fn include_stop(mut self, include: bool) -> Self {
        self.include_stop = include;
        self
    }

    /// Appends a piece of text.
    pub fn push(&mut self, piece: &str) -> Step {
        if self.found.is_some() {
            return Step { emit: String::new(), stopped: true };
        }
        self.held.push_str(piece);
        if let Some((start, end, stop)) = self.first_completed() {
            self.found = Some(stop);
            self.held.truncate(if self.include_stop { end } else { start });
            return Step { emit: std::mem::take(&mut self.held), stopped: true };
        }
        let open = self.held.split_off(self.held.len() - self.open_bytes());
        Step { emit: std::mem::replace(&mut self.held, open), stopped: false }
    }

    /// The stop string that was found.
    pub fn found(&self) -> Option<&str> {
        self.found.map(|stop| self.stops[stop].as_str())
    }

    /// Returns the text held back, at the end of an answer without a stop string.
    pub fn flush(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Byte range in the held text of the stop string that is completed first, and its index.
    fn first_completed(&self) -> Option<(usize, usize, usize)> {
        let spans = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            self.held.find(stop).map(|start| (start, start + stop.len(), index))
        });
        spans.min_by_key(|&(start, end, _)| (end, start))
    }

    /// Length of the longest suffix of the held text that is a prefix of a stop string, bytes.
    fn open_bytes(&self) -> usize {
        let held = self.held.as_bytes();
        let open = |stop: &String| {
            let longest = held.len().min(stop.len() - 1);
            (1..=longest).rev().find(|&len| held.ends_with(&stop.as_bytes()[..len])).unwrap_or(0)
        };
        self.stops.iter().map(open).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use trail_platform::Rng;

    use super::*;

    fn matcher(stops: &[&str]) -> StopMatcher {
        StopMatcher::new(stops.iter().map(ToString::to_string).collect()).expect("valid stops")
    }

    /// Returns all text emitted for `pieces`, and whether a stop string was found.
    fn run(matcher: &mut StopMatcher, pieces: &[&str]) -> (String, bool) {
        let steps: Vec<Step> = pieces.iter().map(|piece| matcher.push(piece)).collect();
        let emitted: String = steps.iter().map(|step| step.emit.as_str()).collect();
        (emitted + &matcher.flush(), steps.last().is_some_and(|step| step.stopped))
    }

    /// Reference: searches the whole text for the first end of any stop string, and takes the
    /// longest that ends there.
    fn reference(text: &str, stops: &[&str], include_stop: bool) -> (String, bool) {
        for end in 0..=text.len() {
            let ending =
                stops.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
            if let Some(longest) = ending.map(|stop| stop.len()).max() {
                return (text[..if include_stop { end } else { end - longest }].to_owned(), true);
            }
        }
        (text.to_owned(), false)
    }

    #[test]
    fn random_texts_in_random_pieces_match_the_reference() {
        let mut rng = Rng::new(5);
        let alphabet = ["a", "b", "é", "😀"];
        let mut word = |longest: u64, letters: u64| -> Vec<&str> {
            (0..1 + rng.below(longest)).map(|_| alphabet[rng.below(letters) as usize]).collect()
        };
        for case in 0..4000 {
            let letters = 2 + case % 3;
            let stops: Vec<String> = (0..case % 5).map(|_| word(5, letters).concat()).collect();
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces: Vec<String> =
                word(12, 4).iter().map(|_| word(4, letters).concat()).collect();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let include = case % 2 == 0;
            let expected = reference(&pieces.concat(), &stops, include);
            assert_eq!(
                run(&mut matcher(&stops).include_stop(include), &pieces),
                expected,
                "{stops:?} in {pieces:?}"
            );
        }
    }

    #[test]
    fn the_stop_string_that_was_found_is_known() {
        let mut matcher = matcher(&["bc", "abc", "x"]);
        let found: Vec<Option<String>> = ["aa", "bcx", "x"]
            .map(|piece| {
                matcher.push(piece);
                matcher.found().map(str::to_owned)
            })
            .into();
        assert_eq!(found, [None, Some("abc".to_owned()), Some("abc".to_owned())]);
    }

    #[test]
    fn nothing_of_a_stop_string_is_sent_early() {
        let mut matcher = matcher(&["</end>"]);
        let mut emitted = |piece| matcher.push(piece).emit;
        assert_eq!(
            [emitted("a <"), emitted("/en"), emitted("g</"), emitted("end"), emitted("> b")],
            ["a ", "", "</eng", "", ""]
        );
        assert_eq!(matcher.push("more"), Step { emit: String::new(), stopped: true });
        assert_eq!(matcher.flush(), "");
    }

    #[test]
    fn text_that_only_began_a_stop_string_comes_at_the_end() {
        let mut matcher = matcher(&["abc"]);
        assert_eq!(matcher.push("xab"), Step { emit: "x".into(), stopped: false });
        assert_eq!(matcher.flush(), "ab");
    }

    #[test]
    fn the_first_completed_stop_counts_and_the_longest_of_equals() {
        assert_eq!(run(&mut matcher(&["abc", "b"]), &["abc"]), ("a".into(), true));
        assert_eq!(run(&mut matcher(&["c", "bc"]), &["abc"]), ("a".into(), true));
        assert_eq!(
            run(&mut matcher(&["b", "abc"]).include_stop(true), &["abc"]),
            ("ab".into(), true)
        );
    }

    #[test]
    fn without_stops_text_passes_through() {
        assert_eq!(matcher(&[]).push("any"), Step { emit: "any".into(), stopped: false });
    }

    #[test]
    fn bad_stops_are_refused_in_one_line() {
        let refused = |stops: Vec<String>| StopMatcher::new(stops).err().expect("must be refused");
        assert_eq!(
            refused(vec!["a".into(), String::new()]),
            "a stop string must have 1 to 256 bytes, not 0"
        );
        assert_eq!(
            refused(vec!["a".repeat(257)]),
            "a stop string must have 1 to 256 bytes, not 257"
        );
        assert_eq!(refused(vec!["a".into(); 17]), "stop must have at most 16 strings, not 17");
        assert!(StopMatcher::new(vec!["a".repeat(256); 16]).is_ok());
    }
}
