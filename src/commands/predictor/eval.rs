//! `trail-rt predictor eval`: prompt-only predictors beside one another.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};
use trail_probe::predictor::{Constant, PromptLength};
use trail_probe::{LengthPredictor, Prediction, Probe, Prompt};
use trail_runtime::engine::probe_fits;
use trail_setup::{Error, ModelArgs, Output, Setup, Table};
use trail_training::Shard;
use trail_training::evaluation::{PromptOnly, of_prompt};

use super::prompts;

/// Options of `trail-rt predictor eval`.
#[derive(Args, Debug)]
pub struct EvalArgs {
    /// Folder that trail-rt probe collect made of held-out prompts
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Other answers to the same prompts, collected with another --seed, whose lengths are compared
    /// as predictions: "optimal" in Learning to Rank's Table 3. No bound: a mean over several
    /// answers would be nearer
    #[arg(long, value_name = "DIR")]
    again: Option<PathBuf>,
    /// Files of trail-rt predictor train to compare, beside the model's own predictor and probe
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// A predictor's name and figures.
type Row = (String, PromptOnly);

/// Prints the figures.
pub fn run(model: &ModelArgs, args: &EvalArgs, json: bool) -> Result<(), Error> {
    let setup = Setup::load(model)?;
    let collection = prompts::open(&args.data, &setup)?;
    let shards = prompts::read(&collection, setup.model.config.vocab_size)?;
    let answers = shards.iter().flat_map(Shard::answers).count();
    if answers == 0 {
        return Err(Error::failed(format!("{} has no answers: collect more", args.data.display())));
    }
    let mut rows: Vec<Row> = Vec::new();
    let constant = best_constant(&shards);
    let plain: [(String, &dyn LengthPredictor); 2] = [
        (format!("constant:{constant}"), &Constant(constant)),
        ("prompt-length".into(), &PromptLength),
    ];
    let (own, others) = setup.predictors(&args.files)?;
    let names = args.files.iter().map(|file| file.display().to_string());
    let trained = own.iter().map(|own| ("the model's own".to_owned(), own));
    let trained = trained.chain(names.zip(&others)).map(|(name, of)| (name, &**of));
    for (name, predictor) in plain.into_iter().chain(trained) {
        rows.extend(figures(name, predictor, &shards)?);
    }
    let layers = &collection.settings().layers;
    if let Some(probe) = setup.probe()?.filter(|probe| layers.contains(&probe.layer)) {
        probe_fits(&probe, &setup.model.config).map_err(Error::usage)?;
        rows.push(("prompt-probe".into(), of_probe(&probe, &shards)?));
    }
    if let Some(again) = &args.again {
        let others = prompts::open(again, &setup)?;
        let others = prompts::read(&others, setup.model.config.vocab_size)?;
        rows.push(("another answer".into(), of_others(again, &others, &shards)?));
    }
    let text = match json {
        true => as_json(&setup.name, answers, &rows).to_string(),
        false => as_text(&setup.name, answers, &rows),
    };
    Output::stdout().line(text.trim_end())
}

/// The figures of `predictor`; `None` if it says nothing of some prompt, an error if it cannot read
/// one.
fn figures(
    name: String,
    predictor: &dyn LengthPredictor,
    shards: &[Shard],
) -> Result<Option<Row>, Error> {
    let answers = shards.iter().flat_map(Shard::answers);
    let said: Option<Vec<(Prediction, u32)>> = answers
        .map(|answer| {
            let prediction = predictor.predict(&Prompt::new(&answer.prompt))?;
            Some((prediction, answer.tokens.len() as u32))
        })
        .collect();
    match said {
        Some(said) => Ok(Some((name, PromptOnly::of(&said)))),
        None if predictor.failures() == 0 => Ok(None),
        None => Err(Error::failed(format!(
            "{name} has no prediction for some prompt: leave it out, or mend its encoder"
        ))),
    }
}

/// The figures of `probe` on the means of the prompts' activations.
fn of_probe(probe: &Probe, shards: &[Shard]) -> Result<PromptOnly, Error> {
    let mut said = Vec::new();
    for shard in shards {
        if let Some(what) = shard.non_finite(probe.layer) {
            return Err(Error::failed(format!("{}: {what}", shard.name())));
        }
        for (request, answer) in shard.answers().iter().enumerate() {
            said.push((of_prompt(shard, request, probe), answer.tokens.len() as u32));
        }
    }
    Ok(PromptOnly::of(&said))
}

/// The figures of the lengths of `others`, answers to the same prompts in folder `again`.
fn of_others(again: &Path, others: &[Shard], shards: &[Shard]) -> Result<PromptOnly, Error> {
    let lengths: HashMap<(u32, &[u32]), usize> = others
        .iter()
        .flat_map(Shard::answers)
        .map(|answer| ((answer.index, &*answer.prompt), answer.tokens.len()))
        .collect();
    let answers = shards.iter().flat_map(Shard::answers);
    let said: Option<Vec<(Prediction, u32)>> = answers
        .map(|answer| {
            let other = lengths.get(&(answer.index, &*answer.prompt))?;
            Some((Prediction::Tokens(*other as f32), answer.tokens.len() as u32))
        })
        .collect();
    said.map(|said| PromptOnly::of(&said)).ok_or_else(|| {
        Error::usage(format!(
            "{} lacks a prompt of --data: collect the same prompts with another --seed",
            again.display()
        ))
    })
}

/// The constant with the least error of the total length on the very answers it is judged by: their
/// median, tokens.
fn best_constant(shards: &[Shard]) -> f32 {
    let answers = shards.iter().flat_map(Shard::answers);
    let mut lengths: Vec<usize> = answers.map(|answer| answer.tokens.len()).collect();
    lengths.sort_unstable();
    lengths[lengths.len() / 2] as f32
}

/// The object printed with `--json`.
fn as_json(model: &str, answers: usize, rows: &[Row]) -> Value {
    let figures = |of: &PromptOnly| {
        json!({
            "mae": of.mae,
            "rmse": of.rmse,
            "r2": of.r2,
            "mae_countdown": of.mae_countdown,
            "tau_b": of.tau_b,
            "tau_b_likeliest": of.tau_b_likeliest,
            "bin_accuracy": of.bin_accuracy,
        })
    };
    let all: Map<String, Value> =
        rows.iter().map(|(name, of)| (name.clone(), figures(of))).collect();
    json!({ "model": model, "answers": answers, "predictors": all })
}

/// The text printed without it.
fn as_text(model: &str, answers: usize, rows: &[Row]) -> String {
    let errors = ["MAE", "RMSE", "R2", "MAE counted down"];
    let ranks = ["tau-b", "of likeliest bins", "bin accuracy"];
    let mut table = Table::default()
        .group("", &["predictor"])
        .group("total length, tokens", &errors)
        .group("order", &ranks);
    for (name, of) in rows {
        let accuracy = of.bin_accuracy.map_or("-".into(), |share| format!("{share:.3}"));
        table.row([
            name.clone(),
            format!("{:.1}", of.mae),
            format!("{:.1}", of.rmse),
            format!("{:.3}", of.r2),
            format!("{:.1}", of.mae_countdown),
            format!("{:.3}", of.tau_b),
            format!("{:.3}", of.tau_b_likeliest),
            accuracy,
        ]);
    }
    format!("{model}, {answers} held-out answers; the constant is their median\n\n{table}")
}
