//! Which command reads which of the options that are parsed on every command.
//!
//! The options of model and engine may stand before or after a command's name, so the parser knows
//! them everywhere. One that a command does not read is hidden from its help and refused when it
//! is given there.

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use trail_cli::Error;

/// Options with one subject.
struct Group {
    /// Heading in the help.
    heading: &'static str,
    /// Ids of the options.
    options: &'static [&'static str],
    /// Ids of those that only `--help-all` and a file of options show.
    experts: &'static [&'static str],
}

const MODEL: Group = Group { heading: "Model", options: &["model", "max_model_len"], experts: &[] };
const PREDICTION: Group = Group {
    heading: "Model",
    options: &["probe", "length_predictor", "encoder", "force_probe"],
    experts: &["filter"],
};
const POLICY: Group = Group { heading: "Scheduling", options: &["policy"], experts: &[] };
const SHARE: Group = Group { heading: "Scheduling", options: &["c"], experts: &[] };
const RANKING: Group = Group {
    heading: "Ranking (trail, trail-auto, gittins)",
    options: &["tail_bound", "express", "min_run_tokens", "initial_length", "paper"],
    experts: &["prefill_weight"],
};
/// Sizes and bounds of the scheduler.
const SIZES: Group = Group {
    heading: "Scheduling",
    options: &["max_running", "token_budget", "max_gap_ms"],
    experts: &["max_passed_over", "max_blocked", "reserve", "refresh_tokens"],
};
const QUEUE: Group =
    Group { heading: "Scheduling", options: &["max_requests", "full"], experts: &[] };
const QUEUE_MEMORY: Group = Group { heading: "Memory", options: &[], experts: &["max_queue_mib"] };
const KV_BLOCKS: Group =
    Group { heading: "Memory", options: &["kv_blocks", "preemption"], experts: &[] };
const SWAP: Group = Group { heading: "Memory", options: &["host_kv_gib"], experts: &[] };
const KV_DTYPE: Group = Group { heading: "Memory", options: &["kv_dtype"], experts: &[] };
const DEVICE: Group = Group { heading: "Device", options: &["device"], experts: &[] };
const GPU: Group = Group {
    heading: "Device",
    options: &["probe_device"],
    experts: &["no_graphs", "experimental"],
};
const THREADS: Group = Group { heading: "Device", options: &["threads"], experts: &[] };
const PRODUCTS: Group =
    Group { heading: "Device", options: &["compute"], experts: &["isa", "repack"] };
const PLACEMENT: Group = Group { heading: "Device", options: &[], experts: &["cpu_strict"] };

/// All groups.
const ALL: &[&Group] = &[
    &MODEL,
    &PREDICTION,
    &POLICY,
    &SHARE,
    &RANKING,
    &SIZES,
    &QUEUE,
    &QUEUE_MEMORY,
    &KV_BLOCKS,
    &SWAP,
    &KV_DTYPE,
    &DEVICE,
    &GPU,
    &THREADS,
    &PRODUCTS,
    &PLACEMENT,
];
/// An engine whose requests and policies the command makes.
const OWN_REQUESTS: &[&Group] = &[
    &MODEL,
    &SIZES,
    &QUEUE_MEMORY,
    &KV_BLOCKS,
    &SWAP,
    &KV_DTYPE,
    &DEVICE,
    &GPU,
    &THREADS,
    &PRODUCTS,
    &PLACEMENT,
];
/// A backend alone.
const BACKEND: &[&Group] =
    &[&MODEL, &SWAP, &KV_DTYPE, &DEVICE, &GPU, &THREADS, &PRODUCTS, &PLACEMENT];

