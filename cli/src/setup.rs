//! Loads the model and builds its engine from the common options.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use trail_probe::{FilterKind, Probe};
use trail_runtime::cuda;
use trail_runtime::engine::{
    BlockSink, BuildError, Clock, ComputeDevice, CpuSettings, Engine, EngineConfig, PolicyKind,
    QueueConfig, SamplingParams, StepCost, SteppedEngine, load_step_cost,
};
use trail_runtime::model::{Dtype, GenerationConfig, Model, Quantization, WeightFiles, files};
use trail_runtime::text::{ChatMessage, ChatOptions, ChatTemplate, Tokenizer};
use trail_scheduler::{LogSink, Preemption, SchedulerConfig};

use crate::args::{Device, EngineArgs};
use crate::draft::Vocabulary;
use crate::error::Error;
use crate::loaded::LoadedModel;
use crate::model_args::{ModelArgs, SamplingSource};
use crate::notice::notice;
use crate::output_file::OutputFile;
use crate::prediction_files::{Loaded, PredictionFiles, Serving};
use crate::record::LogFile;
use crate::shared::EngineShare;
use crate::{locate, progress};

/// A model with its tokenizer, chat template, probe and predictor.
pub struct Setup {
    /// The model.
    pub model: Arc<Model>,
    /// Name of the model: the one that was given, or that of its folder or file.
    pub name: String,
    /// The folder of the model.
    pub folder: PathBuf,
    /// The model's file or folder, as it was named.
    pub(crate) path: PathBuf,
    /// The chat template.
    pub template: ChatTemplate,
    sampling: SamplingSource,
    /// `None` if the model has no tokenizer: token ids can still be served.
    tokenizer: Option<Arc<Tokenizer>>,
    pub(crate) predictions: PredictionFiles,
    /// True if requests carry their predictions.
    replays: bool,
}

impl Setup {
    /// Loads the model.
    pub fn load(args: &ModelArgs) -> Result<Setup, Error> {
        let asked = args.one()?;
        let located = locate::model(asked.map(|model| &*model.path))?;
        let locate::ModelPath { path, name } = located;
        // A path that names no model is a bad argument; a model that cannot be read is a failure.
        let weights =
            files::find_weights(&path).map_err(|error| Error::usage(error.to_string()))?;
        let LoadedModel { mut model, tokenizer, template } = LoadedModel::load(&path, &weights)?;
        limit_context(&mut model.config.max_context, args.max_model_len)?;
        let folder = files::model_folder(&path);
        let predictions = PredictionFiles::locate(&args.prediction, &folder, &model)?;
        Ok(Setup {
            name: asked.and_then(|model| model.name.clone()).unwrap_or(name),
            template,
            // One file of weights may stand beside those of another model.
            sampling: match &weights {
                WeightFiles::Gguf(_) => SamplingSource::None,
                _ => args.generation_config,
            },
            predictions,
            replays: false,
            tokenizer: tokenizer.map(Arc::new),
            model: Arc::new(model),
            folder,
            path,
        })
    }

    /// How the model's files store quantized weights, if they are no GGUF.
    pub fn quantization(&self) -> Option<Quantization> {
        // A model that has loaded has no error there; random weights have no file.
        Quantization::load(&self.path).ok().flatten()
    }

    /// A model of a named shape with random weights.
    pub fn random(shape: &str, dtype: Dtype) -> Result<Setup, Error> {
        let model = Model::random(shape, dtype, 1).map_err(Error::usage)?;
        Ok(Setup {
            model: Arc::new(model),
            name: shape.into(),
            folder: PathBuf::new(),
            path: shape.into(),
            template: ChatTemplate::absent(),
            sampling: SamplingSource::None,
            tokenizer: None,
            predictions: PredictionFiles::default(),
            replays: false,
        })
    }

    /// A notice for each thing that the chat template cannot do.
    pub fn notice_template_limits(&self) {
        for limit in self.template.limits() {
            notice(format_args!("the chat template of {} {limit}", self.name));
        }
    }

