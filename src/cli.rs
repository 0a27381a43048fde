//! Command line: options and subcommands.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use trail_bench::BenchArgs;
use trail_setup::{EngineArgs, Error, ModelArgs, notice};

use crate::commands::demo::DemoArgs;
use crate::commands::generate::GenerateArgs;
use crate::commands::serve::ServeArgs;

/// Serves Llama-family models and schedules requests by predicted remaining output length.
///
/// Without a command it serves: `trail-rt --model PATH --port 8000`.
#[derive(Parser, Debug)]
#[command(version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Options of `serve`, the default command.
    #[command(flatten)]
    serve: ServeArgs,
    /// Model options.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Engine options.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object on stdout
    #[arg(long, global = true)]
    pub json: bool,
}

/// Subcommand; none means `serve`.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve the OpenAI-compatible HTTP interface (the default)
    Serve(ServeArgs),
    /// Answer one prompt on stdout
    Generate(Box<GenerateArgs>),
    /// Measure one part against the limit it works under
    Bench(BenchArgs),
    /// Answer the bundled prompts under several policies, live, then compare them
    Demo(DemoArgs),
    /// Say what this machine has, and what will be used
    Doctor,
}

impl Cli {
    /// Returns the requested command. Options of `serve` are accepted before and after its name;
    /// before another command's name they are an error.
    pub fn take_command(&mut self) -> Result<Command, Error> {
        let before = std::mem::take(&mut self.serve);
        match self.command.take() {
            None => Ok(Command::Serve(before)),
            Some(Command::Serve(after)) => Ok(Command::Serve(after.or(before))),
            Some(_) if !before.is_empty() => {
                Err(Error::usage("--host and --port are options of serve: leave them out"))
            }
            Some(other) => Ok(other),
        }
    }
}

/// Reasons to exit without running a command.
pub enum Exit {
    /// Help or version text, for stdout.
    Asked(clap::Error),
    /// Invalid arguments.
    Mistaken(Error),
}

impl Exit {
    /// Prints the text or the error, and returns the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Exit::Asked(text) => {
                // A closed pipe is no error: the reader has what it wanted.
                let _ = text.print();
                ExitCode::SUCCESS
            }
            Exit::Mistaken(error) => {
                notice(format_args!("error: {error}"));
                ExitCode::from(error.code())
            }
        }
    }
}

/// Parses the arguments; the first is the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, Exit> {
    Cli::try_parse_from(arguments).map_err(|error| match error.use_stderr() {
        false => Exit::Asked(error),
        true => Exit::Mistaken(Error::usage(one_line(&error.to_string()))),
    })
}

/// Returns clap's message without usage text and `error:` prefix.
fn one_line(message: &str) -> String {
    let text = message.strip_prefix("error: ").unwrap_or(message);
    let told = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more");
    let lines = text.lines().map(str::trim).take_while(told).filter(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" ");
    format!("{line}; see trail-rt --help")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(arguments: &[&str]) -> Result<Command, String> {
        let arguments = ["trail-rt"].iter().chain(arguments).map(OsString::from);
        match parse(arguments) {
            Ok(mut cli) => cli.take_command().map_err(|error| error.to_string()),
            Err(Exit::Mistaken(error)) => Err(error.to_string()),
            Err(Exit::Asked(_)) => Err("help".into()),
        }
    }

    fn port(arguments: &[&str]) -> Option<u16> {
        match command(arguments) {
            Ok(Command::Serve(args)) => Some(args.port()),
            _ => None,
        }
    }

    #[test]
    fn serve_needs_no_name() {
        assert_eq!(port(&[]), Some(8000));
        assert_eq!(port(&["--model", "m", "--port", "9"]), Some(9));
        assert_eq!(port(&["--port", "9", "serve"]), Some(9));
        assert_eq!(port(&["--port", "9", "serve", "--port", "10", "--model", "m"]), Some(10));
    }

    #[test]
    fn options_of_serve_are_refused_elsewhere() {
        let error = command(&["--port", "9", "doctor"]).expect_err("refused");
        assert!(error.starts_with("--host and --port"), "{error}");
    }

    #[test]
    fn mistakes_are_one_line() {
        for arguments in [&["--slots", "x"][..], &["--nothing"], &["fly"], &["--policy", "best"]] {
            let error = command(arguments).expect_err("refused");
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(error.ends_with("see trail-rt --help"), "{error}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        <Cli as clap::CommandFactory>::command().debug_assert();
    }
}
