//! The files of a model's length predictions: which ones, and whether they are of this model.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use trail_probe::predictor::{Constant, Features, Hint, PromptLength, PromptProbe};
use trail_probe::{FilterKind, LengthPredictor, Predictor, Probe};
use trail_runtime::model::Model;
use trail_runtime::text::Tokenizer;

use crate::embedder::{Embedder, EncoderPredictor};
use crate::error::Error;
use crate::fingerprint::fingerprint;
use crate::locate;
use crate::prediction_args::{FilterName, PredictionArgs, PredictorKind};

/// Name of a probe's file, beside a model or in a folder of [`locate::probes`].
const PROBE: &str = "probe.safetensors";

/// Name of a length predictor's file, beside a model or its probe.
pub const PREDICTOR: &str = "predictor.safetensors";

/// Folder of an encoder, beside the predictor that reads its embeddings.
const ENCODER: &str = "encoder";

/// A loaded prompt-only predictor.
pub(crate) type Loaded = Arc<dyn LengthPredictor>;

/// The model that predictions are for.
pub(crate) struct Serving<'a> {
    pub(crate) model: &'a Model,
    /// Its tokenizer, for predictors that read text.
    pub(crate) tokenizer: &'a dyn Fn() -> Result<Arc<Tokenizer>, Error>,
}

/// The files of one model.
#[derive(Clone, Debug, Default)]
pub(crate) struct PredictionFiles {
    probe: Option<PathBuf>,
    /// File of the trained predictor.
    predictor: Option<PathBuf>,
    kind: Option<PredictorKind>,
    /// Folder of its encoder, if given.
    encoder: Option<PathBuf>,
    filter: Option<FilterName>,
    /// True if files of another model are taken.
    force: bool,
}

impl PredictionFiles {
    /// The probe that `args` name, else that in the model's `folder`, else a bundled one that was
    /// trained for `model`; the predictor beside the model, else that beside the probe.
    pub(crate) fn locate(
        args: &PredictionArgs,
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
        let predictor = match &args.length_predictor {
            Some(PredictorKind::File(file)) if !file.is_file() => {
                return Err(Error::usage(format!(
                    "there is no length predictor {}: give constant:TOKENS, prompt-length, \
                     prompt-probe, hint, or a file of trail-rt predictor train",
                    file.display()
                )));
            }
            Some(PredictorKind::File(file)) => Some(file.clone()),
            _ => present(folder, PREDICTOR).or_else(with_probe),
        };
        Ok(PredictionFiles {
            probe,
            predictor,
            kind: args.length_predictor.clone(),
            encoder: args.encoder.clone(),
            filter: args.filter,
            force: args.force_probe,
        })
    }

    /// File of the probe, if any.
    pub(crate) fn probe_file(&self) -> Option<&Path> {
        self.probe.as_deref()
    }

    /// The probe, if any; an error if it is of another model.
    pub(crate) fn probe(&self, model: &Model) -> Result<Option<Probe>, Error> {
        let Some(file) = &self.probe else { return Ok(None) };
        let mut probe = Probe::open(file)?;
        self.check(file, probe.model.as_deref(), model)?;
        match self.filter {
            Some(FilterName::Raw) => probe.filter_kind = Some(FilterKind::Raw),
            Some(_) if !probe.has_filters() => {
                return Err(Error::usage(format!(
                    "--filter: predictions of {} pass none, as its head is one of survival: leave \
                     the option out",
                    file.display()
                )));
            }
            Some(FilterName::Bins) => probe.filter_kind = Some(FilterKind::Bins),
            Some(FilterName::Tokens) if probe.fit.is_none() => {
                return Err(Error::usage(format!(
                    "--filter tokens needs a probe that trail-rt probe train wrote, and {} lacks \
                     what the filter starts from: choose --filter bins",
                    file.display()
                )));
            }
            Some(FilterName::Tokens) => probe.filter_kind = Some(FilterKind::Tokens),
            None => {}
        }
        Ok(Some(probe))
    }

