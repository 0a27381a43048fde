//! Which command reads which of the options that are parsed on every command.
//!
//! The options of model and engine may stand before or after a command's name, so the parser knows
//! them everywhere. One that a command does not read is hidden from its help and refused when it
//! is given there.

use clap::builder::Resettable;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use trail_cli::Error;

use super::definition;

/// Options with one subject.
struct Group {
    /// Heading in the help.
    heading: &'static str,
    /// Ids of the options.
    options: &'static [&'static str],
    /// Ids of those that only `--help-all` and a file of options show.
    experts: &'static [&'static str],
}

const MODEL: Group = Group { heading: "Model", options: &["model"], experts: &[] };
const CONTEXT: Group = Group { heading: "Model", options: &["max_model_len"], experts: &[] };
const SAMPLING: Group = Group { heading: "Model", options: &[], experts: &["generation_config"] };
const PROBE: Group =
    Group { heading: "Model", options: &["probe", "force_probe"], experts: &["filter"] };
const PREDICTOR: Group =
    Group { heading: "Model", options: &["length_predictor", "encoder"], experts: &[] };
const POLICY: Group = Group { heading: "Scheduling", options: &["policy"], experts: &[] };
const SHARE: Group = Group { heading: "Scheduling", options: &["c"], experts: &[] };
const RANKING: Group = Group {
    heading: "Ranking (trail, trail-auto, gittins; sjf, po: tail bound and express)",
    options: &["tail_bound", "express", "min_run_tokens", "initial_length", "paper"],
    experts: &["prefill_weight", "initial_share"],
};
/// Sizes and bounds of the scheduler.
const SIZES: Group = Group {
    heading: "Scheduling",
    options: &["max_running", "token_budget", "max_gap_ms"],
    experts: &["max_passed_over", "max_blocked", "reserve", "refresh_tokens"],
};
const QUEUE: Group = Group { heading: "Scheduling", options: &["max_requests"], experts: &[] };
const FULL: Group = Group { heading: "Scheduling", options: &["full"], experts: &[] };
/// The part of [`RANKING`] that is about requests which are not preempted.
const BOUND: Group = Group {
    heading: "Scheduling",
    options: &["tail_bound", "express"],
    experts: &["prefill_weight"],
};
const QUEUE_MEMORY: Group = Group { heading: "Memory", options: &[], experts: &["max_queue_mib"] };
const KV_BLOCKS: Group =
    Group { heading: "Memory", options: &["kv_blocks", "preemption"], experts: &[] };
const PREFIX_CACHE: Group =
    Group { heading: "Memory", options: &[], experts: &["no_prefix_cache"] };
const SPECULATE: Group = Group { heading: "Scheduling", options: &["speculate"], experts: &[] };
const SWAP: Group = Group { heading: "Memory", options: &["host_kv_gib"], experts: &[] };
const KV_DTYPE: Group = Group { heading: "Memory", options: &["kv_dtype"], experts: &[] };
const DEVICE: Group = Group { heading: "Device", options: &["device"], experts: &[] };
const GPU: Group = Group {
    heading: "Device",
    options: &[],
    experts: &["no_graphs", "order", "megakernel", "device_timeout"],
};
const GPU_PROBE: Group = Group { heading: "Device", options: &["probe_device"], experts: &[] };
const THREADS: Group = Group { heading: "Device", options: &["threads"], experts: &[] };
const COMPUTE: Group = Group { heading: "Device", options: &["compute"], experts: &[] };
const ISA: Group = Group { heading: "Device", options: &[], experts: &["isa"] };
const REPACK: Group = Group { heading: "Device", options: &[], experts: &["repack"] };
const PLACEMENT: Group = Group { heading: "Device", options: &[], experts: &["cpu_strict"] };

/// All groups.
const ALL: &[&Group] = &[
    &MODEL,
    &CONTEXT,
    &SAMPLING,
    &PROBE,
    &PREDICTOR,
    &POLICY,
    &SHARE,
    &RANKING,
    &SIZES,
    &QUEUE,
    &FULL,
    &QUEUE_MEMORY,
    &KV_BLOCKS,
    &PREFIX_CACHE,
    &SPECULATE,
    &SWAP,
    &KV_DTYPE,
    &DEVICE,
    &GPU,
    &GPU_PROBE,
    &THREADS,
    &COMPUTE,
    &ISA,
    &REPACK,
    &PLACEMENT,
];
/// An engine whose requests and policies the command makes.
const OWN_REQUESTS: &[&Group] = &[
    &MODEL,
    &CONTEXT,
    &SIZES,
    &QUEUE_MEMORY,
    &KV_BLOCKS,
    &PREFIX_CACHE,
    &SPECULATE,
    &SWAP,
    &KV_DTYPE,
    &DEVICE,
    &GPU,
    &GPU_PROBE,
    &THREADS,
    &COMPUTE,
    &ISA,
    &REPACK,
    &PLACEMENT,
];
/// A forward pass on the CPU.
const FORWARD: &[&Group] = &[&MODEL, &DEVICE, &KV_DTYPE, &THREADS, &ISA, &REPACK, &PLACEMENT];

