//! Options of `serve` from a file (`--config`) and from the environment.
//!
//! Both become arguments beside the command line's own, so one parser reads everything. The
//! command line wins over the environment, which wins over the file.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use toml::{Spanned, Value};
use trail_cli::{Error, notice};

use super::{definition, one_line};

/// Largest file of options, bytes.
const MAX_BYTES: u64 = 1 << 20;

/// Beginnings of `TRAIL_` variables that are no options of `serve`: those of the tests and scripts,
/// that of `proxy`, and those that Kubernetes sets for a service named trail or trail-rt.
const OTHER_VARIABLES: [&str; 17] = [
    "CHAOS_",
    "CUDA_WHEELS",
    "DYNAMO_",
    "EMU_",
    "FETCH",
    "GGUF_",
    "MINILM",
    "MUTANT",
    "PORT_",
    "PROOFS",
    "RT",
    "SERVICE_",
    "SWEEP",
    "TEST_",
    "THEORY_",
    "TOOLS",
    "UPSTREAM_KEY",
];

/// One option, from a file or the environment.
struct Setting {
    /// The option's id.
    id: String,
    /// The argument; `None` for a flag that is off.
    argument: Option<String>,
}

/// Returns `arguments` with the options of the environment's `variables` and of the file, if they
/// request `serve`.
pub(super) fn complete(
    arguments: &[OsString],
    variables: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<OsString>, Error> {
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
    let mut settings = of_environment(variables)?;
    let named = levels.iter().find_map(|level| level.get_one::<PathBuf>("config")).cloned();
    let variable = settings.iter().find(|setting| setting.id == "config");
    let variable = variable.and_then(|setting| setting.argument.as_ref()?.split_once('='));
    if let Some(path) = named.or(variable.map(|(_, path)| path.into())) {
        let known: Vec<String> = settings.iter().map(|setting| setting.id.clone()).collect();
        let file = of_file(&path)?.into_iter();
        settings.extend(file.filter(|setting| !known.contains(&setting.id)));
    }
    settings.retain(|setting| !is_given(&setting.id));
    // Behind the command's name, where the parser sees what needs or excludes what.
    let end = arguments.iter().position(|argument| argument == "--").unwrap_or(arguments.len());
    let (own, rest) = arguments.split_at(end);
    let others = settings.into_iter().filter_map(|setting| setting.argument).map(OsString::from);
    Ok(own.iter().cloned().chain(others).chain(rest.iter().cloned()).collect())
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
        match text.is_empty() {
            false => settings.push(setting(variable, option, text)?),
            // As where a secret is missing.
            true if variable == "TRAIL_API_KEY" => {
                notice(format_args!("warning: {variable} is empty: it is not used"));
            }
            true => {}
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
            Error::usage(format!("{source}: there is no option {key} (serve --help-all has all)"))
        })?;
        let value = match value {
            Value::Array(items) if matches!(option.get_action(), ArgAction::Append) => {
                for item in &items {
                    let text = item.as_str().ok_or_else(|| {
                        Error::usage(format!("{source}: {key}: give an array of strings"))
                    })?;
                    settings.push(setting(&source, option, text)?);
                }
                continue;
            }
            value => value,
        };
        let text = match (value, kind(option)) {
            (Value::String(text), Kind::Text) => text,
            (Value::Integer(number), Kind::Number | Kind::Switch) => number.to_string(),
            (Value::Float(number), Kind::Number) => number.to_string(),
            (Value::Boolean(flag), Kind::Flag) => flag.to_string(),
            (Value::Boolean(flag), Kind::Switch) => u8::from(flag).to_string(),
            (other, kind) => {
                let (found, expected) = (other.type_str(), kind.expected());
                let why = format!("{source}: {key}: {found} found, give {expected}");
                return Err(Error::usage(why));
            }
        };
        settings.push(setting(&source, option, &text)?);
    }
    Ok(settings)
}

/// The form of an option's value in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Given or not.
    Flag,
    /// 0 or 1.
    Switch,
    Number,
    Text,
}

impl Kind {
    fn expected(self) -> &'static str {
        match self {
            Kind::Flag => "true or false",
            Kind::Switch => "0 or 1",
            Kind::Number => "a number",
            Kind::Text => "a string",
        }
    }
}

