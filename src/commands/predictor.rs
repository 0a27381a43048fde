//! `trail-rt predictor`: the predictor of an answer's length from its prompt's tokens.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use trail_probe::Bins;
use trail_probe::file::Storage;
use trail_setup::{Error, ModelArgs, Output, OutputFile, Setup, fingerprint};
use trail_training::bag_of_tokens::{self, Prompt};
use trail_training::dataset::is_validation;

use super::probe::collection::Collection;

/// Options of `trail-rt predictor`.
#[derive(Args, Debug)]
pub struct PredictorArgs {
    #[command(subcommand)]
    part: Part,
}

/// The parts.
#[derive(Subcommand, Debug)]
enum Part {
    /// Train on the prompts and answers that trail-rt probe collect made
    Train(TrainArgs),
}

/// Options of `trail-rt predictor train`.
#[derive(Args, Debug)]
struct TrainArgs {
    /// Folder that trail-rt probe collect made, of the model that --model names
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// File for the predictor
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Seed of the split, the same as the probe's, and of the order of prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Replace a file of another origin
    #[arg(long)]
    force: bool,
}

/// Runs the part that is named.
pub fn run(model: &ModelArgs, args: &PredictorArgs, json: bool) -> Result<(), Error> {
    let Part::Train(args) = &args.part;
    train(model, args, json)
}

fn train(model: &ModelArgs, args: &TrainArgs, json: bool) -> Result<(), Error> {
    let setup = Setup::load(model)?;
    let collection = Collection::open(&args.data)?;
    let settings = collection.settings();
    if settings.fingerprint != fingerprint(&setup.model) {
        return Err(Error::usage(format!(
            "{} was collected from {}, and --model is another model: give the same",
            args.data.display(),
            settings.model
        )));
    }
    let vocab = setup.model.config.vocab_size;
    let (training, validation) = prompts(&collection, vocab, args.seed)?;
    if training.is_empty() || validation.is_empty() {
        return Err(Error::failed(format!(
            "{} has {} prompts to train on and {} to validate: collect more",
            args.data.display(),
            training.len(),
            validation.len()
        )));
    }
    let out = OutputFile::claim(args.out.clone(), args.force)?;
    let bins = Bins::equal(10, settings.max_tokens.max(10));
    let trained = bag_of_tokens::train(bins, vocab, &training, &validation, args.seed);
    let record = [
        ("trained_for", settings.model.clone()),
        ("training_prompts", training.len().to_string()),
        ("epochs", trained.epochs.to_string()),
        ("rate", trained.rate.to_string()),
        ("validation_loss", format!("{:.4}", trained.loss)),
    ]
    .map(|(key, value)| (key.to_owned(), value));
    let record = BTreeMap::from(record);
    let mut predictor = trained.predictor;
    predictor.model = Some(settings.fingerprint.clone());
    predictor.record = record.clone();
    fs::write(out.path(), predictor.to_bytes(Storage::Bf16))
        .map_err(|error| Error::failed(format!("cannot write {}: {error}", args.out.display())))?;
    let text = match json {
        true => json!({ "predictor": args.out, "record": record }).to_string(),
        false => format!(
            "wrote {}: {} prompts, validation loss {:.4} after {} passes at rate {}",
            args.out.display(),
            training.len(),
            trained.loss,
            trained.epochs,
            trained.rate
        ),
    };
    Output::stdout().line(&text)
}

/// The prompts of `collection` to train on, and those of the validation.
fn prompts(
    collection: &Collection,
    vocab: usize,
    seed: u64,
) -> Result<(Vec<Prompt>, Vec<Prompt>), Error> {
    let (mut training, mut validation) = (Vec::new(), Vec::new());
    for shard in collection.read_all()? {
        for answer in shard.answers() {
            if answer.prompt.iter().any(|&id| id as usize >= vocab) {
                return Err(Error::failed(format!(
                    "{} has a token id that the model has not: collect it again",
                    shard.name()
                )));
            }
            let prompt = Prompt::new(&answer.prompt, answer.tokens.len() as u32);
            match is_validation(answer.index, seed) {
                true => validation.push(prompt),
                false => training.push(prompt),
            }
        }
    }
    Ok((training, validation))
}
