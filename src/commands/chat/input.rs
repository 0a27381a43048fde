//! Messages to the model, and commands of the chat.

use std::path::PathBuf;

use trail_cli::Error;

/// The commands, for /help.
pub const HELP: &str = "\
/system TEXT   set the system message; without TEXT remove it
/retry         answer the last message again
/clear         begin a new conversation; the system message stays
/save FILE     write the conversation as JSON; --force behind it replaces another file
/stats         tokens/s, time to first token, context used
/help          this list
/exit          leave, as Ctrl-D does
Ctrl-C stops an answer. A line that ends with \\ continues in the next one; \"\"\" begins and ends a
message of several lines. A message that begins with / is typed with // instead.";

/// One input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// A message to the model.
    Message(String),
    /// /help
    Help,
    /// /system; empty to remove the system message.
    System(String),
    /// /retry
    Retry,
    /// /clear
    Clear,
    /// /save
    Save {
        /// The file.
        path: PathBuf,
        /// Replaces a file of another origin.
        force: bool,
    },
    /// /stats
    Stats,
    /// /exit
    Exit,
}

impl Input {
    /// Reads a message or command.
    pub fn parse(text: String) -> Result<Input, Error> {
        let Some(command) = text.strip_prefix('/') else { return Ok(Input::Message(text)) };
        if command.starts_with('/') {
            return Ok(Input::Message(command.to_owned()));
        }
        let (name, rest) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let rest = rest.trim();
        let alone = |input: Input| match rest {
            "" => Ok(input),
            _ => Err(Error::usage(format!("/{name} takes nothing behind it: leave {rest:?} out"))),
        };
        match name {
            "help" => alone(Input::Help),
            "system" => Ok(Input::System(rest.to_owned())),
            "retry" => alone(Input::Retry),
            "clear" => alone(Input::Clear),
            "save" => save(rest),
            "stats" => alone(Input::Stats),
            "exit" | "quit" => alone(Input::Exit),
            _ => Err(Error::usage(format!(
                "there is no command /{name}: /help lists them, and // begins a message with /"
            ))),
        }
    }
}

fn save(rest: &str) -> Result<Input, Error> {
    let forced = rest.strip_suffix("--force").filter(|path| path.ends_with(char::is_whitespace));
    let path = forced.unwrap_or(rest).trim();
    match path {
        "" | "--force" => Err(Error::usage("/save needs a file: /save FILE")),
        path => Ok(Input::Save { path: path.into(), force: forced.is_some() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Input, String> {
        Input::parse(text.into()).map_err(|error| error.to_string())
    }

    #[test]
    fn commands_begin_with_a_slash() {
        let save = |path: &str, force| Ok(Input::Save { path: path.into(), force });
        for (text, expected) in [
            ("hi /help", Ok(Input::Message("hi /help".into()))),
            ("//etc/hosts", Ok(Input::Message("/etc/hosts".into()))),
            ("/help", Ok(Input::Help)),
            ("/quit", Ok(Input::Exit)),
            ("/system  Be brief.\nAnd kind.", Ok(Input::System("Be brief.\nAnd kind.".into()))),
            ("/system", Ok(Input::System(String::new()))),
            ("/save a b.json", save("a b.json", false)),
            ("/save a.json --force", save("a.json", true)),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
        for (text, says) in [
            ("/retry now", "/retry takes nothing"),
            ("/save", "/save FILE"),
            ("/save --force", "/save FILE"),
            ("/frob", "no command /frob"),
            ("/", "no command /"),
        ] {
            let error = parse(text).expect_err("refused");
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
