//! `trail-rt predictor eval`: prompt-only predictors beside one another.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::time::Instant;

use clap::Args;
use serde_json::{Map, Value, json};
use trail_cli::{Error, ModelArgs, Output, Setup, Table, count};
use trail_probe::predictor::{Constant, PromptLength};
use trail_probe::{LengthPredictor, Prediction, Probe, Prompt};
use trail_runtime::engine::probe_fits;
use trail_training::Shard;
use trail_training::evaluation::{BatchTau, PromptOnly, of_prompt};

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
    /// Sizes of batches within which tau-b is given too, mean and variance (Learning to Rank's
    /// Table 5); at most half of the answers
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = count::<{ 1 << 20 }>)]
    batches: Vec<usize>,
    /// Files of trail-rt predictor train to compare, beside the model's own predictor and probe
    #[arg(value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Predictions of one predictor.
struct NamedPredictions {
    name: String,
    /// Of each answer, beside its length.
    predictions: Vec<(Prediction, u32)>,
    /// Time of a prediction, seconds; `None` for what a server does not compute like this.
    seconds: Option<f64>,
}

/// A predictor's figures.
struct Row {
    name: String,
    all: PromptOnly,
    batches: Vec<BatchTau>,
    /// Time of a prediction, microseconds.
    prompt_us: Option<f64>,
}

impl Row {
    fn new(
        NamedPredictions { name, predictions, seconds }: NamedPredictions,
        batches: &[usize],
    ) -> Row {
        let tau = |&batch: &usize| BatchTau::of(&predictions, batch);
        let batches = batches.iter().filter_map(tau).collect();
        let prompt_us = seconds.map(|seconds| seconds * 1e6);
        Row { name, all: PromptOnly::of(&predictions), batches, prompt_us }
    }
}

/// Prints the figures.
pub fn run(model: &ModelArgs, args: &EvalArgs, json: bool) -> Result<(), Error> {
    let setup = Setup::load(model)?;
    let collection = prompts::open(from_ref(&args.data), &setup)?;
    let shards = prompts::read(&collection, setup.model.config.vocab_size)?;
    let answers = shards.iter().flat_map(Shard::answers).count();
    if answers == 0 {
        return Err(Error::failed(format!("{} has no answers: collect more", args.data.display())));
    }
    if let Some(batch) = args.batches.iter().find(|batch| **batch < 2 || **batch * 2 > answers) {
        return Err(Error::usage(format!(
            "--batches names {batch}: give 2 to half of the {answers} answers"
        )));
    }
    let mut all: Vec<NamedPredictions> = Vec::new();
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
        all.extend(predictions_of(name, predictor, &shards)?);
    }
    let layers = &collection.settings().layers;
    if let Some(probe) =
        setup.probe()?.filter(|probe| probe.layers.iter().all(|layer| layers.contains(&layer)))
    {
        probe_fits(&probe, &setup.model.config).map_err(Error::usage)?;
        let predictions = of_probe(&probe, &shards)?;
        all.push(NamedPredictions { name: "prompt-probe".into(), predictions, seconds: None });
    }
    if let Some(again) = &args.again {
        let others = prompts::open(from_ref(again), &setup)?;
        let others = prompts::read(&others, setup.model.config.vocab_size)?;
        let predictions = of_others(again, &others, &shards)?;
        all.push(NamedPredictions { name: "another answer".into(), predictions, seconds: None });
    }
    let rows: Vec<Row> =
        all.into_iter().map(|predicted| Row::new(predicted, &args.batches)).collect();
    let text = match json {
        true => as_json(&setup.name, answers, &rows).to_string(),
        false => as_text(&setup.name, answers, &rows),
    };
    Output::stdout().line(text.trim_end())
}

/// Predictions of `predictor`; `None` if it has none for some prompt, an error if it cannot read
/// one.
fn predictions_of(
    name: String,
    predictor: &dyn LengthPredictor,
    shards: &[Shard],
) -> Result<Option<NamedPredictions>, Error> {
    let answers = shards.iter().flat_map(Shard::answers);
    let start = Instant::now();
    let predicted: Option<Vec<(Prediction, u32)>> = answers
        .map(|answer| {
            let prediction = predictor.predict(&Prompt::new(&answer.prompt))?;
            Some((prediction, answer.tokens.len() as u32))
        })
        .collect();
    match predicted {
        Some(predictions) => {
            let seconds = Some(start.elapsed().as_secs_f64() / predictions.len() as f64);
            Ok(Some(NamedPredictions { name, predictions, seconds }))
        }
        None if predictor.failures() == 0 => Ok(None),
        None => Err(Error::failed(format!(
            "{name} has no prediction for some prompt: leave it out, or mend its encoder"
        ))),
    }
}

