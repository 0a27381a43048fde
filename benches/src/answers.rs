//! Answers of an engine to several requests at once, and their time.

use std::time::Instant;

use trail_cli::Error;
use trail_runtime::engine::{Engine, Event, Request};

/// The tokens of each answer, and the seconds from the first token of any to the last of all.
pub fn answer(
    engine: &Engine,
    requests: impl Iterator<Item = Request>,
) -> Result<(Vec<Vec<u32>>, f64), Error> {
    let submit = |request| {
        let handle = engine.submit(request);
        handle.map_err(|error| Error::refused("a prompt: ", &error))
    };
    let handles = requests.map(submit).collect::<Result<Vec<_>, _>>()?;
    let mut begin = None;
    let mut answers = Vec::new();
    for handle in &handles {
        let mut tokens = Vec::new();
        while let Some(event) = handle.recv() {
            if let Event::Token { id, .. } = event {
                begin.get_or_insert_with(Instant::now);
                tokens.push(id);
            }
        }
        answers.push(tokens);
    }
    let seconds = begin.map_or(0.0, |begin: Instant| begin.elapsed().as_secs_f64());
    Ok((answers, seconds))
}
