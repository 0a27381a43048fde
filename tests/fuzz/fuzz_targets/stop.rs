//! Stop strings over a text in any pieces, against a search of the whole text.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use trail_runtime::text::StopMatcher;

#[derive(Arbitrary, Debug)]
struct Input {
    stops: Vec<String>,
    pieces: Vec<String>,
    include: bool,
}

/// The text before the first end of any stop string; of those that end there the longest counts.
fn reference(text: &str, stops: &[String], include: bool) -> (String, bool) {
    for end in 0..=text.len() {
        let before = &text.as_bytes()[..end];
        let ending = stops.iter().filter(|stop| before.ends_with(stop.as_bytes()));
        if let Some(longest) = ending.map(|stop| stop.len()).max() {
            return (text[..if include { end } else { end - longest }].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

fuzz_target!(|input: Input| {
    let Input { stops, pieces, include } = input;
    match StopMatcher::new(stops.clone()) {
        Err(error) => assert_eq!(error.lines().count(), 1),
        Ok(matcher) => {
            let mut matcher = matcher.include_stop(include);
            let (mut sent, mut stopped) = (String::new(), false);
            for piece in &pieces {
                let step = matcher.push(piece);
                sent.push_str(&step.emit);
                stopped = step.stopped;
            }
            sent.push_str(&matcher.flush());
            assert_eq!((sent, stopped), reference(&pieces.concat(), &stops, include));
        }
    }
});
