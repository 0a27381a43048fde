//! Options of `trail-rt probe train`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use trail_cli::{Error, PREDICTOR, count, notice};
use trail_probe::predictor::{Features, Predictor};
use trail_probe::{Bins, HeadKind, Inputs, MAX_BINS};
use trail_training::Recipe;

use crate::commands::probe::layers::Layers;

/// Recipes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RecipeName {
    /// Inputs of mean 0 and deviation 1, dropout 0.3 and 0.5, batches of 256, rate 0.001, up to 16
    /// epochs.
    Default,
    /// TRAIL's: inputs as they are, batches of 32, rate 0.01, 30 epochs.
    Paper,
}

/// Edges of the bins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Edges {
    /// Bins of equal width (the paper's).
    Equal,
    /// Widths that grow geometrically.
    Log,
}

/// Options of `trail-rt probe train`.
#[derive(Args, Debug)]
pub struct TrainArgs {
    /// Folder that trail-rt probe collect made; given again, the answers of all are taken, at
    /// several temperatures for instance
    #[arg(long, value_name = "DIR", required = true)]
    pub(super) data: Vec<PathBuf>,
    /// File for the probe; the state of an unfinished training lies beside it in FILE.state
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
    /// Layers to train on, a probe for each; the best one is written. A probe of 9+18 reads both
    /// side by side (on the CPU)
    #[arg(long, value_name = "LIST", default_value = "all")]
    pub(super) layers: Layers,
    /// Defaults of the options below
    #[arg(long, value_enum, default_value_t = RecipeName::Default)]
    recipe: RecipeName,
    /// Passes over the rows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    epochs: Option<u32>,
    /// Rows of a step
    #[arg(long, value_name = "N", value_parser = count::<65536>)]
    batch: Option<usize>,
    /// Learning rate of the first step
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<f32>,
    /// Decay of the weights, as a share of the rate
    #[arg(long, value_name = "SHARE", value_parser = rate)]
    weight_decay: Option<f32>,
    /// Shares of inputs and of hidden units that a step leaves out, such as 0.3,0.5
    #[arg(long, value_name = "SHARES", value_delimiter = ',', num_args = 1, value_parser = dropout)]
    dropout: Option<Vec<f32>>,
    /// Hidden units
    #[arg(long, value_name = "N", value_parser = count::<16384>)]
    hidden: Option<usize>,
    /// Heads that are compared: bins (of the tokens until an answer ends or is cut) and survival
    /// (until it would end; one that was cut teaches only that it goes on) [default: both; of the
    /// paper's recipe bins]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = head)]
    head: Vec<HeadKind>,
    /// Inputs that are compared: activation, with +prompt (the mean over the prompt's activations,
    /// and its length) or +age or +prompt+age [default: activation and activation+prompt+age; of
    /// the paper's recipe activation]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    inputs: Vec<Inputs>,
    /// Bins of remaining tokens [default: 10, of a survival head 16]
    #[arg(long, value_name = "N", value_parser = count::<MAX_BINS>)]
    bins: Option<usize>,
    /// Edges of the bins [default: equal, of a survival head log]
    #[arg(long, value_enum)]
    edges: Option<Edges>,
    /// End of the last bin, tokens [default: the longest answer of the collection]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(64..1 << 24))]
    longest: Option<u32>,
    /// Share of the loss that prompts have beside the rows of their answers
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    prompt_share: f64,
    /// Epochs without a better validation loss after which a layer is done
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    patience: Option<u32>,
    /// Seeds; each layer is trained with every one
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    seed: Vec<u64>,
    /// Train the chosen probe on a quarter and a half of the answers, too: a learning curve
    #[arg(long)]
    pub(super) curve: bool,
    /// A file of trail-rt predictor train, without an encoder, whose first predictions the choice
    /// of the rank's options takes [default: predictor.safetensors beside --out, else the probe on
    /// the prompt]
    #[arg(long, value_name = "FILE")]
    initial_predictor: Option<PathBuf>,
    /// Replace a file of another origin
    #[arg(long)]
    pub(super) force: bool,
}

