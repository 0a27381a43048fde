//! `trail-rt predictor train`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use serde_json::json;
use trail_cli::{Embedder, Error, ModelArgs, Output, OutputFile, Setup};
use trail_probe::file::Storage;
use trail_probe::predictor::{Features, Pooling};
use trail_probe::{Bins, MAX_BINS};
use trail_training::dataset::{SPLIT_SEED, is_validation};
use trail_training::evaluation::PromptOnly;
use trail_training::objective::Objective;
use trail_training::predictor::{Example, Recipe, Trained, train};

use super::prompts;
use crate::commands::probe::collections::Collections;

/// Options of `trail-rt predictor train`.
#[derive(Args, Debug)]
pub struct TrainArgs {
    /// Folder that trail-rt probe collect made, of the model that --model names; given again, the
    /// answers of all are taken
    #[arg(long, value_name = "DIR", required = true)]
    data: Vec<PathBuf>,
    /// File for the predictor
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Inputs: bag-of-tokens, prompt-length, or encoder:DIR, the embedding of the prompt's text by
    /// a BERT, DistilBERT, BGE or MiniLM in a Hugging Face folder
    #[arg(long, value_name = "NAME", default_value = "bag-of-tokens")]
    features: FeaturesName,
    /// Loss: cross-entropy of the bin (TRAIL), l1 or mse of the length (ELIS), or listmle of the
    /// order (Learning to Rank)
    #[arg(long, value_name = "NAME", value_enum, default_value_t = ObjectiveName::CrossEntropy)]
    objective: ObjectiveName,
    /// cross-entropy: bins of equal width over the longest answer
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = bins)]
    bins: u32,
    /// listmle: tokens of a label; lengths of one label are put into a random order
    #[arg(long, value_name = "TOKENS", default_value_t = 10, value_parser = bucket)]
    bucket: u32,
    /// Hidden layers of an encoder's head, as UNITS or UNITSxLAYERS: 768 is TRAIL's classifier,
    /// 1024x7 ELIS's eight layers; 0 for none
    #[arg(long, value_name = "LAYERS", default_value = "0")]
    hidden: Hidden,
    /// Tokens of an encoder's output that make the embedding
    #[arg(long, value_name = "TOKENS", value_enum, default_value_t = PoolingName::Mean)]
    pooling: PoolingName,
    /// Seed of the order of prompts
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Replace a file of another origin
    #[arg(long)]
    force: bool,
}

/// A value of `--features`.
#[derive(Clone, Debug)]
enum FeaturesName {
    BagOfTokens,
    PromptLength,
    Encoder(PathBuf),
}

impl FromStr for FeaturesName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "bag-of-tokens" => Ok(FeaturesName::BagOfTokens),
            "prompt-length" => Ok(FeaturesName::PromptLength),
            _ => match text.strip_prefix("encoder:").filter(|folder| !folder.is_empty()) {
                Some(folder) => Ok(FeaturesName::Encoder(folder.into())),
                None => Err("give bag-of-tokens, prompt-length or encoder:DIR".into()),
            },
        }
    }
}

/// Values of `--objective`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ObjectiveName {
    CrossEntropy,
    L1,
    Mse,
    #[value(name = "listmle")]
    ListMle,
}

/// Values of `--pooling`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PoolingName {
    Cls,
    Mean,
}

/// A value of `--hidden`: units and layers.
#[derive(Clone, Copy, Debug)]
struct Hidden {
    units: usize,
    layers: usize,
}

impl FromStr for Hidden {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (units, layers) = text.split_once('x').unwrap_or((text, "1"));
        match (units.parse(), layers.parse()) {
            (Ok(0), Ok(1)) => Ok(Hidden { units: 0, layers: 0 }),
            (Ok(units @ 1..=8192), Ok(layers @ 1..=16)) => Ok(Hidden { units, layers }),
            _ => Err("give UNITS or UNITSxLAYERS, up to 8192x16, or 0".into()),
        }
    }
}

fn bins(text: &str) -> Result<u32, String> {
    let bins = text.parse().ok().filter(|bins| (1..=MAX_BINS as u32).contains(bins));
    bins.ok_or_else(|| format!("give a number from 1 to {MAX_BINS}"))
}

fn bucket(text: &str) -> Result<u32, String> {
    let tokens = text.parse().ok().filter(|tokens| *tokens > 0);
    tokens.ok_or_else(|| "give a number from 1 on".into())
}

/// Trains, and writes the file.
pub fn run(model: &ModelArgs, args: &TrainArgs, json: bool) -> Result<(), Error> {
    if args.hidden.layers > 0 && !matches!(args.features, FeaturesName::Encoder(_)) {
        return Err(Error::usage(
            "--hidden is for an encoder's head: give --features encoder:DIR, or leave it out",
        ));
    }
    let setup = Setup::load(model)?;
    let collections = prompts::open(&args.data, &setup)?;
    let settings = collections.settings();
    let has_bins = args.objective == ObjectiveName::CrossEntropy;
    if has_bins && settings.max_tokens < args.bins {
        return Err(Error::usage(format!(
            "--bins is {}, the answers have at most {} tokens: give fewer",
            args.bins, settings.max_tokens
        )));
    }
    let out = OutputFile::claim(args.out.clone(), args.force)?;
    let (features, training, validation) = examples(args, &setup, &collections)?;
    let recipe = Recipe {
        objective: objective(args, settings.max_tokens, &training),
        features,
        hidden: args.hidden.units,
        layers: args.hidden.layers,
        seed: args.seed,
    };
    let mut trained = train(&recipe, &training, &validation);
    let figures = figures(&trained, &validation);
    let record = record(&recipe, &trained, &figures, training.len(), settings.model.clone());
    trained.predictor.model = Some(settings.fingerprint.clone());
    trained.predictor.record = record.clone();
    out.write(&trained.predictor.to_bytes(Storage::Bf16))?;
    let text = match json {
        true => {
            let curve: Vec<_> = trained.curve.iter().map(|of| [of.loss, of.tau_b]).collect();
            let report = json!({
                "predictor": args.out,
                "record": record,
                "loss_and_tau_b": curve,
                "correlation": correlation(&curve),
            });
            report.to_string()
        }
        false => format!(
            "wrote {}: {} prompts, {} over {}, validation loss {:.4} after {} passes at rate {}; \
             total length off by {:.1} tokens, tau-b {:.3}",
            args.out.display(),
            training.len(),
            recipe.objective.name(),
            recipe.features.name(),
            trained.loss,
            trained.epochs,
            trained.setting.rate,
            figures.mae,
            figures.tau_b
        ),
    };
    Output::stdout().line(&text)
}