    /// True if `--length-predictor` was given.
    pub(crate) fn names_predictor(&self) -> bool {
        self.kind.is_some()
    }

    /// True if first predictions are those of a trained predictor, and none a client's.
    pub(crate) fn are_trained(&self) -> bool {
        let by_file = matches!(self.kind, None | Some(PredictorKind::File(_)));
        self.predictor.is_some() && by_file
    }

    /// The prompt-only predictor, if any, and the trained ones in `files`; an error if one
    /// is of another model, or if there is no use for `--encoder`.
    pub(crate) fn predictors(
        &self,
        files: &[PathBuf],
        with: &Serving<'_>,
    ) -> Result<(Option<Loaded>, Vec<Loaded>), Error> {
        let own = self.predictor(with)?;
        let others: Vec<Loaded> =
            files.iter().map(|file| self.open(file, with)).collect::<Result<_, _>>()?;
        match &self.encoder {
            // Only an encoder is slow.
            Some(folder) if !own.iter().chain(&others).any(|of| of.is_slow()) => {
                Err(Error::usage(format!(
                    "--encoder is {}, and no length predictor here reads embeddings: leave it out, \
                     or give --length-predictor FILE with a head over them",
                    folder.display()
                )))
            }
            _ => Ok((own, others)),
        }
    }

    /// The prompt-only predictor, if any; an error if it is of another model.
    fn predictor(&self, with: &Serving<'_>) -> Result<Option<Loaded>, Error> {
        Ok(match &self.kind {
            Some(PredictorKind::Constant(tokens)) => Some(Arc::new(Constant(*tokens))),
            Some(PredictorKind::PromptLength) => Some(Arc::new(PromptLength)),
            Some(PredictorKind::PromptProbe) => Some(Arc::new(PromptProbe)),
            Some(PredictorKind::Hint) => Some(Arc::new(Hint { otherwise: self.trained(with)? })),
            Some(PredictorKind::File(_)) | None => self.trained(with)?,
        })
    }

    /// The trained predictor, if any.
    fn trained(&self, with: &Serving<'_>) -> Result<Option<Loaded>, Error> {
        self.predictor.as_deref().map(|file| self.open(file, with)).transpose()
    }

    /// The trained predictor in `file`; an error if it is of another model. Its encoder is the one
    /// that was given, or the one beside it if that one is another's.
    fn open(&self, file: &Path, with: &Serving<'_>) -> Result<Loaded, Error> {
        let head = Predictor::open(file)?;
        self.check(file, head.model.as_deref(), with.model)?;
        let Features::Encoder { encoder, pooling, width } = head.features() else {
            return Ok(Arc::new(head));
        };
        let beside = file.with_file_name(ENCODER);
        let given = self.encoder.as_ref().unwrap_or(&beside);
        let more = Some(&beside).filter(|beside| *beside != given && beside.is_dir());
        for folder in [given].into_iter().chain(more) {
            let embedder = Embedder::open(folder, (with.tokenizer)()?, *pooling)?;
            if (embedder.fingerprint(), embedder.width()) == (encoder, *width) {
                return Ok(Arc::new(EncoderPredictor::new(embedder, head)));
            }
        }
        Err(Error::usage(format!(
            "{} was trained on another encoder than {}: give its own with --encoder DIR",
            file.display(),
            given.display()
        )))
    }

    /// Refuses a file that was trained for a model of another fingerprint.
    fn check(&self, file: &Path, trained_for: Option<&str>, model: &Model) -> Result<(), Error> {
        let is_other = |of: &&str| *of != fingerprint(model);
        match trained_for.filter(|_| !self.force).filter(is_other) {
            None => Ok(()),
            Some(_) => Err(Error::usage(format!(
                "{} was trained for another model: train one with trail-rt probe train or predictor \
                 train, or take it all the same with --force-probe",
                file.display()
            ))),
        }
    }
}

/// The bundled folder with the probe of `model`, if any.
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
