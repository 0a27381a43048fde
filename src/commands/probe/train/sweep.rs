//! Several trainings in lockstep: each epoch of all, over the threads, then the state on disk.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use trail_cli::{Error, notice};
use trail_platform::read::read_up_to;
use trail_probe::{HeadKind, Inputs, TapLayers};
use trail_training::{Trainer, state};

/// Largest state on disk, MiB.
const MAX_STATE_MIB: u64 = 8192;

/// A training and its name.
pub struct Training<'a> {
    /// The layers that it is trained on, side by side.
    pub layer: TapLayers,
    /// Its head.
    pub kind: HeadKind,
    /// Seed of its weights and of the order of its rows.
    pub seed: u64,
    /// The training.
    pub trainer: Trainer<'a>,
}

impl Training<'_> {
    /// Its name in a state.
    fn name(&self) -> String {
        let inputs = self.trainer.data().inputs();
        format!("{}.{}.{inputs}.{}", self.layer, self.kind.name(), self.seed)
    }
}

/// Trainings on one collection.
pub struct Sweep<'a> {
    trainings: Vec<Training<'a>>,
    /// File of the state.
    file: PathBuf,
    /// Model and recipe that the state belongs to.
    key: String,
}

impl<'a> Sweep<'a> {
    /// A sweep that goes on where the state in `file` ends, if any.
    pub fn new(
        trainings: Vec<Training<'a>>,
        file: PathBuf,
        key: String,
    ) -> Result<Sweep<'a>, Error> {
        let mut sweep = Sweep { trainings, file, key };
        if !sweep.file.exists() {
            return Ok(sweep);
        }
        let name = sweep.file.display().to_string();
        let bytes = read_up_to(&sweep.file, MAX_STATE_MIB)
            .map_err(|error| Error::failed(format!("{name}: {error}")))?;
        let named = sweep.trainings.iter_mut().map(|of| (of.name(), &mut of.trainer));
        state::restore(&mut named.collect::<Vec<_>>(), &bytes, &sweep.key).map_err(|why| {
            Error::failed(format!(
                "{name} is {why}; remove it, or give the options it was begun with"
            ))
        })?;
        let done = sweep.trainings.iter().map(|of| of.trainer.epochs().len()).max().unwrap_or(0);
        notice(format_args!("going on after epoch {done}, from {name}"));
        Ok(sweep)
    }

    /// Runs all trainings to their ends on `threads` threads.
    pub fn run(&mut self, threads: usize) -> Result<(), Error> {
        let begin = Instant::now();
        let mut epochs = 0;
        while self.trainings.iter().any(|training| !training.trainer.is_done()) {
            self.run_epoch(threads)?;
            epochs += 1;
            self.save()?;
            let epochs_of = self.trainings.iter().filter_map(|of| of.trainer.best_epoch());
            let least = epochs_of.map(|epoch| epoch.mae).fold(f64::INFINITY, f64::min);
            let left = self.trainings.iter().filter(|of| !of.trainer.is_done()).count();
            notice(format_args!(
                "epoch {epochs}, {:.0} s: least mean error in validation {least:.2} tokens, {left} of \
                 {} trainings go on",
                begin.elapsed().as_secs_f64(),
                self.trainings.len(),
            ));
        }
        Ok(())
    }

    /// The training of the least validation loss among those of a head and of inputs.
    pub fn best(&self, kind: HeadKind, inputs: Inputs) -> &Training<'a> {
        let loss = |of: &Training<'_>| of.trainer.best_epoch().map_or(f64::INFINITY, |of| of.loss);
        let is_wanted =
            |of: &&Training<'_>| (of.kind, of.trainer.data().inputs()) == (kind, inputs);
        let least = self.trainings.iter().filter(is_wanted);
        let least = least.min_by(|a, b| loss(a).total_cmp(&loss(b)));
        least.expect("at least one layer and one seed")
    }

    /// The trainings.
    pub fn trainings(&self) -> &[Training<'a>] {
        &self.trainings
    }

    /// One epoch of every training that is not done.
    fn run_epoch(&mut self, threads: usize) -> Result<(), Error> {
        let left = self.trainings.iter_mut().filter(|training| !training.trainer.is_done());
        let (queue, failure) = (Mutex::new(left), Mutex::new(None));
        let work = || {
            loop {
                // A thread takes the next training when it is done with one.
                let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(training) = next else { return };
                if let Err(why) = training.trainer.run_epoch() {
                    let why = format!("layer {}: {why}", training.layer);
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
                }
            }
        };
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        failure.map_or(Ok(()), |why| Err(Error::failed(why)))
    }

    /// Writes the state, whole or not at all.
    fn save(&self) -> Result<(), Error> {
        let part = self.file.with_extension("part");
        let named: Vec<_> = self.trainings.iter().map(|of| (of.name(), &of.trainer)).collect();
        fs::write(&part, state::state_bytes(&named, &self.key))
            .and_then(|()| fs::rename(&part, &self.file))
            .map_err(|error| {
                Error::failed(format!("cannot write {}: {error}", self.file.display()))
            })
    }
}
