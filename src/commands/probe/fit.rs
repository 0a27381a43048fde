//! `trail-rt probe fit`: the token filter of a probe, fitted to newly collected answers.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use trail_cli::{Error, ModelArgs, Output, OutputFile, Setup};
use trail_probe::file::Storage;
use trail_probe::{FilterKind, RankOptions};
use trail_training::Dataset;
use trail_training::dataset::SPLIT_SEED;
use trail_training::fit::{fit_probe, observed};

use super::collection::Collection;

/// Options of `trail-rt probe fit`.
#[derive(Args, Debug)]
pub struct FitArgs {
    /// Folder that trail-rt probe collect made, with the probe's layer
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// File for the probe with its fit
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Replace a file of another origin
    #[arg(long)]
    force: bool,
}

/// Fits, and writes the probe.
pub fn run(model: &ModelArgs, args: &FitArgs, json: bool) -> Result<(), Error> {
    let setup = Setup::load(model)?;
    let mut probe = setup.probe()?.ok_or_else(|| {
        Error::usage(format!("there is no probe for {}: give one with --probe FILE", setup.name))
    })?;
    if !probe.has_filters() {
        return Err(Error::usage(
            "there is nothing to fit: predictions of a head of survival pass no filter",
        ));
    }
    let shards = Collection::open(&args.data)?.read_all()?;
    let data = Dataset::new(&shards, &probe.layers.to_vec(), SPLIT_SEED);
    let data = data.map_err(|error| Error::failed(error.to_string()))?;
    let out = OutputFile::claim(args.out.clone(), args.force)?;
    let fit = fit_probe(&probe, &data, &observed(&probe, &data));
    let (temperature, evidence) = (fit.temperature, fit.evidence);
    probe.fit = Some(fit);
    // They were chosen together with the filter.
    if probe.filter_kind() != FilterKind::Tokens {
        probe.rank_options = RankOptions::default();
    }
    probe.filter_kind = Some(FilterKind::Tokens);
    out.write(&probe.to_bytes(Storage::Bf16))?;
    let text = match json {
        true => json!({ "probe": args.out, "temperature": temperature, "evidence": evidence })
            .to_string(),
        false => format!(
            "wrote {}; by age: temperatures {temperature:?}, exponents of the evidence {evidence:?}",
            args.out.display()
        ),
    };
    Output::stdout().line(&text)
}