    /// The sampling parameters of a request that names none, with a notice if the model's files
    /// name others than [`SamplingParams::default`].
    pub fn load_sampling_defaults(&self) -> Result<SamplingParams, Error> {
        let default = SamplingParams::default();
        let config = match self.sampling {
            SamplingSource::None => return Ok(default),
            SamplingSource::Model => GenerationConfig::load(&self.folder)?,
        };
        let sampling = SamplingParams {
            temperature: config.temperature.unwrap_or(default.temperature),
            top_k: config.top_k.unwrap_or(default.top_k),
            top_p: config.top_p.unwrap_or(default.top_p),
            min_p: config.min_p.unwrap_or(default.min_p),
            repetition_penalty: config.repetition_penalty.unwrap_or(default.repetition_penalty),
            ..default.clone()
        };
        if sampling != default {
            notice(format_args!(
                "sampling defaults of generation_config.json: {config} (--generation-config none: \
                 temperature 1)"
            ));
        }
        Ok(sampling)
    }

    /// The same for requests that carry their predictions: without probe and predictor.
    pub fn replaying(self) -> Setup {
        if self.predictions.names_predictor() {
            notice("warning: requests carry their predictions: --length-predictor is not used");
        }
        Setup { predictions: PredictionFiles::default(), replays: true, ..self }
    }