impl TrainArgs {
    /// The predictor of `--initial-predictor`, or the one that the probe will be served with, of
    /// the model of that fingerprint.
    pub(super) fn predictor(&self, model: &str) -> Result<Option<Predictor>, Error> {
        let beside = self.out.with_file_name(PREDICTOR);
        let beside = || beside.is_file().then_some(&beside);
        let named = self.initial_predictor.as_ref();
        let Some(file) = named.or_else(beside) else { return Ok(None) };
        let predictor = Predictor::open(file).map_err(|error| Error::failed(error.to_string()))?;
        let why = match predictor.features() {
            _ if predictor.model.as_deref().is_some_and(|of| of != model) => "is of another model",
            Features::Encoder { .. } => "reads embeddings",
            _ => return Ok(Some(predictor)),
        };
        let advice = "give --initial-predictor FILE with one of this model, without an encoder";
        let text = format!("{} {why}: {advice}", file.display());
        match named {
            Some(_) => Err(Error::usage(text)),
            None => {
                notice(format_args!("warning: {text}; it is not used"));
                Ok(None)
            }
        }
    }

    /// The heads and inputs that are compared, TRAIL's first.
    pub(super) fn variants(&self) -> Vec<(HeadKind, Inputs)> {
        let is_paper = self.recipe == RecipeName::Paper;
        let or = |count: usize| if is_paper { 1 } else { count };
        let heads = match &self.head[..] {
            [] => &HeadKind::ALL[..or(2)],
            heads => heads,
        };
        let inputs = match &self.inputs[..] {
            [] => &[Inputs::ALL[0], Inputs::ALL[3]][..or(2)],
            inputs => inputs,
        };
        distinct(heads.iter().flat_map(|&head| inputs.iter().map(move |&of| (head, of))))
    }

    /// The seeds.
    pub(super) fn seeds(&self) -> Vec<u64> {
        distinct(self.seed.iter().copied())
    }

    /// The recipe of a head of `kind`, for answers of at most `longest` tokens.
    pub(super) fn recipe(&self, kind: HeadKind, longest: u32) -> Recipe {
        let recipe = match self.recipe {
            RecipeName::Default => Recipe::default(),
            RecipeName::Paper => Recipe::paper(),
        };
        let max_tokens = self.longest.unwrap_or(longest);
        let (bins, edges) = match kind {
            HeadKind::Bins => (10, Edges::Equal),
            HeadKind::Survival => (16, Edges::Log),
        };
        let bins = self.bins.unwrap_or(bins);
        Recipe {
            bins: match self.edges.unwrap_or(edges) {
                Edges::Equal => Bins::equal(bins, max_tokens),
                Edges::Log => Bins::log(bins, max_tokens),
            },
            kind,
            hidden: self.hidden.unwrap_or(recipe.hidden),
            epochs: self.epochs.unwrap_or(recipe.epochs),
            batch: self.batch.unwrap_or(recipe.batch),
            rate: self.rate.unwrap_or(recipe.rate),
            weight_decay: self.weight_decay.unwrap_or(recipe.weight_decay),
            dropout: match self.dropout.as_deref() {
                Some([inputs, hidden]) => [*inputs, *hidden],
                Some(both) => [both[0]; 2],
                None => recipe.dropout,
            },
            prompt_share: self.prompt_share,
            patience: self.patience.unwrap_or(recipe.patience),
            ..recipe
        }
    }
}

/// `items` without those that were there before.
fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.fold(Vec::new(), |mut all, item| {
        if !all.contains(&item) {
            all.push(item);
        }
        all
    })
}

fn head(name: &str) -> Result<HeadKind, String> {
    let found = HeadKind::ALL.into_iter().find(|kind| kind.name() == name);
    found.ok_or_else(|| "bins or survival".into())
}

fn rate(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value| (0.0..=1.0).contains(value));
    value.ok_or_else(|| "a number from 0 to 1".into())
}

fn share(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value| (0.0..1.0).contains(value));
    value.ok_or_else(|| "a number from 0, less than 1".into())
}

fn dropout(text: &str) -> Result<f32, String> {
    let value = text.parse().ok().filter(|value| (0.0..1.0).contains(value));
    value.ok_or_else(|| "a number from 0, less than 1".into())
}