fn kind(option: &Arg) -> Kind {
    let value = option.get_value_parser().type_id();
    let is_number = value == TypeId::of::<u16>()
        || value == TypeId::of::<u32>()
        || value == TypeId::of::<u64>()
        || value == TypeId::of::<usize>()
        || value == TypeId::of::<f32>();
    match option.get_action().takes_values() {
        false => Kind::Flag,
        true if value == TypeId::of::<bool>() => Kind::Switch,
        true if is_number => Kind::Number,
        true => Kind::Text,
    }
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
            let hint = match text.starts_with("tcp://") {
                true => {
                    " (Kubernetes sets it for a service named trail: enableServiceLinks: false)"
                }
                false => "",
            };
            Err(Error::usage(format!("{source}: {}{hint}", one_line(&error.to_string()))))
        }
        _ => Ok(Setting { id, argument }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The arguments that the parser gets, or the refusal, with `text` as the file of options.
    fn completed(text: &str, variables: &[(&str, &str)], own: &[&str]) -> Result<String, String> {
        let folder = std::env::temp_dir().join(format!("trail-options-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let file = folder.join(format!("{:?}.toml", std::thread::current().id()));
        std::fs::write(&file, text).expect("a file");
        let config = format!("--config={}", file.display());
        let own = ["trail-rt", &config].into_iter().chain(own.iter().copied());
        let own: Vec<OsString> = own.map(OsString::from).collect();
        let variables = variables.iter().map(|&(name, value)| (name.into(), value.into()));
        let all = complete(&own, variables).map_err(|error| error.to_string())?;
        let all: Vec<&str> = all.iter().filter_map(|argument| argument.to_str()).collect();
        Ok(all.into_iter().filter(|&argument| argument != config).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn the_command_line_wins_over_the_environment_over_the_file() {
        let file = "port = 1\nmax-running = 3\nverbose = true\nprefill-weight = 0.5\n";
        let variables = [("TRAIL_PORT", "2"), ("TRAIL_VERBOSE", "no"), ("TRAIL_HOST", "")];
        let from_file = "trail-rt --max-running=3 --port=1 --prefill-weight=0.5 --verbose";
        assert_eq!(completed(file, &[], &[]).as_deref(), Ok(from_file));
        let expected = "trail-rt --port=2 --max-running=3 --prefill-weight=0.5";
        assert_eq!(completed(file, &variables, &[]).as_deref(), Ok(expected));
        let expected = "trail-rt serve --port 4 --max-running=3 --prefill-weight=0.5";
        let own = ["serve", "--port", "4"];
        assert_eq!(completed(file, &variables, &own).as_deref(), Ok(expected));
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        for (file, variables, says) in [
            ("port = 1\nprot = 2", &[][..], "line 2: there is no option prot"),
            ("config = \"x\"", &[], "line 1: there is no option config"),
            ("\nmax_running = 2", &[], "line 2: there is no option max_running"),
            ("port = \"8\"", &[], "line 1: port: string found, give a number"),
            ("port = 70000", &[], "line 1: invalid value '70000' for '--port <PORT>'"),
            (
                "served-model-name = 5",
                &[],
                "line 1: served-model-name: integer found, give a string",
            ),
            ("port = [1]", &[], "line 1: port: array found, give a number"),
            ("verbose = 3", &[], "line 1: verbose: integer found, give true or false"),
            ("port = 1\nport = 2", &[], "line 2: duplicate key"),
            ("port =", &[], "line 1: "),
            ("", &[("TRAIL_PORT", "tcp://10.0.0.1:80")], "TRAIL_PORT: invalid value 'tcp://"),
            ("", &[("TRAIL_VERBOSE", "maybe")], "TRAIL_VERBOSE: verbose is 'maybe'"),
        ] {
            let error = completed(file, variables, &[]).expect_err(file);
            assert!(error.contains(says), "{file}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }

    #[test]
    fn other_commands_have_no_file() {
        let arguments: Vec<OsString> = ["trail-rt", "doctor"].map(OsString::from).to_vec();
        let variables = [("TRAIL_PORT".into(), "none".into())].into_iter();
        assert_eq!(complete(&arguments, variables).ok(), Some(arguments));
    }
}
