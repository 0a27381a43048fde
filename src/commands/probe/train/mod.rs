//! `trail-rt probe train`: a probe for every layer that is asked for; the best one is written.

mod args;
mod candidate;
mod curve;
mod rank_options;
mod replay;
mod sweep;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};
use trail_cli::{EngineArgs, Error, Output, OutputFile, Table};
use trail_probe::file::Storage;
use trail_probe::{HeadKind, Inputs, Probe, TapLayers};
use trail_training::dataset::SPLIT_SEED;
use trail_training::{Dataset, Recipe, Shard, Trainer};

use super::collections::Collections;
use super::layers::layer_json;
pub use args::TrainArgs;
use candidate::{Candidate, Judged};
use curve::Point;
use rank_options::Trial;
use sweep::{Sweep, Training};

/// Trains, and writes the probe.
pub fn run(engine: &EngineArgs, args: &TrainArgs, json: bool) -> Result<(), Error> {
    let begin = Instant::now();
    let collections = Collections::open(&args.data)?;
    let layers = args.layers.of(&collections.settings().layers)?;
    let shards = collections.read_all()?;
    let longest = collections.settings().max_tokens;
    let variants = args.variants();
    let predictor = args.predictor(&collections.settings().fingerprint)?;
    let out = OutputFile::claim(args.out.clone(), args.force)?;
    let trainings = trainings(&shards, &layers, args, longest)?;
    let state = PathBuf::from(format!("{}.state", args.out.display()));
    let recipes: Vec<Recipe> = variants.iter().map(|of| args.recipe(of.0, longest)).collect();
    let key = format!("{} {recipes:?}", collections.key());
    let mut sweep = Sweep::new(trainings, state.clone(), key)?;
    sweep.run(engine.threads())?;
    let best = |&(kind, inputs): &(HeadKind, Inputs)| sweep.best(kind, inputs);
    let candidate = |trainer: &Trainer<'_>, layer| {
        let probe = Probe {
            model: Some(collections.settings().fingerprint.clone()),
            record: record(&collections, trainer),
            ..Probe::new(trainer.weights(), trainer.recipe().bins, layer)
        };
        Candidate::new(probe, trainer.data())
    };
    let mut candidates: Vec<Candidate> =
        variants.iter().map(best).map(|of| candidate(&of.trainer, of.layer)).collect();
    let judged = candidate::judge(&mut candidates)?;
    let chosen = judged[0].candidate;
    let options = rank_options::compare(&mut candidates[chosen], &shards, predictor.as_ref())?;
    let (mut probe, best) = (candidates.swap_remove(chosen).probe, best(&variants[chosen]));
    rank_options::chosen(&options).set(&mut probe);
    out.write(&probe.to_bytes(Storage::Bf16))?;
    // The probe is written: nothing is left to go on with.
    let _ = fs::remove_file(state);
    let points = match args.curve {
        true => curve::curve(&best.trainer, |trainer| candidate(trainer, best.layer))?,
        false => Vec::new(),
    };
    let (judged, options, points) = (&judged[..], &options[..], &points[..]);
    let report = Report { args, sweep: &sweep, judged, options, points, best };
    let text = match json {
        true => report.json(&probe, begin.elapsed().as_secs_f64()).to_string(),
        false => report.text(),
    };
    Output::stdout().line(&text)
}

/// The outcome of a training.
struct Report<'a> {
    args: &'a TrainArgs,
    sweep: &'a Sweep<'a>,
    /// The written probe's first.
    judged: &'a [Judged],
    /// Options of the rank, the defaults first.
    options: &'a [Trial],
    /// The learning curve, if it was wanted.
    points: &'a [Point],
    best: &'a Training<'a>,
}

