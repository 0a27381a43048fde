//! An answer as it is generated: its events, text, end and times.

mod timing;

use std::ops::ControlFlow;

use trail_runtime::engine::{Event, FinishReason, NonFiniteLogits};
use trail_runtime::text::Step;
use trail_cli::Error;

use crate::detokenizer::Detokenizer;
pub use timing::Timing;

/// Consumes `events` until the answer is complete, and returns the reason of its end. `take` gets
/// each event with the text that it completes, and may break off: the reason is then
/// [`FinishReason::Cancelled`], as it is if the events end early, when `take` gets an event of this
/// reason with the text that was held back. Without `text` there are only token ids.
pub fn follow(
    events: impl Iterator<Item = Event>,
    mut text: Option<Detokenizer>,
    mut take: impl FnMut(&Event, &str) -> Result<ControlFlow<()>, Error>,
) -> Result<FinishReason, Error> {
    for event in events {
        let step = match (&event, &mut text) {
            (Event::Finished { reason }, _) if is_breakdown(*reason) => return Err(error(*reason)),
            (Event::Token { id, .. }, Some(text)) => text.push(*id),
            (Event::Finished { .. }, Some(text)) => text.finish(),
            _ => Step::default(),
        };
        let flow = take(&event, &step.emit)?;
        match event {
            _ if step.stopped => return Ok(FinishReason::Stop),
            Event::Finished { reason } => return Ok(reason),
            _ if flow.is_break() => return Ok(FinishReason::Cancelled),
            _ => {}
        }
    }
    let rest = text.map(|mut text| text.finish()).unwrap_or_default();
    let reason = FinishReason::Cancelled;
    take(&Event::Finished { reason }, &rest.emit).map(|_| reason)
}

fn is_breakdown(reason: FinishReason) -> bool {
    !matches!(reason, FinishReason::Stop | FinishReason::Length)
}

fn error(reason: FinishReason) -> Error {
    match reason {
        FinishReason::Error => Error::failed(NonFiniteLogits.to_string()),
        _ => Error::failed("the engine stopped before the answer was complete"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use trail_runtime::engine::Request;
    use trail_runtime::text::{StopMatcher, Tokenizer};

    use super::*;
    use crate::detokenizer::TextOptions;

    #[test]
    fn text_held_back_for_a_stop_string_comes_when_the_events_end_early() {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo");
        let tokenizer = Tokenizer::load(&demo, 1024).expect("a tokenizer");
        let ids = tokenizer.encode("one two", false).expect("short");
        let stops = StopMatcher::new(vec!["two three".into()]).expect("a stop string");
        let (request, options) = (Request::new(vec![1], 9), TextOptions::default());
        let text = Detokenizer::new(Arc::new(tokenizer), stops, &request, &[], options);
        let events = ids.into_iter().map(|id| Event::Token { id, logprob: 0.0 });
        let mut answer = String::new();
        let end = follow(events, Some(text), |_, piece| {
            answer.push_str(piece);
            Ok(ControlFlow::Continue(()))
        });
        assert!(matches!(end, Ok(FinishReason::Cancelled)));
        assert_eq!(answer.trim_start(), "one two");
    }
}