/// Pearson's correlation of two columns; `None` where one does not vary.
fn correlation(rows: &[[f64; 2]]) -> Option<f64> {
    let count = rows.len() as f64;
    let mean = |at: usize| rows.iter().map(|row| row[at]).sum::<f64>() / count;
    let means = [mean(0), mean(1)];
    let sum = |a: usize, b: usize| -> f64 {
        rows.iter().map(|row| (row[a] - means[a]) * (row[b] - means[b])).sum()
    };
    let norm = (sum(0, 0) * sum(1, 1)).sqrt();
    (norm > 0.0).then(|| sum(0, 1) / norm)
}

/// The loss that `args` name.
fn objective(args: &TrainArgs, max_tokens: u32, training: &[Example]) -> Objective {
    let sum: f64 = training.iter().map(|example| f64::from(example.tokens)).sum();
    let unit = sum / training.len() as f64;
    match args.objective {
        ObjectiveName::CrossEntropy => {
            Objective::CrossEntropy(Box::new(Bins::equal(args.bins as usize, max_tokens)))
        }
        ObjectiveName::L1 => Objective::L1 { unit },
        ObjectiveName::Mse => Objective::Mse { unit },
        ObjectiveName::ListMle => Objective::ListMle { bucket: args.bucket },
    }
}

/// The features, and the prompts to train on and of the validation.
fn examples(
    args: &TrainArgs,
    setup: &Setup,
    collections: &Collections,
) -> Result<(Features, Vec<Example>, Vec<Example>), Error> {
    let vocab = setup.model.config.vocab_size;
    let (features, embedder) = match &args.features {
        FeaturesName::BagOfTokens => (Features::BagOfTokens { vocab }, None),
        FeaturesName::PromptLength => (Features::PromptLength, None),
        FeaturesName::Encoder(folder) => {
            let pooling = match args.pooling {
                PoolingName::Cls => Pooling::Cls,
                PoolingName::Mean => Pooling::Mean,
            };
            let embedder = Embedder::open(folder, setup.tokenizer()?, pooling)?;
            let encoder = embedder.fingerprint().to_owned();
            (Features::Encoder { width: embedder.width(), encoder, pooling }, Some(embedder))
        }
    };
    let (mut training, mut validation) = (Vec::new(), Vec::new());
    for shard in prompts::read(collections, vocab)? {
        for answer in shard.answers() {
            let inputs = match &embedder {
                None => features.of(&answer.prompt).expect("features of tokens"),
                Some(embedder) => {
                    let embedding = embedder.embed(&answer.prompt)?;
                    (0..).zip(embedding.into_iter().map(f64::from)).collect()
                }
            };
            let example = Example { inputs, tokens: answer.tokens.len() as u32 };
            match is_validation(answer.index, SPLIT_SEED) {
                true => validation.push(example),
                false => training.push(example),
            }
        }
    }
    match training.is_empty() || validation.is_empty() {
        true => Err(Error::failed(format!(
            "--data has {} prompts to train on and {} to validate: collect more",
            training.len(),
            validation.len()
        ))),
        false => Ok((features, training, validation)),
    }
}

/// Figures on the validation's prompts.
fn figures(trained: &Trained, validation: &[Example]) -> PromptOnly {
    let predicted = |of: &Example| (trained.predictor.of_features(&of.inputs), of.tokens);
    PromptOnly::of(&validation.iter().map(predicted).collect::<Vec<_>>())
}

/// The record of a training, for the file and the report.
fn record(
    recipe: &Recipe,
    trained: &Trained,
    figures: &PromptOnly,
    prompts: usize,
    model: String,
) -> BTreeMap<String, String> {
    let mut record = BTreeMap::from([
        ("trained_for".to_owned(), model),
        ("objective".to_owned(), recipe.objective.name().to_owned()),
        ("hidden".to_owned(), format!("{}x{}", recipe.hidden, recipe.layers)),
        ("training_prompts".to_owned(), prompts.to_string()),
        ("epochs".to_owned(), trained.epochs.to_string()),
        ("rate".to_owned(), trained.setting.rate.to_string()),
        ("weight_decay".to_owned(), trained.setting.weight_decay.to_string()),
        ("seed".to_owned(), recipe.seed.to_string()),
        ("validation_loss".to_owned(), format!("{:.4}", trained.loss)),
        ("validation_mae".to_owned(), format!("{:.2}", figures.mae)),
        ("validation_tau_b".to_owned(), format!("{:.4}", figures.tau_b)),
    ]);
    if let Some(accuracy) = figures.bin_accuracy {
        record.insert("validation_accuracy".to_owned(), format!("{accuracy:.4}"));
    }
    record
}
