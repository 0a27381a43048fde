//! `trail-rt probe collect`: answers, and activations of their rows, in shards.
//!
//! In two stages for each shard: the engine answers its prompts, then the
//! activations of the rows that are wanted are computed ([`super::activations`]). A run that was
//! stopped goes on with the first shard that is missing.

mod args;

use std::time::Instant;

use serde_json::json;
use trail_cli::drive::Display;
use trail_cli::{EngineArgs, Error, ModelArgs, Output, Setup, fingerprint, notice, size};

use super::answers::Answering;
use super::collection::{Collection, Settings};
use crate::prompts::{self, Prompt};
pub use args::CollectArgs;

/// Bytes of an activation's value in a shard.
const VALUE_BYTES: usize = 2;

/// Collects the shards that are missing.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &CollectArgs,
    json: bool,
) -> Result<(), Error> {
    let begin = Instant::now();
    let setup = Setup::load(model)?;
    let present: Vec<usize> = (0..setup.model.config.num_layers).collect();
    let layers = args.layers.each_of(&present)?;
    let prompts = prompts::read(&args.prompts, "--prompts")?;
    let prompts = args.answers.selected(&args.prompts, prompts, args.requests)?;
    let settings = Settings {
        model: setup.name.clone(),
        fingerprint: fingerprint(&setup.model),
        layers: layers.clone(),
        prompts: args.prompts.display().to_string(),
        first: args.answers.first,
        requests: prompts.len(),
        rows: args.rows as usize,
        max_tokens: args.answers.max_tokens,
        temperature: args.answers.temperature,
        seed: args.answers.seed,
        shard: args.shard,
    };
    let folder = Collection::claim(&args.out, settings)?;
    let missing = folder.missing();
    let run = Run { setup: &setup, args, layers: &layers, folder: &folder };
    notice(run.announcement(prompts.len(), missing.len()));
    if !missing.is_empty() {
        run.collect(engine, &prompts, &missing)?;
    }
    let (rows, answers, tokens, stopped) = folder.totals()?;
    let report = json!({
        "folder": folder.path(),
        "shards": folder.shards(),
        "answers": answers,
        "stopped_by_themselves": stopped,
        "tokens": tokens,
        "rows": rows,
        "layers": layers,
        "seconds": begin.elapsed().as_secs_f64(),
    });
    let text = format!(
        "{}: {answers} answers ({stopped} ended by themselves), {tokens} tokens, {rows} rows of {} \
         layers in {} shards; next: trail-rt probe train --data {}",
        folder.path().display(),
        layers.len(),
        folder.shards(),
        folder.path().display()
    );
    Output::stdout().line(&if json { report.to_string() } else { text })
}

/// A run of the command.
struct Run<'a> {
    setup: &'a Setup,
    args: &'a CollectArgs,
    layers: &'a [usize],
    folder: &'a Collection,
}

impl Run<'_> {
    /// States what will be done, and the most space that it takes.
    fn announcement(&self, requests: usize, missing: usize) -> String {
        let rows = match self.args.rows {
            0 => self.args.answers.max_tokens,
            rows => rows.min(self.args.answers.max_tokens),
        };
        let width = self.layers.len() * self.setup.model.config.hidden_size * VALUE_BYTES;
        let bytes = requests as u64 * (u64::from(rows) + 1) * width as u64;
        format!(
            "{requests} prompts, {} layers: at most {} in {}; {missing} of {} shards are missing",
            self.layers.len(),
            size(bytes),
            self.folder.path().display(),
            self.folder.shards()
        )
    }

    fn collect(
        &self,
        engine: &EngineArgs,
        prompts: &[(usize, Prompt)],
        missing: &[usize],
    ) -> Result<(), Error> {
        let CollectArgs { answers, shard: size, rows, .. } = self.args;
        let mut answering = Answering::new(self.setup, engine, answers, self.layers, *size)?;
        let mut display = Display::new(missing.len());
        for &shard in missing {
            let first = shard * size;
            let prompts = &prompts[first..prompts.len().min(first + size)];
            display.begin(&format!("shard {shard}"), 2 * prompts.len());
            let collected = answering.answer(prompts, *rows as usize, &mut display)?;
            self.folder.write(shard, &collected)?;
            display.end();
        }
        display.finish();
        Ok(())
    }
}