/// Groups that the command at `path` reads; `path` is empty for the default command.
fn groups(path: &[&str]) -> Vec<&'static Group> {
    let with = |groups: &[&'static Group], more: &[&'static Group]| [groups, more].concat();
    match path {
        [] | ["serve" | "generate" | "chat"] => ALL.to_vec(),
        ["demo"] => with(OWN_REQUESTS, &[&PREDICTION, &SHARE, &RANKING]),
        ["simulate"] => vec![&MODEL, &SHARE, &RANKING, &SIZES, &KV_BLOCKS],
        ["replay"] => vec![&POLICY, &SHARE, &RANKING],
        ["theory"] => vec![&SHARE],
        ["inspect"] => vec![&MODEL, &PREDICTION, &KV_DTYPE, &PRODUCTS],
        ["probe", "collect"] => OWN_REQUESTS.to_vec(),
        ["probe", "eval"] => with(OWN_REQUESTS, &[&PREDICTION]),
        ["probe", "fit"] | ["predictor", "eval"] => vec![&MODEL, &PREDICTION],
        ["probe", "train"] => vec![&THREADS],
        ["predictor", "train"] => vec![&MODEL],
        ["bench", "overlap" | "steps"] => with(BACKEND, &[&PREDICTION]),
        ["bench", "decode" | "prefill" | "accuracy" | "sampling" | "load"] => BACKEND.to_vec(),
        ["bench", "probe"] => vec![&PRODUCTS],
        ["bench", "scheduler"] => vec![&POLICY, &SHARE, &RANKING],
        ["bench", "serve"] => with(OWN_REQUESTS, &[&SHARE, &RANKING]),
        ["bench", "swap"] => vec![&DEVICE],
        _ => Vec::new(),
    }
}

/// Returns the group of the option `id` that the command at `path` reads.
fn group_of(path: &[&str], id: &str) -> Option<&'static Group> {
    groups(path)
        .into_iter()
        .find(|group| group.options.contains(&id) || group.experts.contains(&id))
}

/// True for an option that is parsed on every command but read by some.
fn is_scoped(id: &str) -> bool {
    group_of(&[], id).is_some()
}

/// Hides from the help of each command the options that it does not read, and those of experts
/// unless `all` is set.
pub(super) fn hide(command: Command, all: bool) -> Command {
    let mut command = command;
    // Hands the options of every command down.
    command.build();
    hide_below(command, &[], all)
}

fn hide_below(command: Command, path: &[&str], all: bool) -> Command {
    let names: Vec<String> =
        command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    let mut command = command.mut_args(|option| hide_option(option, path, all));
    for name in names.iter().filter(|name| *name != "help") {
        let path: Vec<&str> = path.iter().copied().chain([name.as_str()]).collect();
        command = command.mut_subcommand(name, |inner| hide_below(inner, &path, all));
    }
    command
}

fn hide_option(option: Arg, path: &[&str], all: bool) -> Arg {
    let id = option.get_id().as_str().to_owned();
    match group_of(path, &id) {
        Some(group) => {
            let is_hidden = !all && group.experts.contains(&id.as_str());
            option.help_heading(group.heading).hide(is_hidden)
        }
        None if is_scoped(&id) => option.hide(true),
        None if all && id != "help_all" => option.hide(false),
        None => option,
    }
}

/// Refuses an option of `matches` that the requested command does not read.
pub(super) fn check(matches: &ArgMatches) -> Result<(), Error> {
    let (mut path, mut level) = (Vec::new(), matches);
    while let Some((name, inner)) = level.subcommand() {
        path.push(name);
        level = inner;
    }
    for id in level.ids().map(clap::Id::as_str) {
        let is_given = level.value_source(id) == Some(ValueSource::CommandLine);
        if is_given && is_scoped(id) && group_of(&path, id).is_none() {
            return Err(Error::usage(refusal(id, &path)));
        }
    }
    Ok(())
}

/// The refusal of option `id` by the command at `path`, which names the commands that read it.
fn refusal(id: &str, path: &[&str]) -> String {
    let command = path.join(" ");
    let readers = COMMANDS.iter().filter(|path| group_of(path, id).is_some());
    let readers: Vec<String> = readers.map(|path| path.join(" ")).collect();
    let option = id.replace('_', "-");
    format!("--{option} is an option of {}: {command} does not read it", readers.join(", "))
}

