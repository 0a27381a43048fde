//! `trail-rt completions`: a shell's completion of the command line.

use clap::{Args, Command};
use clap_complete::Shell;
use serde_json::json;
use trail_cli::{Error, Output};

/// The long help.
pub const ABOUT: &str = "\
Print a shell's completion of commands and options

bash, for one user:  trail-rt completions bash > ~/.local/share/bash-completion/completions/trail-rt
zsh:                 trail-rt completions zsh > _trail-rt, in a folder of $fpath
fish:                trail-rt completions fish > ~/.config/fish/completions/trail-rt.fish";

/// Options of `trail-rt completions`.
#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Prints the completion of `definition`.
pub fn run(args: &CompletionsArgs, mut definition: Command, json: bool) -> Result<(), Error> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut definition, "trail-rt", &mut script);
    let script = String::from_utf8(script).expect("the definition is UTF-8");
    // clap_complete 4.6 writes the dash of the program's name in two ways in bash's script, so that
    // no subcommand was found.
    let script = script.replace("trail__subcmd__rt", "trail__rt");
    if json {
        let object = json!({ "shell": args.shell.to_string(), "script": script });
        return Output::stdout().line(&object.to_string());
    }
    Output::stdout().write(&script).map(drop)
}
