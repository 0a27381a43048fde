//! An answer as it is generated: its events, text, end and times.

mod timing;

use std::ops::ControlFlow;

use trail_runtime::engine::{Event, FinishReason, NonFiniteLogits};
use trail_runtime::text::Step;
use trail_setup::Error;

use crate::detokenizer::Detokenizer;
pub use timing::Timing;

/// Consumes `events` until the answer is complete, and returns the reason of its end. `take` gets
/// each event with the text that it completes, and may break off: the reason is then
/// [`FinishReason::Cancelled`], as it is if the events end early. Without `text` there are only
/// token ids.
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
            _ if flow.is_break() => break,
            _ => {}
        }
    }
    Ok(FinishReason::Cancelled)
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
