//! Definition of the command line.

mod options_file;
mod scope;

use std::ffi::OsString;
use std::io::{ErrorKind as IoErrorKind, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use trail_bench::BenchArgs;
use trail_cli::{EngineArgs, Error, ModelArgs, message_and_tip, notice};

use crate::commands::advise::AdviseArgs;
use crate::commands::chat::{self, ChatArgs};
use crate::commands::completions::{self, CompletionsArgs};
use crate::commands::demo::DemoArgs;
use crate::commands::doctor::DoctorArgs;
use crate::commands::generate::GenerateArgs;
use crate::commands::inspect::InspectArgs;
use crate::commands::man_pages::ManPagesArgs;
use crate::commands::predictor::PredictorArgs;
use crate::commands::probe::ProbeArgs;
use crate::commands::proxy::{self, ProxyArgs};
use crate::commands::pull::{self, PullArgs};
use crate::commands::replay::ReplayArgs;
use crate::commands::serve::ServeArgs;
use crate::commands::simulate::SimulateArgs;
use crate::commands::theory::TheoryArgs;

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
    /// Print help, with the options of experts
    #[arg(long, global = true)]
    help_all: bool,
}

/// Subcommand; none means `serve`.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Serve the OpenAI-compatible HTTP interface (the default)
    Serve(Box<ServeArgs>),
    /// Order the requests to another OpenAI-compatible server, shortest expected answer first
    #[command(long_about = proxy::ABOUT)]
    Proxy(Box<ProxyArgs>),
    /// Answer one prompt on stdout
    Generate(Box<GenerateArgs>),
    /// Talk with the model in the terminal
    #[command(long_about = chat::about())]
    Chat(Box<ChatArgs>),
    /// Fetch a model from the Hugging Face hub into its cache
    #[command(long_about = pull::ABOUT)]
    Pull(PullArgs),
    /// Print what a model is: shapes, types, tokenizer, memory, and whether a probe fits
    Inspect(InspectArgs),
    /// Train a model's length probe, and say how good it is
    Probe(ProbeArgs),
    /// Train a prompt-only predictor of the answer's length
    Predictor(PredictorArgs),
    /// Measure one part against the limit it works under
    Bench(BenchArgs),
    /// Answer the bundled prompts under several policies, live, then compare them
    Demo(DemoArgs),
    /// Compare policies on a virtual clock, without a model: a million requests a minute
    Simulate(Box<SimulateArgs>),
    /// Repeat the decisions of a log that serve or demo recorded, or run it under another policy
    Replay(ReplayArgs),
    /// Say what each policy would have given on the requests of such a log, and what none could
    Advise(AdviseArgs),
    /// Say what this machine has, and what will be used
    Doctor(DoctorArgs),
    /// Evaluate TRAIL's policy in an M/G/1 queue: response time, memory, preemptions
    Theory(TheoryArgs),
    /// Print a shell's completion of commands and options
    #[command(long_about = completions::ABOUT)]
    Completions(CompletionsArgs),
    /// Write the manual to a folder, a page for each command
    #[command(hide = true)]
    ManPages(ManPagesArgs),
}

impl Cli {
    /// Returns the requested command. Options of `serve` are accepted before and after its name;
    /// before another command's name they are an error.
    pub fn take_command(&mut self) -> Result<Command, Error> {
        let before = std::mem::take(&mut self.serve);
        match self.command.take() {
            None => Ok(Command::Serve(Box::new(before))),
            Some(Command::Serve(after)) => Ok(Command::Serve(Box::new(after.or(before)))),
            Some(_) if !before.is_empty() => Err(Error::usage(
                "--host, --port and the other options of serve belong to it alone: leave them out",
            )),
            Some(other) => Ok(other),
        }
    }
}

