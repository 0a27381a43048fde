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
        let (log, (step, decisions)) = DecisionLog::read(text)?;
        let cut = |why| LogError::new(log.events.len() + 1, why);
        if !text.ends_with('\n') {
            return Err(cut("the line is cut off".into()));
        }
        if decisions > 0 {
            let why = format!("the log is cut off: {decisions} decisions of step {step} lack");
            return Err(cut(why));
        }
        Ok(log)
    }

    /// Parses the text of a log whose writer was stopped, by a full disk or a kill: the log up to
    /// the last whole step. Returns the number of the first line that is left out as well, if any.
    pub fn parse_cut(text: &str) -> Result<(DecisionLog, Option<usize>), LogError> {
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let (mut log, (_, decisions)) = DecisionLog::read(&text[..whole])?;
        if decisions > 0 {
            let is_plan = |event: &LogEvent| matches!(event, LogEvent::Plan { .. });
            log.events.truncate(log.events.iter().rposition(is_plan).unwrap_or(0));
        }
        let is_cut = decisions > 0 || whole < text.len();
        let left_out = is_cut.then_some(log.events.len() + 2);
        Ok((log, left_out))
    }

    /// The log, with the step and the number of the decisions that the last plan still lacks.
    fn read(text: &str) -> Result<(DecisionLog, (u64, u32)), LogError> {
        let mut lines = text.lines();
        let header = lines.next().ok_or_else(|| LogError::new(1, "the log is empty"))?;
        let header = LogHeader::parse(header).map_err(|why| LogError::new(1, why))?;
        let mut events = Vec::new();
        let mut owed = (0, 0);
        for line in lines {
            let number = events.len() + 2;
            let event = parse_event(line, &mut owed).map_err(|why| LogError::new(number, why))?;
            events.push(event);
        }
        Ok((DecisionLog { header, events }, owed))
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
