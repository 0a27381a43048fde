//! Lines of a program's log: as text, or as JSON for programs that collect logs.

use std::fmt;
use std::sync::OnceLock;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::{Map, Value, json};
use trail_platform::printable::is_active;
use trail_platform::printable_line;

/// Severity of a line.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something works less well than it could.
    Warning,
    /// Work of the program.
    #[default]
    Info,
}

/// Form of the lines.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// A line as a person reads it.
    #[default]
    Text,
    /// An object with `time` (UTC), `level`, `message`, and fields of the message.
    Json,
}

/// Form and least severity of all lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// Form.
    pub format: LogFormat,
    /// Lines of less severity are left out.
    pub level: LogLevel,
}

static SETTINGS: OnceLock<LogSettings> = OnceLock::new();

impl LogLevel {
    /// The level that a line's first word names, and the rest of the line.
    fn of(line: &str) -> (LogLevel, &str) {
        let rest = |name: &str| line.strip_prefix(name)?.strip_prefix(": ");
        match (rest("error"), rest("warning")) {
            (Some(rest), _) => (LogLevel::Error, rest),
            (_, Some(rest)) => (LogLevel::Warning, rest),
            _ => (LogLevel::Info, line),
        }
    }

    fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warning => "warning",
            LogLevel::Info => "info",
        }
    }
}

impl LogSettings {
    /// Makes these the settings of the process; the first ones stay.
    pub fn set(self) {
        let _ = SETTINGS.set(self);
    }

    fn get() -> LogSettings {
        SETTINGS.get().copied().unwrap_or_default()
    }

    /// `line`, which may begin with its level (`warning: `); `None` if it is left out.
    fn line(self, line: &str) -> Option<String> {
        let (level, message) = LogLevel::of(line);
        if level > self.level {
            return None;
        }
        Some(match self.format {
            LogFormat::Text => printable_line(line).into_owned(),
            LogFormat::Json => object(level, message, Map::new()),
        })
    }

    /// A line of level info: `text`, or `message` with fields.
    fn record(self, text: &str, message: &str, fields: Map<String, Value>) -> Option<String> {
        match self.format {
            LogFormat::Text => self.line(text),
            LogFormat::Json if LogLevel::Info > self.level => None,
            LogFormat::Json => Some(object(LogLevel::Info, message, fields)),
        }
    }
}

/// `line` in the form of the process's log; `None` if it is left out.
pub(crate) fn of_line(line: &str) -> Option<String> {
    LogSettings::get().line(line)
}

/// The text of a record, or its message with `fields`, which serialize to an object.
pub(crate) fn of_record(
    text: &dyn fmt::Display,
    message: &str,
    fields: &impl Serialize,
) -> Option<String> {
    let fields = match serde_json::to_value(fields) {
        Ok(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    LogSettings::get().record(&text.to_string(), message, fields)
}

fn object(level: LogLevel, message: &str, fields: Map<String, Value>) -> String {
    let time = format!("{:.3}", jiff::Timestamp::now());
    let mut object = json!({ "time": time, "level": level.name(), "message": message });
    if let Some(object) = object.as_object_mut() {
        object.extend(fields);
    }
    // JSON escapes control characters below U+0020 alone; others act on terminals, too.
    let mut line = String::new();
    for c in object.to_string().chars() {
        match is_active(c) {
            true => line += &format!("\\u{:04x}", u32::from(c)),
            false => line.push(c),
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: LogSettings = LogSettings { format: LogFormat::Text, level: LogLevel::Info };

    #[test]
    fn lines_have_the_level_that_they_begin_with() {
        let errors = LogSettings { level: LogLevel::Error, ..TEXT };
        assert_eq!(errors.line("error: full"), Some("error: full".into()));
        assert_eq!((errors.line("warning: slow"), errors.line("a line")), (None, None));
        assert_eq!(TEXT.line("warning: a\nb"), Some("warning: a\\nb".into()));
        let json = LogSettings { format: LogFormat::Json, level: LogLevel::Warning };
        let line = json.line("warning: a\n\"b\"").expect("a line");
        let object: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!((&object["level"], &object["message"]), (&json!("warning"), &json!("a\n\"b\"")));
        let time: jiff::Timestamp =
            object["time"].as_str().and_then(|time| time.parse().ok()).expect("a time");
        assert!(time <= jiff::Timestamp::now() && !line.contains('\n'));
        assert_eq!(json.line("a line"), None);
        let line = json.line("warning: a\u{9b}\u{202e}\u{2028}b").expect("a line");
        assert!(line.contains(r"a\u009b\u202e\u2028b"), "{line}");
        let object: Value = serde_json::from_str(&line).expect("JSON");
        assert_eq!(object["message"], "a\u{9b}\u{202e}\u{2028}b");
    }

    #[test]
    fn records_are_texts_or_objects_with_fields() {
        let fields = json!({ "status": 200 }).as_object().cloned().expect("an object");
        let record = |of: LogSettings| of.record("GET / 200", "request", fields.clone());
        assert_eq!(record(TEXT), Some("GET / 200".into()));
        let line = record(LogSettings { format: LogFormat::Json, ..TEXT }).expect("a line");
        assert!(line.contains("\"message\":\"request\"") && line.contains("\"status\":200"));
        let warnings = LogSettings { level: LogLevel::Warning, ..TEXT };
        assert_eq!(record(warnings), None);
        assert_eq!(record(LogSettings { format: LogFormat::Json, ..warnings }), None);
    }
}