/// Predictions of `probe` from the means of the prompts' activations.
fn of_probe(probe: &Probe, shards: &[Shard]) -> Result<Vec<(Prediction, u32)>, Error> {
    let mut predicted = Vec::new();
    for shard in shards {
        if let Some(what) = probe.layers.iter().find_map(|of| shard.non_finite(of)) {
            return Err(Error::failed(format!("{}: {what}", shard.name())));
        }
        for (request, answer) in shard.answers().iter().enumerate() {
            predicted.push((of_prompt(shard, request, probe), answer.tokens.len() as u32));
        }
    }
    Ok(predicted)
}

/// Lengths of `others`, answers to the same prompts in folder `again`, as predictions.
fn of_others(
    again: &Path,
    others: &[Shard],
    shards: &[Shard],
) -> Result<Vec<(Prediction, u32)>, Error> {
    let lengths: HashMap<(u32, &[u32]), usize> = others
        .iter()
        .flat_map(Shard::answers)
        .map(|answer| ((answer.index, &*answer.prompt), answer.tokens.len()))
        .collect();
    let answers = shards.iter().flat_map(Shard::answers);
    let predicted: Option<Vec<(Prediction, u32)>> = answers
        .map(|answer| {
            let other = lengths.get(&(answer.index, &*answer.prompt))?;
            Some((Prediction::Tokens(*other as f32), answer.tokens.len() as u32))
        })
        .collect();
    predicted.ok_or_else(|| {
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
    let figures = |Row { all: of, batches, prompt_us, .. }: &Row| {
        let batch =
            |of: &BatchTau| json!({ "batch": of.batch, "mean": of.mean, "variance": of.variance });
        json!({
            "tau_b_in_batches": batches.iter().map(batch).collect::<Vec<_>>(),
            "mae": of.mae,
            "rmse": of.rmse,
            "r2": of.r2,
            "mae_countdown": of.mae_countdown,
            "tau_b": of.tau_b,
            "tau_b_likeliest": of.tau_b_likeliest,
            "bin_accuracy": of.bin_accuracy,
            "prompt_us": prompt_us,
        })
    };
    let all: Map<String, Value> = rows.iter().map(|row| (row.name.clone(), figures(row))).collect();
    json!({ "model": model, "answers": answers, "predictors": all })
}

/// The text printed without it.
fn as_text(model: &str, answers: usize, rows: &[Row]) -> String {
    let errors = ["MAE", "RMSE", "R2", "MAE counted down"];
    let ranks = ["tau-b", "of likeliest bins", "bin accuracy"];
    let mut table = Table::default()
        .group("", &["predictor"])
        .group("total length, tokens", &errors)
        .group("order", &ranks)
        .group("time", &["us a prompt"]);
    for Row { name, all: of, prompt_us, .. } in rows {
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
            prompt_us.map_or("-".into(), |us| format!("{us:.1}")),
        ]);
    }
    let head = format!("{model}, {answers} held-out answers; the constant is their median");
    match batch_table(rows) {
        None => format!("{head}\n\n{table}"),
        Some(batches) => format!("{head}\n\n{table}\n\n{batches}"),
    }
}

/// Mean and variance of tau-b within batches; `None` where none were asked for.
fn batch_table(rows: &[Row]) -> Option<Table> {
    let sizes: Vec<String> = rows.first()?.batches.iter().map(|of| of.batch.to_string()).collect();
    let sizes: Vec<&str> = sizes.iter().map(String::as_str).collect();
    let mut table = Table::default()
        .group("", &["predictor"])
        .group("tau-b within batches of so many answers: mean (variance)", &sizes);
    for Row { name, batches, .. } in rows {
        let figure = |of: &BatchTau| format!("{:.3} ({:.4})", of.mean, of.variance);
        table.row(std::iter::once(name.clone()).chain(batches.iter().map(figure)));
    }
    (!sizes.is_empty()).then_some(table)
}
