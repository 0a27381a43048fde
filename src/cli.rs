//! Definition of the command line.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
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
            Some(_) if !before.is_empty() => Err(Error::usage(
                "--host, --port and the other options of serve belong to it alone: leave them out",
            )),
            Some(other) => Ok(other),
        }
    }
}

/// Outcomes of parsing that run no command.
pub enum Exit {
    /// Help or the version was requested: printed on stdout, exit code 0.
    Requested(clap::Error),
    /// A command without its subcommand: help on stderr, exit code 2.
    Incomplete(clap::Error),
    /// Bad arguments.
    Invalid(Error),
}

impl Exit {
    /// Prints the outcome and returns the exit code.
    pub fn report(self) -> ExitCode {
        match self {
            Exit::Requested(text) | Exit::Incomplete(text) => {
                let code = text.exit_code();
                // A closed stdout or stderr is no error: nothing is left to print.
                let _ = text.print();
                ExitCode::from(code as u8)
            }
            Exit::Invalid(error) => {
                notice(format_args!("error: {error}"));
                ExitCode::from(error.code())
            }
        }
    }
}

/// Parses the arguments, of which the first is the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, Exit> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    Cli::try_parse_from(&arguments).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Exit::Incomplete(error),
        _ if !error.use_stderr() => Exit::Requested(error),
        _ => {
            let message = one_line(&error.to_string());
            Exit::Invalid(Error::usage(format!("{message}; see {} --help", command(&arguments))))
        }
    })
}

/// Returns clap's message without its usage text and its own `error:`.
fn one_line(message: &str) -> String {
    let text = message.strip_prefix("error: ").unwrap_or(message);
    let is_message = |line: &&str| !line.starts_with("Usage:") && !line.starts_with("For more");
    let lines = text.lines().map(str::trim).take_while(is_message).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join(" ")
}

/// Returns the program with the subcommands named in `arguments`, such as `trail-rt bench decode`.
fn command(arguments: &[OsString]) -> String {
    let mut command = &Cli::command();
    let mut path = vec![command.get_name()];
    for argument in arguments.iter().skip(1).filter_map(|argument| argument.to_str()) {
        if let Some(subcommand) = command.find_subcommand(argument) {
            path.push(subcommand.get_name());
            command = subcommand;
        }
    }
    path.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(arguments: &[&str]) -> Result<Command, String> {
        let arguments = ["trail-rt"].iter().chain(arguments).map(OsString::from);
        match parse(arguments) {
            Ok(mut cli) => cli.take_command().map_err(|error| error.to_string()),
            Err(Exit::Invalid(error)) => Err(error.to_string()),
            Err(Exit::Requested(_) | Exit::Incomplete(_)) => Err("help".into()),
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
        assert!(error.starts_with("--host, --port"), "{error}");
    }

    #[test]
    fn mistakes_are_one_line() {
        for arguments in
            [&["--max-running", "x"][..], &["--nothing"], &["fly"], &["--policy", "best"]]
        {
            let error = command(arguments).expect_err("refused");
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(error.ends_with("see trail-rt --help"), "{error}");
        }
    }

    #[test]
    fn mistakes_point_at_the_help_of_the_subcommand() {
        let error = command(&["--slots", "8", "bench", "decode", "--batch", "x"]);
        let error = error.expect_err("refused");
        assert!(error.ends_with("see trail-rt bench decode --help"), "{error}");
    }

    #[test]
    fn bench_without_a_part_lists_the_parts() {
        let Err(Exit::Incomplete(help)) = parse(["trail-rt", "bench"].map(OsString::from)) else {
            panic!("help");
        };
        assert_eq!(help.exit_code(), 2);
        let help = help.to_string();
        for part in ["decode", "prefill", "overlap", "kernels", "load", "swap", "scheduler"] {
            assert!(help.contains(&format!("  {part} ")), "{part} in {help}");
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