/// Outcomes other than success.
pub enum Exit {
    /// Help or the version was requested: printed on stdout, exit code 0.
    Requested(clap::Error),
    /// A command without its subcommand: help on stderr, exit code 2.
    Incomplete(clap::Error),
    /// Bad arguments, or a command that failed.
    Failed(Error),
    /// Arguments that cannot be parsed, with the parser's tip if it has one.
    Refused(Error, Option<String>),
}

impl From<Error> for Exit {
    fn from(error: Error) -> Self {
        Exit::Failed(error)
    }
}

impl Exit {
    /// Prints the outcome of the program's `arguments` and returns the exit code.
    pub fn report(self, arguments: &[OsString]) -> ExitCode {
        match self {
            Exit::Requested(text) | Exit::Incomplete(text) => {
                let printed = text.print().and_then(|()| std::io::stdout().flush());
                match printed {
                    // A reader that has gone needs no more.
                    Err(error) if error.kind() != IoErrorKind::BrokenPipe => {
                        notice(format_args!("error: cannot write the help: {error}"));
                        ExitCode::FAILURE
                    }
                    _ => ExitCode::from(text.exit_code() as u8),
                }
            }
            Exit::Refused(error, tip) => {
                let code = Exit::Failed(error).report(arguments);
                tip.iter().for_each(notice);
                code
            }
            Exit::Failed(error) => {
                notice(message(&error, arguments));
                ExitCode::from(error.code())
            }
        }
    }
}

/// The line on stderr for `error`. One about the arguments points at the help of their command.
fn message(error: &Error, arguments: &[OsString]) -> String {
    match error.code() {
        2 => format!("error: {error}; see {} --help", command(arguments)),
        _ => format!("error: {error}"),
    }
}

/// The definition. Options of experts are hidden unless `all` is set.
pub fn definition(all: bool) -> clap::Command {
    let command = Cli::command().max_term_width(100);
    scope::hide(with_negative_numbers(command), all)
}

/// The same for arguments that may be wrong: the parser goes as far as it can. A setting that
/// subcommands inherit has to be made before the definition is built.
fn lenient_definition() -> clap::Command {
    scope::hide(with_negative_numbers(Cli::command().ignore_errors(true)), true)
}

/// Lets every option with a value take a negative number: its own parser refuses it then, by name
/// and range.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let option = |option: clap::Arg| match option.get_action().takes_values() {
        true => option.allow_negative_numbers(true),
        false => option,
    };
    command.mut_args(option).mut_subcommands(with_negative_numbers)
}

/// Parses the arguments, which begin with the program's name, and the options of `serve` in
/// its file and the environment.
pub fn parse(arguments: &[OsString]) -> Result<Cli, Exit> {
    if let Some(help) = help_of_experts(arguments) {
        return Err(Exit::Requested(help));
    }
    let arguments = options_file::complete(arguments, std::env::vars_os())?;
    let matches = definition(false).try_get_matches_from(&arguments);
    let matches = matches.map_err(|error| match error.kind() {
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Exit::Incomplete(error),
        _ if !error.use_stderr() => Exit::Requested(error),
        _ => refusal(&error, &arguments),
    })?;
    scope::check(&matches)?;
    Cli::from_arg_matches(&matches).map_err(|error| Error::usage(error.to_string()).into())
}

/// The parser's `error`; an option of other commands is named as theirs.
fn refusal(error: &clap::Error, arguments: &[OsString]) -> Exit {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let command = command(arguments);
    let path: Vec<&str> = command.split(' ').skip(1).collect();
    let tip = match (error.kind(), text(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(unknown)) => {
            if let Some(message) = scope::of_others(unknown, &path) {
                return Exit::Failed(Error::usage(message));
            }
            match path[..] {
                ["generate"] if !unknown.starts_with('-') => Some("give the text by --prompt TEXT"),
                _ if unknown == "-v" => Some("--version prints the version, --verbose is of serve"),
                _ => None,
            }
        }
        (ErrorKind::InvalidSubcommand, _) => text(ContextKind::InvalidSubcommand)
            .filter(|name| *name == "version")
            .map(|_| "--version prints the version"),
        _ => None,
    };
    let (message, parsers_tip) = message_and_tip(&error.to_string());
    Exit::Refused(Error::usage(message), tip.map(|tip| format!("tip: {tip}")).or(parsers_tip))
}

