//! Answers of an engine to several requests at once, and their time.

use std::time::Instant;

use trail_cli::Error;
use trail_runtime::engine::{Engine, Event, Request};

/// Answers to requests that were submitted together.
pub struct Answers {
    /// The tokens of each answer.
    pub tokens: Vec<Vec<u32>>,
    /// Seconds from the first token of any to the last of all.
    pub seconds: f64,
    /// Seconds from the time when each had a token: without the prefill of any.
    pub decode_s: f64,
    /// Tokens in that time.
    pub decoded: usize,
}

pub fn answer(engine: &Engine, requests: impl Iterator<Item = Request>) -> Result<Answers, Error> {
    let submit = |request| {
        let handle = engine.submit(request);
        handle.map_err(|error| Error::refused("a prompt: ", &error))
    };
    let handles = requests.map(submit).collect::<Result<Vec<_>, _>>()?;
    let mut tokens: Vec<Vec<u32>> = vec![Vec::new(); handles.len()];
    let take = |tokens: &mut Vec<u32>, event| {
        if let Event::Token { id, .. } = event {
            tokens.push(id);
        }
    };
    let mut begin = None;
    for (handle, tokens) in handles.iter().zip(&mut tokens) {
        while tokens.is_empty()
            && let Some(event) = handle.recv()
        {
            take(tokens, event);
        }
        begin.get_or_insert_with(Instant::now);
    }
    let decode_begin = Instant::now();
    for (handle, tokens) in handles.iter().zip(&mut tokens) {
        std::iter::from_fn(|| handle.try_recv()).for_each(|event| take(tokens, event));
    }
    let before: usize = tokens.iter().map(Vec::len).sum();
    for (handle, tokens) in handles.iter().zip(&mut tokens) {
        std::iter::from_fn(|| handle.recv()).for_each(|event| take(tokens, event));
    }
    Ok(Answers {
        seconds: begin.map_or(0.0, |begin| begin.elapsed().as_secs_f64()),
        decode_s: decode_begin.elapsed().as_secs_f64(),
        decoded: tokens.iter().map(Vec::len).sum::<usize>() - before,
        tokens,
    })
}