impl Report<'_> {
    fn json(&self, probe: &Probe, seconds: f64) -> Value {
        let rows: Vec<Value> = self.sweep.trainings().iter().map(row).collect();
        json!({
            "probe": self.args.out,
            "layer": layer_json(self.best.layer),
            "seed": self.best.seed,
            "record": probe.record,
            "rows": rows,
            "replays": self.judged,
            "rank_options": self.options,
            "chosen": rank_options::chosen(self.options),
            "curve": self.points,
            "seconds": seconds,
        })
    }

    fn text(&self) -> String {
        let (chosen, out) = (&self.judged[0], self.args.out.display());
        let curve = match self.points {
            [] => String::new(),
            points => format!("{}\n{}\n\n", curve::table(points), curve::advice(points)),
        };
        format!(
            "{}\n{}\n{}\n{curve}wrote the probe of layer {}, head {}, inputs {}, {}, to {out}; \
             next: trail-rt probe eval --probe {out}",
            table(self.sweep.trainings()),
            candidate::table(self.judged),
            rank_options::table(self.options),
            self.best.layer,
            chosen.head,
            chosen.inputs,
            rank_options::chosen(self.options),
        )
    }
}

/// A training for each layer, head, inputs and seed.
fn trainings<'a>(
    shards: &'a [Shard],
    layers: &[TapLayers],
    args: &TrainArgs,
    longest: u32,
) -> Result<Vec<Training<'a>>, Error> {
    let mut trainings = Vec::new();
    for &layer in layers {
        // The split is common to all seeds, so that their losses can be compared.
        let data = Dataset::new(shards, &layer.to_vec(), SPLIT_SEED)
            .map_err(|error| Error::failed(error.to_string()))?;
        for (kind, inputs) in args.variants() {
            for seed in args.seeds() {
                let recipe = Recipe { seed, ..args.recipe(kind, longest) };
                let trainer = Trainer::new(data.clone().with_inputs(inputs), recipe);
                trainings.push(Training { layer, kind, seed, trainer });
            }
        }
    }
    Ok(trainings)
}

/// The training record that the probe's file keeps.
fn record(collections: &Collections, trainer: &Trainer<'_>) -> BTreeMap<String, String> {
    let (settings, recipe) = (collections.settings(), trainer.recipe());
    let epoch = trainer.best_epoch();
    let figure = |of: fn(trail_training::Epoch) -> f64| {
        epoch.map_or_else(String::new, |epoch| format!("{:.4}", of(epoch)))
    };
    let entries = [
        ("trained_for", settings.model.clone()),
        ("training_prompts", settings.requests.to_string()),
        ("training_rows", trainer.rows().to_string()),
        ("epochs", epoch.map_or(0, |epoch| epoch.number).to_string()),
        ("batch", recipe.batch.to_string()),
        ("rate", recipe.rate.to_string()),
        ("seed", recipe.seed.to_string()),
        ("validation_loss", figure(|epoch| epoch.loss)),
        ("validation_mae", figure(|epoch| epoch.mae)),
        ("validation_accuracy", figure(|epoch| epoch.accuracy)),
    ];
    entries.map(|(key, value)| (key.to_owned(), value)).into()
}

fn row(training: &Training<'_>) -> Value {
    let best = training.trainer.best_epoch();
    json!({
        "layer": layer_json(training.layer),
        "head": training.kind.name(),
        "inputs": training.trainer.data().inputs().to_string(),
        "seed": training.seed,
        "epochs": training.trainer.epochs().len(),
        "best_epoch": best.map(|epoch| epoch.number),
        "training_loss": best.map(|epoch| epoch.training_loss),
        "loss": best.map(|epoch| epoch.loss),
        "mae": best.map(|epoch| epoch.mae),
        "bin_accuracy": best.map(|epoch| epoch.accuracy),
    })
}

fn table(trainings: &[Training<'_>]) -> Table {
    let mut table = Table::default()
        .group("", &["layer", "head", "inputs", "seed", "epoch"])
        .group("validation", &["loss", "MAE", "accuracy"]);
    for Training { layer, kind, seed, trainer } in trainings {
        let Some(best) = trainer.best_epoch() else { continue };
        table.row([
            layer.to_string(),
            kind.name().to_owned(),
            trainer.data().inputs().to_string(),
            seed.to_string(),
            best.number.to_string(),
            format!("{:.4}", best.loss),
            format!("{:.2}", best.mae),
            format!("{:.4}", best.accuracy),
        ]);
    }
    table
}