/// Groups that the command at `path` reads; `path` is empty for the default command.
fn groups(path: &[&str]) -> Vec<&'static Group> {
    let with = |groups: &[&'static Group], more: &[&'static Group]| [groups, more].concat();
    match path {
        [] | ["serve" | "generate" | "chat"] => ALL.to_vec(),
        ["demo"] => with(OWN_REQUESTS, &[&PROBE, &PREDICTOR, &SHARE, &RANKING]),
        ["simulate"] => {
            vec![&MODEL, &CONTEXT, &SHARE, &RANKING, &SIZES, &KV_BLOCKS, &PREFIX_CACHE]
        }
        ["replay"] | ["bench", "scheduler"] => vec![&POLICY, &SHARE, &RANKING],
        ["proxy"] => vec![&POLICY, &BOUND, &QUEUE],
        ["advise"] => vec![&SHARE, &RANKING],
        ["theory"] => vec![&SHARE],
        ["inspect"] => vec![&MODEL, &CONTEXT, &PROBE, &KV_DTYPE, &REPACK],
        ["probe", "collect" | "eval"] => with(OWN_REQUESTS, &[&PROBE, &PREDICTOR]),
        ["probe", "fit"] => vec![&MODEL, &PROBE],
        ["probe", "train"] => vec![&THREADS],
        ["predictor", "train"] => vec![&MODEL],
        ["predictor", "eval"] => vec![&MODEL, &PROBE, &PREDICTOR],
        ["bench", "overlap" | "steps"] => {
            with(FORWARD, &[&CONTEXT, &PROBE, &COMPUTE, &SWAP, &GPU, &GPU_PROBE])
        }
        ["bench", "decode" | "prefill"] => with(FORWARD, &[&COMPUTE, &GPU]),
        ["bench", "sampling"] => with(FORWARD, &[&COMPUTE]),
        ["bench", "accuracy"] => with(FORWARD, &[&CONTEXT]),
        ["bench", "serve"] => with(OWN_REQUESTS, &[&SHARE, &RANKING]),
        ["bench", "speculation" | "structured"] => with(FORWARD, &[&COMPUTE]),
        ["bench", "flips"] => vec![&MODEL, &COMPUTE, &ISA, &KV_DTYPE, &REPACK],
        ["doctor"] | ["bench", "load"] => vec![&MODEL, &DEVICE],
        ["bench", "probe"] => vec![&ISA],
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

/// Options that mean less on a command than elsewhere: the command, the id, the help there.
const OWN_HELP: [(&[&str], &str, &str); 2] = [
    (&["proxy"], "policy", "sjf, the shortest expected answer first, or fcfs [default: sjf]"),
    (&["proxy"], "max_requests", "Requests waiting and being answered [default: 4096]"),
];

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
    let option = match (all, id.as_str()) {
        (true, _) => option,
        // The form without blank lines between options.
        (false, "help") => option.action(ArgAction::HelpShort).help("Print help"),
        (false, _) => option.long_help(Resettable::Reset),
    };
    let own = OWN_HELP.iter().find(|(command, of, _)| *command == path && *of == id);
    let option = match own {
        Some((.., help)) => option.help(*help).long_help(Resettable::Reset),
        None => option,
    };
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
    let readers = COMMANDS.iter().filter(|path| group_of(path, id).is_some());
    let readers: Vec<String> = readers.map(|path| path.join(" ")).collect();
    sentence(&id.replace('_', "-"), &readers, path)
}

/// Most commands that a refusal names.
const MAX_NAMED: usize = 4;

fn sentence(option: &str, readers: &[String], path: &[&str]) -> String {
    let mut named = readers[..readers.len().min(MAX_NAMED)].join(", ");
    if readers.len() > MAX_NAMED {
        named += ", ...";
    }
    format!("--{option} is an option of {named}: {} does not read it", path.join(" "))
}

/// The refusal of `option`, which is unknown to the command at `path`, if other commands have it.
pub(super) fn of_others(option: &str, path: &[&str]) -> Option<String> {
    let long = option.strip_prefix("--")?;
    let mut readers = Vec::new();
    find(&definition(true), long, &mut Vec::new(), &mut readers);
    (!readers.is_empty() && !path.is_empty()).then(|| sentence(long, &readers, path))
}

/// Adds the paths of the commands that have the option `long`.
fn find(command: &Command, long: &str, path: &mut Vec<String>, found: &mut Vec<String>) {
    let is_it = |option: &Arg| option.get_long() == Some(long);
    if !path.is_empty() && command.get_arguments().any(is_it) {
        found.push(path.join(" "));
    }
    for inner in command.get_subcommands().filter(|inner| inner.get_name() != "help") {
        path.push(inner.get_name().to_owned());
        find(inner, long, path, found);
        path.pop();
    }
}

/// Commands that read options of some group.
const COMMANDS: &[&[&str]] = &[
    &["serve"],
    &["proxy"],
    &["generate"],
    &["chat"],
    &["demo"],
    &["simulate"],
    &["replay"],
    &["advise"],
    &["theory"],
    &["doctor"],
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
    &["bench", "speculation"],
    &["bench", "structured"],
    &["bench", "flips"],
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::lenient_definition;

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
        let (definition, lenient) = (definition(true), lenient_definition());
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
                let matches = lenient.clone().try_get_matches_from(&arguments).expect("ignored");
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
            "isa" => "portable",
            "compute" => "exact",
            "speculate" => "off",
            "kv_dtype" => "f16",
            "filter" => "bins",
            "initial_length" => "mean",
            "c" | "cpu_strict" => "1",
            _ => "8",
        }
    }
}