/// Commands that read options of some group.
const COMMANDS: &[&[&str]] = &[
    &["serve"],
    &["generate"],
    &["chat"],
    &["demo"],
    &["simulate"],
    &["replay"],
    &["theory"],
    &["inspect"],
    &["probe", "collect"],
    &["probe", "train"],
    &["probe", "fit"],
    &["probe", "eval"],
    &["predictor", "train"],
    &["predictor", "eval"],
    &["bench", "decode"],
    &["bench", "prefill"],
    &["bench", "accuracy"],
    &["bench", "sampling"],
    &["bench", "overlap"],
    &["bench", "probe"],
    &["bench", "steps"],
    &["bench", "load"],
    &["bench", "swap"],
    &["bench", "scheduler"],
    &["bench", "serve"],
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::definition;

    /// Paths of all commands that run.
    fn paths(command: &Command, path: &[String], all: &mut Vec<Vec<String>>) {
        let inner: Vec<&Command> =
            command.get_subcommands().filter(|inner| inner.get_name() != "help").collect();
        if inner.is_empty() {
            all.push(path.to_vec());
        }
        for inner in inner {
            paths(inner, &[path, &[inner.get_name().to_owned()]].concat(), all);
        }
    }

    #[test]
    fn every_shared_option_is_in_one_group() {
        let definition = definition(true);
        for option in definition.get_arguments().filter(|option| option.is_global_set()) {
            let id = option.get_id().as_str();
            let groups = ALL
                .iter()
                .filter(|group| group.options.contains(&id) || group.experts.contains(&id));
            let expected = usize::from(!["json", "help_all"].contains(&id));
            assert_eq!(groups.count(), expected, "{id}");
        }
    }

    #[test]
    fn every_command_is_listed_or_reads_nothing() {
        let mut all = Vec::new();
        paths(&definition(true), &[], &mut all);
        assert!(all.len() > 20, "{all:?}");
        for path in all {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            assert_eq!(COMMANDS.contains(&&path[..]), !groups(&path).is_empty(), "{path:?}");
        }
    }

    /// Each command with each shared option: refused exactly where it is not read.
    #[test]
    fn options_are_refused_where_they_are_not_read() {
        let definition = definition(true);
        let mut all = Vec::new();
        paths(&definition, &[], &mut all);
        for path in all {
            let names: Vec<&str> = path.iter().map(String::as_str).collect();
            for option in definition.get_arguments().filter(|option| option.is_global_set()) {
                let id = option.get_id().as_str();
                let long = option.get_long().expect("a name");
                let mut arguments = vec!["trail-rt".to_owned(), format!("--{long}")];
                if option.get_action().takes_values() {
                    arguments.push(valid(id).to_owned());
                }
                arguments.extend(path.iter().cloned());
                // Arguments that the command itself requires are missing.
                let parser = definition.clone().ignore_errors(true);
                let matches = parser.try_get_matches_from(&arguments).expect("ignored");
                let is_read = group_of(&names, id).is_some() || !is_scoped(id);
                assert_eq!(check(&matches).is_ok(), is_read, "{arguments:?}");
            }
        }
    }

    /// A value that the parser of option `id` takes.
    fn valid(id: &str) -> &'static str {
        match id {
            "policy" => "fcfs",
            "full" => "shed",
            "reserve" => "mean",
            "device" | "probe_device" => "cpu",
            "preemption" => "swap",
            "experimental" => "megakernel",
            "isa" => "portable",
            "compute" => "exact",
            "kv_dtype" => "f16",
            "filter" => "bins",
            "initial_length" => "mean",
            "c" | "cpu_strict" => "1",
            _ => "8",
        }
    }
}
