//! The files of a model's length predictions: which ones, and whether they are of this model.

use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use trail_probe::{Predictor, Probe};
use trail_runtime::model::Model;

use crate::args::ModelArgs;
use crate::error::Error;
use crate::fingerprint::fingerprint;
use crate::locate;

/// Names of the files, beside a model or in a folder of [`locate::probes`].
const PROBE: &str = "probe.safetensors";
const PREDICTOR: &str = "predictor.safetensors";

/// Values of `--filter`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FilterKind {
    /// Over bins of remaining tokens, as TRAIL's.
    Bins,
    /// Over total lengths, at the resolution of tokens.
    Tokens,
}

/// The files of one model.
#[derive(Clone, Debug, Default)]
pub(crate) struct PredictionFiles {
    probe: Option<PathBuf>,
    predictor: Option<PathBuf>,
    filter: Option<FilterKind>,
    /// True if files of another model are taken.
    force: bool,
}

impl PredictionFiles {
    /// The probe that `args` name, else that in the model's `folder`, else a bundled one that was
    /// trained for `model`; the predictor beside the model, else that beside the probe.
    pub(crate) fn locate(
        args: &ModelArgs,
        folder: &Path,
        model: &Model,
    ) -> Result<PredictionFiles, Error> {
        if let Some(probe) = args.probe.as_deref().filter(|probe| !probe.is_file()) {
            let shown = probe.display();
            return Err(Error::usage(format!("there is no probe {shown}: give a file")));
        }
        let present = |folder: &Path, name| Some(folder.join(name)).filter(|file| file.is_file());
        let beside = || present(folder, PROBE);
        let bundled = || bundled(model).map(|folder| folder.join(PROBE));
        let probe = args.probe.clone().or_else(beside).or_else(bundled);
        let with_probe = || present(probe.as_deref()?.parent()?, PREDICTOR);
        let predictor = present(folder, PREDICTOR).or_else(with_probe);
        Ok(PredictionFiles { probe, predictor, filter: args.filter, force: args.force_probe })
    }

    /// File of the probe, if there is one.
    pub(crate) fn probe_file(&self) -> Option<&Path> {
        self.probe.as_deref()
    }

    /// The probe, if there is one; an error if it is of another model.
    pub(crate) fn probe(&self, model: &Model) -> Result<Option<Probe>, Error> {
        let Some(file) = &self.probe else { return Ok(None) };
        let mut probe = Probe::open(file)?;
        self.check(file, probe.model.as_deref(), model)?;
        match self.filter {
            Some(FilterKind::Bins) => probe.fit = None,
            Some(FilterKind::Tokens) if probe.fit.is_none() => {
                return Err(Error::usage(format!(
                    "--filter tokens needs a probe that trail-rt probe train wrote, and {} lacks \
                     what the filter starts from: choose --filter bins",
                    file.display()
                )));
            }
            _ => {}
        }
        Ok(Some(probe))
    }

    /// The prompt-only predictor, if there is one; an error if it is of another model.
    pub(crate) fn predictor(&self, model: &Model) -> Result<Option<Predictor>, Error> {
        let Some(file) = &self.predictor else { return Ok(None) };
        let predictor = Predictor::open(file)?;
        self.check(file, predictor.model.as_deref(), model)?;
        Ok(Some(predictor))
    }

    /// Refuses a file that was trained for a model of another fingerprint.
    fn check(&self, file: &Path, trained_for: Option<&str>, model: &Model) -> Result<(), Error> {
        let is_other = |of: &&str| *of != fingerprint(model);
        match trained_for.filter(|_| !self.force).filter(is_other) {
            None => Ok(()),
            Some(_) => Err(Error::usage(format!(
                "{} was trained for another model: train one with trail-rt probe train, or take it \
                 all the same with --force-probe",
                file.display()
            ))),
        }
    }
}

/// The bundled folder with the probe of `model`, if there is one.
fn bundled(model: &Model) -> Option<PathBuf> {
    let folders = locate::probes();
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok());
    let mut own = None;
    entries.flatten().flatten().map(|entry| entry.path()).find(|folder| {
        let probe = Probe::open(folder.join(PROBE)).ok();
        let own = own.get_or_insert_with(|| fingerprint(model));
        probe.is_some_and(|probe| probe.model.as_ref() == Some(own))
    })
}
