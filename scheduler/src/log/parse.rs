//! Reads a decision log.

use std::fmt;

use trail_platform::quote::quote;

use super::event::LogEvent;
use super::header::LogHeader;
use super::json_error::json_error;

/// A decision log, read back.
#[derive(Clone, Debug, PartialEq)]
pub struct DecisionLog {
    /// The settings.
    pub header: LogHeader,
    /// The events, from the second line on.
    pub events: Vec<LogEvent>,
}

/// A damaged log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogError {
    /// Line of the file, from 1.
    pub line: usize,
    /// Description of the error, one line.
    pub why: String,
}

impl LogError {
    /// An error in `line`, from 1; `why` is quoted.
    pub fn new(line: usize, why: impl Into<String>) -> LogError {
        LogError { line, why: quote(&why.into()) }
    }
}

impl fmt::Display for LogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for LogError {}

impl DecisionLog {
    /// Parses the text of a log. Every line is whole, known and in range; a replay checks the
    /// order of the calls.
    pub fn parse(text: &str) -> Result<DecisionLog, LogError> {
        let mut lines = text.lines();
        let header = lines.next().ok_or_else(|| LogError::new(1, "the log is empty"))?;
        let header = LogHeader::parse(header).map_err(|why| LogError::new(1, why))?;
        let mut events = Vec::new();
        // Step and number of the decisions that are still to come.
        let mut owed = (0, 0);
        for line in lines {
            let number = events.len() + 2;
            let event = parse_event(line, &mut owed).map_err(|why| LogError::new(number, why))?;
            events.push(event);
        }
        if !text.ends_with('\n') {
            return Err(LogError::new(events.len() + 1, "the line is cut off"));
        }
        match owed {
            (_, 0) => Ok(DecisionLog { header, events }),
            (step, decisions) => {
                let why = format!("the log is cut off: {decisions} decisions of step {step} lack");
                Err(LogError::new(events.len() + 1, why))
            }
        }
    }

    /// The text of the log.
    pub fn text(&self) -> String {
        let mut text = self.header.line() + "\n";
        for event in &self.events {
            text += &event.line();
            text += "\n";
        }
        text
    }
}

fn parse_event(line: &str, owed: &mut (u64, u32)) -> Result<LogEvent, String> {
    let event: LogEvent = serde_json::from_str(line).map_err(|error| json_error(&error))?;
    event.check()?;
    match (event, *owed) {
        (LogEvent::Decision(decision), (step, 1..)) if decision.step == step => owed.1 -= 1,
        (LogEvent::Decision(decision), _) => {
            return Err(format!("a decision of step {} has no plan", decision.step));
        }
        (_, (step, 1..)) => return Err(format!("a decision of step {step} is expected")),
        (LogEvent::Plan { step, decisions, .. }, _) => *owed = (step, decisions),
        _ => {}
    }
    Ok(event)
}