    /// The tokenizer; an error if the model has none.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>, Error> {
        match &self.tokenizer {
            Some(tokenizer) => Ok(tokenizer.clone()),
            // `load` tolerates a missing tokenizer; loading it again gives the error.
            None => Ok(Tokenizer::load(&self.folder, self.model.config.vocab_size).map(Arc::new)?),
        }
    }

    /// The tokens of one user turn, through the chat template, if any.
    pub fn user_prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        if !self.template.is_present() {
            return self.raw_prompt(text);
        }
        let turn = ChatMessage::new("user", text);
        // The prompt is the user's own, as are the special tokens in it.
        let options = ChatOptions { allow_special_tokens: true, ..ChatOptions::default() };
        Ok(self.template.encode(&*self.tokenizer()?, &[turn], options)?)
    }

    /// The tokens of `text`, without the chat template.
    pub fn raw_prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        Ok(self.tokenizer()?.encode(text, true)?)
    }

    /// An engine for these options. A policy that was not named follows from the model's files.
    pub fn engine(&self, args: &EngineArgs) -> Result<Engine, Error> {
        self.shared_engine(args, None, &EngineShare::default())
    }

    /// The same, which reports the blocks of its prefix cache to what `sink` makes.
    pub fn reporting_engine(
        &self,
        args: &EngineArgs,
        sink: impl Fn() -> Box<dyn BlockSink>,
    ) -> Result<Engine, Error> {
        let policy = self.serving_policy(args)?;
        let build =
            |model, config| Engine::new(model, EngineConfig { block_sink: Some(sink()), ..config });
        self.build(args, policy, args.max_requests, None, build)
    }

    /// An engine with another policy and room for at least `max_requests` requests, and a decision
    /// log in `log`.
    pub fn engine_with(
        &self,
        args: &EngineArgs,
        policy: PolicyKind,
        max_requests: usize,
        log: Option<&OutputFile>,
    ) -> Result<Engine, Error> {
        self.build(args, policy, args.room_for(max_requests), log, Engine::new)
    }

    /// The same by simulated time, stepped by its caller.
    pub fn stepped_engine_with(
        &self,
        args: &EngineArgs,
        policy: PolicyKind,
        max_requests: usize,
        log: Option<&OutputFile>,
        clock: Arc<dyn Clock>,
    ) -> Result<SteppedEngine, Error> {
        let build = |model, config| {
            SteppedEngine::new(model, EngineConfig { clock: Some(clock.clone()), ..config })
        };
        self.build(args, policy, args.room_for(max_requests), log, build)
    }

    pub(crate) fn build<E>(
        &self,
        args: &EngineArgs,
        policy: PolicyKind,
        max_requests: usize,
        log: Option<&OutputFile>,
        build: impl Fn(Arc<Model>, EngineConfig) -> Result<E, BuildError>,
    ) -> Result<E, Error> {
        let device = args.device.resolve();
        if args.device == Device::Auto
            && let Err(why) = cuda::inventory::usable()
        {
            notice(format_args!("warning: {why}; the CPU runs the model"));
        }
        let build_on = |device| {
            let mut config = self.config(device, args, policy, max_requests)?;
            let log = log.map(LogFile::create).transpose()?;
            config.log = log.map(|log| Box::new(log) as Box<dyn LogSink>);
            Ok::<_, Error>(build(self.model.clone(), config))
        };
        match build_on(device)? {
            // The GPU was not named by the user.
            Err(BuildError::Unsupported(why))
                if args.device == Device::Auto && device != ComputeDevice::Cpu =>
            {
                notice(format_args!("warning: {why}; the CPU runs the model"));
                Ok(build_on(ComputeDevice::Cpu)??)
            }
            built => Ok(built?),
        }
    }

    /// The step costs in `file`, or in step_cost.json beside the model.
    pub fn step_cost(&self, file: Option<&Path>) -> Result<StepCost, Error> {
        let beside = self.folder.join("step_cost.json");
        let path = match file {
            Some(file) => file,
            None if beside.is_file() => &beside,
            None => {
                return Err(Error::usage(format!(
                    "there are no step costs for {}: measure them with trail-rt bench steps \
                     --out FILE and give --step-cost FILE, or choose --clock wall",
                    self.name
                )));
            }
        };
        load_step_cost(path).map_err(Error::usage)
    }

    fn config(
        &self,
        device: ComputeDevice,
        args: &EngineArgs,
        policy: PolicyKind,
        max_requests: usize,
    ) -> Result<EngineConfig, Error> {
        let cpu = device == ComputeDevice::Cpu;
        if let Some(dtype) = self.model.weights.quantized().filter(|_| !cpu) {
            notice(format_args!(
                "{dtype} weights become bf16 on the GPU: {} MiB",
                cuda::weights_bytes(&self.model.config) >> 20
            ));
        }
        let preemption = match args.preemption {
            // The KV of the CPU backend is in host memory already; TRAIL's paper recomputes.
            Preemption::Auto if cpu || args.ranking.paper => Preemption::Recompute,
            asked => asked,
        };
        let mut probe = self.probe()?;
        if let Some(probe) = probe.as_mut().filter(|_| args.ranking.paper) {
            if !probe.has_filters() {
                return Err(Error::usage(
                    "--paper filters predictions over bins, which a probe with a head of survival \
                     has not: give one of probe train --head bins",
                ));
            }
            // TRAIL's filter is over bins.
            probe.filter_kind = Some(FilterKind::Bins);
        }
        let predictor = self.predictor()?;
        Ok(EngineConfig {
            probe,
            predictor: predictor.map(|predictor| predictor as _),
            policy,
            replays: self.replays,
            scheduler: SchedulerConfig { preemption, ..args.scheduler_bounds() },
            device,
            cpu: CpuSettings {
                threads: args.threads,
                pin: args.cpu.cpu_strict,
                isa: args.cpu.isa,
                compute: args.cpu.compute,
                repack: args.cpu.repack,
            },
            cuda: args.cuda(),
            max_running: args.max_running,
            token_budget: args.token_budget,
            max_gap: args.max_gap_ms.map(|ms| Duration::from_millis(ms.into())),
            kv_blocks: args.kv_blocks,
            kv_dtype: args.cpu.kv_dtype,
            no_prefix_cache: args.no_prefix_cache,
            speculate: args.speculate.load(&Vocabulary {
                path: &self.path,
                model: &self.model,
                tokenizer: self.tokenizer.as_deref(),
            })?,
            queue: QueueConfig {
                max_requests,
                max_bytes: (args.max_queue_mib as u64) << 20,
                when_full: args.when_full(),
            },
            progress: Some(Box::new(progress::reporter())),
            warn: Some(Box::new(|warning| notice(format_args!("warning: {warning}")))),
            ..EngineConfig::default()
        })
    }

    /// File of the probe, if any.
    pub fn probe_file(&self) -> Option<&Path> {
        self.predictions.probe_file()
    }

    /// The probe, if any.
    pub fn probe(&self) -> Result<Option<Probe>, Error> {
        self.predictions.probe(&self.model)
    }

    /// The prompt-only predictor, if any.
    pub fn predictor(&self) -> Result<Option<Loaded>, Error> {
        Ok(self.predictors(&[])?.0)
    }

    /// The same, and the trained predictors in `files`; an error if one is of another model.
    pub fn predictors(&self, files: &[PathBuf]) -> Result<(Option<Loaded>, Vec<Loaded>), Error> {
        let serving = Serving { model: &self.model, tokenizer: &|| self.tokenizer() };
        self.predictions.predictors(files, &serving)
    }
}

/// Lowers the context to `limit` tokens.
fn limit_context(max_context: &mut usize, limit: Option<usize>) -> Result<(), Error> {
    match limit {
        Some(limit) if limit > *max_context => Err(Error::usage(format!(
            "--max-model-len is {limit}, the model's context has {max_context} tokens: ask for at \
             most as many"
        ))),
        limit => {
            *max_context = limit.unwrap_or(*max_context);
            Ok(())
        }
    }
}
