//! Options of the log.

use clap::Args;
use trail_cli::{LogFormat, LogLevel, LogSettings};

/// Options of the lines on stderr.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct LogArgs {
    /// Form of the lines on stderr: text, or json with time, level, message and fields [default:
    /// text]
    #[arg(long, hide = true, value_name = "FORMAT", hide_possible_values = true)]
    log_format: Option<LogFormat>,
    /// Least severity of the lines on stderr: error, warning or info [default: info]
    #[arg(long, hide = true, value_name = "LEVEL", hide_possible_values = true)]
    log_level: Option<LogLevel>,
    /// Write the prompts of requests to stderr, too
    #[arg(long, hide = true)]
    pub log_prompts: bool,
}

impl LogArgs {
    /// Returns these options, with `others` in place of those that are not set.
    pub fn or(self, others: LogArgs) -> LogArgs {
        LogArgs {
            log_format: self.log_format.or(others.log_format),
            log_level: self.log_level.or(others.log_level),
            log_prompts: self.log_prompts || others.log_prompts,
        }
    }

    /// Form and least severity of the lines.
    pub fn settings(&self) -> LogSettings {
        LogSettings {
            format: self.log_format.unwrap_or_default(),
            level: self.log_level.unwrap_or_default(),
        }
    }
}
