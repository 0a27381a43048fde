//! `trail-rt probe eval`: errors, calibration and ranking of a probe's predictions on held-out
//! prompts, beside those of prompt-only predictors.

mod args;
mod picture;
mod report;

use std::path::Path;
use std::sync::Arc;

use trail_cli::drive::Display;
use trail_cli::output_file::signed_svg;
use trail_cli::{EngineArgs, Error, ModelArgs, Output, OutputFile, Setup};
use trail_runtime::engine::probe_fits;
use trail_runtime::model::Adapter;
use trail_simulator::Trace as ReplayTrace;
use trail_training::Shard;
use trail_training::evaluation::{Predictors, Trace};

use super::answers::Answering;
use super::collection::Collection;
use crate::prompts;
pub use args::EvalArgs;
use report::EvaluationReport;

/// Prompts that are answered at a time: the activations of all their rows are in memory.
const PIECE: usize = 64;
/// Prompts that are answered by default.
const REQUESTS: usize = 200;

/// Prints the report.
pub fn run(
    model: &ModelArgs,
    engine: &EngineArgs,
    args: &EvalArgs,
    json: bool,
) -> Result<(), Error> {
    let setup = Setup::load(model)?;
    let probe = setup.probe()?.ok_or_else(|| {
        Error::usage(format!("there is no probe for {}: give one with --probe FILE", setup.name))
    })?;
    probe_fits(&probe, &setup.model.config).map_err(Error::usage)?;
    let predictor = setup.predictor()?;
    let claim =
        |path: &Option<_>| path.clone().map(|path| OutputFile::claim(path, args.force)).transpose();
    let (traces_file, plot_file) = (claim(&args.traces)?, claim(&args.plot)?);
    let predictors = Predictors::new(&probe, predictor.as_deref());
    let adapter = args.lora.load_one(&setup.model.config)?;
    if adapter.is_some() && args.data.is_some() {
        return Err(Error::usage("--lora is for new answers: leave --data out"));
    }
    let new = |adapter| of_prompts(&setup, engine, args, &predictors, adapter);
    let traces = match &args.data {
        Some(data) => of_collection(data, &predictors)?,
        None => new(adapter.clone())?,
    };
    let report = EvaluationReport::new(&setup.name, &probe, &traces);
    let without = adapter.map(|_| new(None)).transpose()?;
    let without = without.map(|traces| EvaluationReport::new(&setup.name, &probe, &traces));
    if let Some(file) = &traces_file {
        file.write(&replay_traces(&traces, args.answers.max_tokens))?;
    }
    if let Some(file) = &plot_file {
        let picture = picture::draw(&report, &probe.bins, &traces)?;
        file.write(&signed_svg(&picture, "probe eval"))?;
    }
    let text = match (json, without) {
        (true, None) => report.json().to_string(),
        (true, Some(without)) => {
            let mut object = report.json();
            object["without_adapter"] = without.json();
            object.to_string()
        }
        (false, None) => report.text(),
        (false, Some(without)) => {
            format!("With the adapter: {}\n\nWithout: {}", report.text().trim_end(), without.text())
        }
    };
    Output::stdout().line(text.trim_end())
}

/// The traces of a collection.
fn of_collection(data: &Path, predictors: &Predictors<'_>) -> Result<Vec<Trace>, Error> {
    let collection = Collection::open(data)?;
    let present = &collection.settings().layers;
    if let Some(layer) = predictors.probe.layers.iter().find(|layer| !present.contains(layer)) {
        return Err(Error::usage(format!(
            "the probe reads layer {layer}, which {} does not have",
            data.display()
        )));
    }
    let mut traces = Vec::new();
    for shard in collection.read_all()? {
        traces.extend(of_shard(&shard, predictors)?);
    }
    Ok(traces)
}

/// The traces of new answers to held-out prompts, by `adapter` if any.
fn of_prompts(
    setup: &Setup,
    engine: &EngineArgs,
    args: &EvalArgs,
    predictors: &Predictors<'_>,
    adapter: Option<Arc<Adapter>>,
) -> Result<Vec<Trace>, Error> {
    let file = args.prompts.clone().unwrap_or_else(|| setup.folder.join("prompts.jsonl"));
    let prompts = prompts::read(&file, "--prompts")?;
    let requests = args.requests.or((prompts.len() > REQUESTS).then_some(REQUESTS));
    let prompts = args.answers.selected(&file, prompts, requests)?;
    let layers = predictors.probe.layers.to_vec();
    let answering = Answering::new(setup, engine, &args.answers, &layers, PIECE)?;
    let mut answering = answering.with_adapter(adapter);
    let mut display = Display::new(prompts.len().div_ceil(PIECE));
    let mut traces = Vec::new();
    for piece in prompts.chunks(PIECE) {
        display.begin("answers", 2 * piece.len());
        let collected = answering.answer(piece, 0, &mut display)?;
        let shard = Shard::parse(Arc::new(collected.to_bytes(&[])), "the answers");
        let shard = shard.map_err(|error| Error::failed(error.to_string()))?;
        traces.extend(of_shard(&shard, predictors)?);
        display.end();
    }
    display.finish();
    Ok(traces)
}

fn of_shard(shard: &Shard, predictors: &Predictors<'_>) -> Result<Vec<Trace>, Error> {
    if let Some(what) = predictors.probe.layers.iter().find_map(|of| shard.non_finite(of)) {
        return Err(Error::failed(format!("{}: {what}", shard.name())));
    }
    Ok(Trace::of_shard(shard, predictors)?)
}

/// The traces as `simulate --trace` reads them; all requests arrive at once.
fn replay_traces(traces: &[Trace], max_tokens: u32) -> String {
    let line = |(index, trace): (usize, &Trace)| {
        let total = trace.length_predictor.unwrap_or(trace.prompt_probe);
        let replay = ReplayTrace {
            id: index as u64,
            arrival_s: 0.0,
            prompt_tokens: trace.prompt_tokens,
            output_tokens: trace.tokens(),
            // As the engine submits it.
            r: Some(total.clamp(1.0, max_tokens as f32)),
            remaining: Some(trace.refined.clone()),
            block_hashes: None,
        };
        replay.line() + "\n"
    };
    traces.iter().enumerate().map(line).collect()
}
