//! `trail-rt probe collect`: answers, and activations of their rows, in shards.
//!
//! In two stages for each shard: the engine answers its prompts ([`trail_setup::drive`]), then the
//! activations of the rows that are wanted are computed ([`Activations`]). A run that was stopped
//! goes on with the first shard that is missing.

mod args;
mod folder;

use std::time::Instant;

use serde_json::json;
use trail_base::Rng;
use trail_base::rng::mix;
use trail_runtime::engine::{Engine, PolicyKind, Request};
use trail_setup::drive::{self, Display, Job};
use trail_setup::{EngineArgs, Error, ModelArgs, Output, Setup, fingerprint, notice, size};
use trail_training::{Answer, Collected};

use super::activations::{Activations, sample_rows};
use crate::prompts::{self, Prompt};
pub use args::CollectArgs;
use folder::{Folder, Settings};

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
    let layers = args.layers(setup.model.config.num_layers)?;
    let prompts = args.selected(prompts::read(&args.prompts, "--prompts")?)?;
    let settings = Settings {
        model: setup.name.clone(),
        fingerprint: fingerprint(&setup.model),
        layers: layers.clone(),
        prompts: args.prompts.display().to_string(),
        first: args.first,
        requests: prompts.len(),
        rows: args.rows,
        max_tokens: args.max_tokens,
        temperature: args.temperature,
        seed: args.seed,
        shard: args.shard,
    };
    let folder = Folder::claim(&args.out, settings)?;
    let missing = folder.missing();
    let collection = Collection { setup: &setup, args, layers: &layers, folder: &folder };
    notice(collection.announcement(prompts.len(), missing.len()));
    if !missing.is_empty() {
        collection.collect(engine, &prompts, &missing)?;
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
struct Collection<'a> {
    setup: &'a Setup,
    args: &'a CollectArgs,
    layers: &'a [usize],
    folder: &'a Folder,
}

impl Collection<'_> {
    /// States what will be done, and the most space that it takes.
    fn announcement(&self, requests: usize, missing: usize) -> String {
        let rows = match self.args.rows {
            0 => self.args.max_tokens as usize,
            rows => rows.min(self.args.max_tokens as usize),
        };
        let width = self.layers.len() * self.setup.model.config.hidden_size * VALUE_BYTES;
        let bytes = requests as u64 * (rows as u64 + 1) * width as u64;
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
        let context = self.setup.model.config.max_context;
        let mut activations = Activations::new(self.setup, engine, self.layers, context)?;
        let engine = self.setup.engine_with(
            &engine.for_throughput(),
            PolicyKind::Fcfs,
            self.args.shard,
            None,
        )?;
        let mut display = Display::new(missing.len());
        for &shard in missing {
            let first = shard * self.args.shard;
            let end = prompts.len().min(first + self.args.shard);
            display.begin(&format!("shard {shard}"), 2 * (end - first));
            let collected =
                self.shard(&engine, &mut activations, &prompts[first..end], &mut display)?;
            self.folder.write(shard, &collected)?;
            display.end();
        }
        display.finish();
        Ok(())
    }

    /// Answers `prompts`, and computes the activations of the answers.
    fn shard(
        &self,
        engine: &Engine,
        activations: &mut Activations,
        prompts: &[(usize, Prompt)],
        display: &mut Display,
    ) -> Result<Collected, Error> {
        let mut jobs = Vec::new();
        for (index, prompt) in prompts {
            match self.request(*index, prompt)? {
                Some(request) => jobs.push((*index, Job { request, arrival_s: 0.0 })),
                None => notice(format_args!("prompt {index} fills the context: left out")),
            }
        }
        let (indices, jobs): (Vec<usize>, Vec<Job>) = jobs.into_iter().unzip();
        let run = drive::on_wall(engine, &jobs, |progress| display.show(progress, engine))?;
        let mut collected = Collected::new(self.layers, self.setup.model.config.hidden_size);
        let mut rng = Rng::new(self.args.seed ^ mix(indices.first().map_or(0, |&i| i as u64)));
        for ((index, job), outcome) in indices.iter().zip(jobs).zip(run.outcomes) {
            let rows = sample_rows(outcome.tokens.len(), self.args.rows, &mut rng);
            let answer = Answer {
                index: *index as u32,
                prompt: job.request.prompt,
                tokens: outcome.tokens,
                stopped: outcome.stopped,
            };
            activations.add(&mut collected, answer, &rows);
            let done = collected.answers().len();
            display.draw(indices.len() + done, |_| format!("activations of {done} answers"));
        }
        Ok(collected)
    }

    /// The request for an answer; `None` if its prompt leaves no room for one.
    fn request(&self, index: usize, prompt: &Prompt) -> Result<Option<Request>, Error> {
        let mut request = prompt.request(self.setup, index, self.args.max_tokens)?;
        let room = self.setup.model.config.max_context.saturating_sub(request.prompt.len());
        request.max_tokens = request.max_tokens.min(room as u32);
        request.sampling.temperature = self.args.temperature;
        request.sampling.seed ^= self.args.seed;
        Ok((room > 0).then_some(request))
    }
}
