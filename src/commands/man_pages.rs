//! `trail-rt man-pages`: the manual, a page for each command.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use serde_json::json;
use trail_cli::{Error, Output};

/// Options of `trail-rt man-pages`.
#[derive(Args, Debug)]
pub struct ManPagesArgs {
    /// Folder of the pages, which is made if it is not there
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

/// Writes the pages of `definition`, and prints their paths.
pub fn run(args: &ManPagesArgs, definition: &Command, json: bool) -> Result<(), Error> {
    let unwritable = |error| {
        let folder = args.folder.display();
        Error::failed(format!("cannot write to {folder}: {error}; give another folder"))
    };
    fs::create_dir_all(&args.folder).map_err(unwritable)?;
    let mut pages = Vec::new();
    write(definition, &args.folder, &mut pages).map_err(unwritable)?;
    let mut output = Output::stdout();
    match json {
        true => output.line(&json!({ "pages": pages }).to_string()),
        false => pages.iter().try_for_each(|page| output.line(&page.display().to_string())),
    }
}

/// Writes the page of `command` and those below it.
fn write(command: &Command, folder: &Path, pages: &mut Vec<PathBuf>) -> std::io::Result<()> {
    pages.push(Man::new(command.clone()).generate_to(folder)?);
    let is_shown = |inner: &&Command| inner.get_name() != "help" && !inner.is_hide_set();
    command.get_subcommands().filter(is_shown).try_for_each(|inner| write(inner, folder, pages))
}