/// The help with the options of experts, if the arguments ask for it.
fn help_of_experts(arguments: &[OsString]) -> Option<clap::Error> {
    if arguments.iter().all(|argument| argument != "--help-all") {
        return None;
    }
    let as_help = |argument: &OsString| match argument == "--help-all" {
        true => "--help".into(),
        false => argument.clone(),
    };
    let result = definition(true).try_get_matches_from(arguments.iter().map(as_help));
    result.err().filter(|error| error.kind() == ErrorKind::DisplayHelp)
}

/// Returns clap's message without its usage text, its own `error:` and its tip.
fn one_line(message: &str) -> String {
    message_and_tip(message).0
}

/// Returns the program with the subcommands of `arguments`, such as `trail-rt bench decode`, as far
/// as they can be parsed.
fn command(arguments: &[OsString]) -> String {
    let matches = lenient_definition().try_get_matches_from(arguments);
    let mut path = vec!["trail-rt"];
    let mut level = matches.as_ref().ok();
    while let Some((name, inner)) = level.and_then(ArgMatches::subcommand) {
        path.push(name);
        level = Some(inner);
    }
    path.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> Vec<OsString> {
        ["trail-rt"].iter().chain(arguments).map(OsString::from).collect()
    }

    fn command(arguments: &[&str]) -> Result<Command, String> {
        let arguments = of(arguments);
        let taken = parse(&arguments).and_then(|mut cli| Ok(cli.take_command()?));
        taken.map_err(|exit| match exit {
            Exit::Failed(error) | Exit::Refused(error, _) => message(&error, &arguments),
            Exit::Requested(_) | Exit::Incomplete(_) => "help".into(),
        })
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
        assert!(error.starts_with("error: --host, --port"), "{error}");
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
        for (arguments, help) in [
            (&["--threads", "8", "bench", "decode", "--batch", "x"][..], "trail-rt bench decode"),
            (&["--port", "9", "doctor"], "trail-rt doctor"),
            (&["generate"], "trail-rt generate"),
            // Values that are names of commands.
            (&["--model", "demo", "--nothing"], "trail-rt"),
            (&["generate", "--prompt", "bench", "--top-k", "x"], "trail-rt generate"),
        ] {
            let error = command(arguments).expect_err("refused");
            assert!(error.ends_with(&format!("; see {help} --help")), "{error}");
        }
    }

    /// Every option with a value, by the command that takes it.
    fn options(command: &clap::Command, path: &[String]) -> Vec<Vec<String>> {
        let longs = command.get_arguments().filter(|option| option.get_action().takes_values());
        let mut all: Vec<Vec<String>> = longs
            .filter_map(|option| Some([path, &[format!("--{}", option.get_long()?)]].concat()))
            .collect();
        for inner in command.get_subcommands() {
            all.extend(options(inner, &[path, &[inner.get_name().to_owned()]].concat()));
        }
        all
    }

    #[test]
    fn negative_numbers_reach_the_parser_of_every_option() {
        let all = options(&definition(true), &[]);
        assert!(all.len() > 50, "{}", all.len());
        for option in all {
            let arguments: Vec<&str> = option.iter().map(String::as_str).chain(["-1"]).collect();
            if let Err(error) = command(&arguments) {
                assert!(!error.contains("unexpected argument"), "{arguments:?}: {error}");
            }
        }
    }

    #[test]
    fn bench_without_a_part_lists_the_parts() {
        let Err(Exit::Incomplete(help)) = parse(&of(&["bench"])) else {
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
        definition(false).debug_assert();
    }
}
