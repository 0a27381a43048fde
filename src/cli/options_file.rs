//! Options of `serve` from a file (`--config`) and from the environment.
//!
//! Both become arguments before the command line's own, so one parser reads all of them. The
//! command line wins over the environment, which wins over the file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};
use toml::{Spanned, Value};
use trail_cli::{Error, notice};

use super::{definition, one_line};

/// Largest file of options, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Beginnings of `TRAIL_` variables that are no options of `serve`: those of the tests and scripts,
/// and those that Kubernetes sets for a service named trail-rt.
const OTHER_VARIABLES: [&str; 14] = [
    "CHAOS_",
    "CUDA_WHEELS",
    "DYNAMO_",
    "EMU_",
    "FETCH",
    "GGUF_",
    "MINILM",
    "MUTANT",
    "PROOFS",
    "RT",
    "SWEEP",
    "TEST_",
    "THEORY_",
    "TOOLS",
];

/// One option, from a file or the environment.
struct Setting {
    /// The option's id.
    id: String,
    /// The argument; `None` for a flag that is off.
    argument: Option<String>,
}

/// Returns `arguments` with the options of the environment and of the file before their own, if
/// they request `serve`.
pub(super) fn complete(arguments: &[OsString]) -> Result<Vec<OsString>, Error> {
    let Ok(matches) = definition(true).try_get_matches_from(arguments) else {
        // The parser says what is wrong.
        return Ok(arguments.to_vec());
    };
    let levels: Vec<&ArgMatches> = match matches.subcommand() {
        None => vec![&matches],
        Some(("serve", serve)) => vec![&matches, serve],
        Some(_) => return Ok(arguments.to_vec()),
    };
    let is_given = |id: &str| {
        levels.iter().any(|level| level.value_source(id) == Some(ValueSource::CommandLine))
    };
    let mut settings = of_environment(std::env::vars_os())?;
    let named = levels.iter().find_map(|level| level.get_one::<PathBuf>("config")).cloned();
    let variable = settings.iter().find(|setting| setting.id == "config");
    let variable = variable.and_then(|setting| setting.argument.as_ref()?.split_once('='));
    if let Some(path) = named.or(variable.map(|(_, path)| path.into())) {
        let known: Vec<String> = settings.iter().map(|setting| setting.id.clone()).collect();
        let file = of_file(&path)?.into_iter();
        settings.extend(file.filter(|setting| !known.contains(&setting.id)));
    }
    settings.retain(|setting| !is_given(&setting.id));
    let (program, own) = arguments.split_first().ok_or_else(|| Error::usage("no arguments"))?;
    let others = settings.into_iter().filter_map(|setting| setting.argument).map(OsString::from);
    Ok([program.clone()].into_iter().chain(others).chain(own.iter().cloned()).collect())
}

/// Options of `serve` by their long names.
fn options() -> BTreeMap<String, Arg> {
    let definition = definition(true);
    let serve = definition.find_subcommand("serve").expect("a command of this program");
    let others = ["help", "help-all", "version"];
    let longs = serve.get_arguments().filter_map(|option| Some((option.get_long()?, option)));
    let longs = longs.filter(|(long, _)| !others.contains(long));
    longs.map(|(long, option)| (long.to_owned(), option.clone())).collect()
}

/// The settings of the variables `TRAIL_*`. Empty ones are not set.
fn of_environment(
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<Setting>, Error> {
    let options = options();
    let mut settings = Vec::new();
    for (variable, value) in variables {
        let Some(variable) = variable.to_str() else { continue };
        let Some(name) = variable.strip_prefix("TRAIL_") else { continue };
        let Some(option) = options.get(&name.to_lowercase().replace('_', "-")) else {
            if !OTHER_VARIABLES.iter().any(|other| name.starts_with(other)) {
                notice(format_args!("warning: {variable} is no option of serve: not used"));
            }
            continue;
        };
        let text = value.to_str();
        let text = text.ok_or_else(|| Error::usage(format!("{variable} is no UTF-8")))?;
        if !text.is_empty() {
            settings.push(setting(variable, option, text)?);
        }
    }
    Ok(settings)
}

/// The settings of the file at `path`.
fn of_file(path: &Path) -> Result<Vec<Setting>, Error> {
    let shown = path.display();
    let unreadable = |error| Error::usage(format!("cannot read {shown}: {error}"));
    let mut text = String::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::usage(format!("{shown} has more than {MAX_BYTES} bytes")));
    }
    let line = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let keys: BTreeMap<Spanned<String>, Value> = toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Error::usage(format!("{shown}, line {}: {}", line(at), one_line(error.message())))
    })?;
    let options = options();
    let mut settings = Vec::new();
    for (key, value) in keys {
        let source = format!("{shown}, line {}", line(key.span().start));
        let key = key.get_ref();
        let option = options.get(key).filter(|option| option.get_id() != "config");
        let option = option.ok_or_else(|| {
            Error::usage(format!(
                "{source}: there is no option {key}; see trail-rt serve --help-all"
            ))
        })?;
        let text = match value {
            Value::String(text) => text,
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Boolean(flag) => flag.to_string(),
            other => {
                let kind = other.type_str();
                let expected = "a string, a number or a boolean";
                return Err(Error::usage(format!(
                    "{source}: {key} is of type {kind}: give {expected}"
                )));
            }
        };
        settings.push(setting(&source, option, &text)?);
    }
    Ok(settings)
}

/// The setting of `option` to `text`, checked by the option's own parser.
fn setting(source: &str, option: &Arg, text: &str) -> Result<Setting, Error> {
    let (id, long) = (option.get_id().to_string(), option.get_long().unwrap_or_default());
    let argument = match (option.get_action().takes_values(), text.to_lowercase().as_str()) {
        (true, _) => Some(format!("--{long}={text}")),
        (false, "true" | "1" | "yes" | "on") => Some(format!("--{long}")),
        (false, "false" | "0" | "no" | "off") => None,
        (false, _) => {
            return Err(Error::usage(format!("{source}: {long} is '{text}': give true or false")));
        }
    };
    let alone = ["trail-rt"].into_iter().chain(argument.as_deref());
    match definition(true).try_get_matches_from(alone) {
        // An option that it needs may be set elsewhere.
        Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => {
            Err(Error::usage(format!("{source}: {}", one_line(&error.to_string()))))
        }
        _ => Ok(Setting { id, argument }),
    }
}
