//! The models of `serve`: loaded at the start, and again after they were unloaded.

use std::str::FromStr;

use trail_cli::{EngineArgs, EngineShare, Error, ModelArgs, NamedAdapter, Setup};
use trail_runtime::engine::Engine;
use trail_server::ModelSource;

use super::decision_logs::DecisionLogs;
use super::serve::ServeArgs;

/// Highest weight of a model.
const MAX_WEIGHT: u32 = 1000;

/// A value of `--model-share`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelWeight {
    name: String,
    weight: u32,
}

impl FromStr for ModelWeight {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let weight = parts.and_then(|(_, weight)| weight.parse().ok());
        match (parts, weight.filter(|weight| (1..=MAX_WEIGHT).contains(weight))) {
            (Some((name, _)), Some(weight)) => Ok(ModelWeight { name: name.to_owned(), weight }),
            _ => Err(format!("expected NAME=WEIGHT: a model's name and 1 to {MAX_WEIGHT}")),
        }
    }
}

/// A model, and how its engine is built.
struct Plan {
    /// Its name, if it is one of several.
    name: Option<String>,
    model: ModelArgs,
    engine: EngineArgs,
    share: EngineShare,
    log: Option<DecisionLogs>,
}

impl Plan {
    /// `error` with the name of one of several models.
    fn about(&self, error: Error) -> Error {
        match &self.name {
            Some(name) => error.about(format_args!("model '{name}'")),
            None => error,
        }
    }

    fn load(&self) -> Result<Setup, Error> {
        Setup::load(&self.model).map_err(|error| self.about(error))
    }

    fn engine(&self, setup: &Setup) -> Result<Engine, Error> {
        let log = self.log.as_ref().map(|log| log.next(self.name.as_deref())).transpose()?;
        let engine = setup.shared_engine(&self.engine, log.as_ref(), &self.share);
        engine.map_err(|error| self.about(error))
    }

    /// The model as it is served: `setup` and `engine`, and later ones of the same files and as
    /// many KV blocks.
    fn source(self, setup: Setup, engine: Engine) -> ModelSource {
        let model = self.model.with_model(Some(setup.path()));
        let ranking = self.engine.ranking();
        let again = self.engine.with_kv_blocks(engine.kv_blocks());
        let plan = Plan { model, engine: again, ..self };
        ModelSource {
            names: vec![setup.name.clone()],
            adapters: Vec::new(),
            loaded: (setup, engine),
            load: Box::new(move || {
                let setup = plan.load()?;
                let engine = plan.engine(&setup)?;
                Ok((setup, engine))
            }),
            ranking,
        }
    }
}

impl ServeArgs {
    /// Loads the models.
    pub fn load_models(
        &self,
        model: &ModelArgs,
        engine: &EngineArgs,
    ) -> Result<Vec<ModelSource>, Error> {
        if self.served_model_name.iter().any(String::is_empty) {
            return Err(Error::usage("--served-model-name: a name is empty: leave it out"));
        }
        let each = model.each()?;
        let is_one = each.len() == 1;
        let names = each.iter().filter_map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let weights = self.weights(&names, is_one)?;
        if !is_one {
            self.check_several(model, engine)?;
        }
        let mut plans: Vec<Plan> = Vec::new();
        for (name, model) in each {
            let log = self.record.clone().map(|path| DecisionLogs::new(path, self.force));
            let (name, engine) = (name.filter(|_| !is_one), engine.clone());
            plans.push(Plan { name, model, engine, share: EngineShare::default(), log });
        }
        let setups = plans.iter().map(Plan::load).collect::<Result<Vec<_>, _>>()?;
        let adapters = match &setups[..] {
            [setup] => self.lora.load(&setup.model.config)?,
            _ => Vec::new(),
        };
        if !is_one {
            let shares = EngineShare::of(&setups, &weights, engine)?;
            plans.iter_mut().zip(shares).for_each(|(plan, share)| plan.share = share);
        }
        let engines: Result<Vec<Engine>, Error> =
            plans.iter().zip(&setups).map(|(plan, setup)| plan.engine(setup)).collect();
        let loaded = setups.into_iter().zip(engines?);
        let mut sources: Vec<ModelSource> = plans
            .into_iter()
            .zip(loaded)
            .map(|(plan, (setup, engine))| plan.source(setup, engine))
            .collect();
        if is_one {
            self.name_one(&mut sources[0], adapters)?;
        }
        Ok(sources)
    }

    /// Gives the only model its names and adapters.
    fn name_one(&self, source: &mut ModelSource, adapters: Vec<NamedAdapter>) -> Result<(), Error> {
        if !adapters.is_empty() && !source.loaded.1.takes_adapters() {
            return Err(Error::usage(
                "--lora: adapters are computed on the CPU alone: give --device cpu",
            ));
        }
        source.adapters = adapters;
        if let Some(name) = self.served_model_name.first() {
            source.loaded.0.name.clone_from(name);
            source.names.clone_from(&self.served_model_name);
        }
        Ok(())
    }

    /// The weight of each of the models called `names`.
    fn weights(&self, names: &[String], is_one: bool) -> Result<Vec<u32>, Error> {
        for (at, ModelWeight { name, .. }) in self.model_share.iter().enumerate() {
            if is_one {
                return Err(Error::usage(
                    "--model-share: there is one model: leave it out, or give several, each as \
                     --model NAME=PATH",
                ));
            }
            if !names.contains(name) {
                return Err(Error::usage(format!(
                    "--model-share {name}=...: there is no model of this name: give one of {}",
                    names.join(", ")
                )));
            }
            if self.model_share[..at].iter().any(|other| other.name == *name) {
                return Err(Error::usage(format!("--model-share {name}=... is given twice")));
            }
        }
        let weight = |name: &String| {
            self.model_share
                .iter()
                .find(|share| share.name == *name)
                .map_or(1, |share| share.weight)
        };
        Ok(names.iter().map(weight).collect())
    }

    /// Refuses options that are about one model, and say not which.
    fn check_several(&self, model: &ModelArgs, engine: &EngineArgs) -> Result<(), Error> {
        let given = [
            (!self.served_model_name.is_empty(), "--served-model-name"),
            (!self.lora.is_empty(), "--lora"),
            (self.allow_runtime_lora_updating, "--allow-runtime-lora-updating"),
            (engine.names_draft(), "--speculate draft:PATH"),
        ];
        let given = given.into_iter().find_map(|(is_given, option)| is_given.then_some(option));
        match given.or_else(|| model.file_option()) {
            Some(option) => Err(Error::usage(format!(
                "{option} is for one model, and --model names several: leave it out, or serve one"
            ))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_parsed() {
        let weight = ModelWeight { name: "a".into(), weight: 3 };
        assert_eq!("a=3".parse(), Ok(weight));
        for text in ["a", "a=", "=3", "a=0", "a=1001", "a=x", "a=-1"] {
            assert!(text.parse::<ModelWeight>().unwrap_err().contains("NAME=WEIGHT"), "{text}");
        }
    }
}
