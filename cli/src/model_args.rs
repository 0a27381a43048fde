//! Options of models.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::{Args, ValueEnum};

use crate::args::context;
use crate::error::Error;
use crate::prediction_args::PredictionArgs;

/// Options of the model and its probe.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// A GGUF file, or a safetensors file with config.json and tokenizer.json beside it, or their
    /// folder, or `hf:OWNER/NAME[:FILE]`, fetched from the hub where the cache lacks it; serve
    /// takes several, each as NAME=PATH [default: the bundled demo model]
    #[arg(long, global = true, value_name = "PATH")]
    model: Vec<ModelArg>,
    /// Options of probe and prompt-only predictor.
    #[command(flatten)]
    pub(crate) prediction: PredictionArgs,
    /// Tokens of prompt and answer together [default: the model's context, which is also the most]
    #[arg(long, global = true, value_name = "TOKENS", value_parser = context)]
    pub(crate) max_model_len: Option<usize>,
    /// Sampling defaults: model, those of its generation_config.json, or none: temperature 1, all
    /// tokens
    #[arg(long, global = true, value_name = "SOURCE", default_value = "model")]
    pub(crate) generation_config: SamplingSource,
}

/// Source of the sampling parameters that a request does not name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SamplingSource {
    /// The model's generation_config.json.
    #[default]
    Model,
    /// None: the distribution of the model.
    None,
}

/// A value of `--model`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelArg {
    /// Name in requests; `None` for that of its file or folder.
    pub(crate) name: Option<String>,
    /// File, folder, or place on the hub.
    pub(crate) path: PathBuf,
}

impl FromStr for ModelArg {
    type Err = String;

    /// `NAME=PATH`, or a path: one that is there, or whose part before the `=` is no name.
    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, path)) if is_name(name) && !Path::new(text).exists() => match path {
                "" => Err("expected NAME=PATH: the path is missing".into()),
                path => Ok(ModelArg { name: Some(name.to_owned()), path: path.into() }),
            },
            _ => Ok(ModelArg { name: None, path: text.into() }),
        }
    }
}

/// True for a name of a model: it has no `/`, so that no path is one.
fn is_name(text: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-:".contains(&byte);
    !text.is_empty() && text.bytes().all(is_letter)
}

impl ModelArgs {
    /// The model, if one is named.
    ///
    /// # Errors
    ///
    /// There are several.
    pub(crate) fn one(&self) -> Result<Option<&ModelArg>, Error> {
        match &self.model[..] {
            [] => Ok(None),
            [model] => Ok(Some(model)),
            several => Err(Error::usage(format!(
                "--model is given {} times: this command takes one model, serve alone takes several",
                several.len()
            ))),
        }
    }

    /// The options of each model with its name; one without a name is alone.
    ///
    /// # Errors
    ///
    /// One of several has no name, or the name of another one.
    pub fn each(&self) -> Result<Vec<(Option<String>, ModelArgs)>, Error> {
        if self.model.len() < 2 {
            let name = self.model.first().and_then(|model| model.name.clone());
            return Ok(vec![(name, self.clone())]);
        }
        let mut each: Vec<(Option<String>, ModelArgs)> = Vec::new();
        for model in &self.model {
            let Some(name) = &model.name else {
                return Err(Error::usage(format!(
                    "--model {}: each of several models needs a name: give --model NAME=PATH",
                    model.path.display()
                )));
            };
            if each.iter().any(|(other, _)| other.as_ref() == Some(name)) {
                return Err(Error::usage(format!(
                    "--model {name}=...: the name '{name}' is given twice: choose another one"
                )));
            }
            each.push((
                Some(name.clone()),
                ModelArgs { model: vec![model.clone()], ..self.clone() },
            ));
        }
        Ok(each)
    }

    /// The same with the model at `path`, if one is given.
    pub fn with_model(&self, path: Option<&Path>) -> ModelArgs {
        let of_path = |path: &Path| vec![ModelArg { name: None, path: path.to_path_buf() }];
        ModelArgs { model: path.map_or_else(|| self.model.clone(), of_path), ..self.clone() }
    }

    /// The first option that is about the files of one model, if any.
    pub fn file_option(&self) -> Option<&'static str> {
        let PredictionArgs { probe, encoder, .. } = &self.prediction;
        let given = [(probe.is_some(), "--probe"), (encoder.is_some(), "--encoder")];
        given.into_iter().find_map(|(is_given, option)| is_given.then_some(option))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(models: &[&str]) -> ModelArgs {
        let model = models.iter().map(|text| text.parse().expect("a model")).collect();
        ModelArgs { model, ..ModelArgs::default() }
    }

    #[test]
    fn a_name_stands_before_a_path_that_is_not_there() {
        let folder = std::env::temp_dir().join(format!("trail-model-args-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let beside = folder.join("b=1");
        std::fs::write(&beside, "").expect("written");
        let in_folder = format!("{}/b=2", folder.display());
        for (text, name, path) in [
            ("a=/x/b.gguf", Some("a"), "/x/b.gguf"),
            ("llama3:8b=hf:o/n:f=1", Some("llama3:8b"), "hf:o/n:f=1"),
            ("a", None, "a"),
            ("x/a=b", None, "x/a=b"),
            ("=b", None, "=b"),
            (beside.to_str().expect("UTF-8"), None, beside.to_str().expect("UTF-8")),
            (&in_folder, None, &in_folder),
        ] {
            let expected = ModelArg { name: name.map(str::to_owned), path: path.into() };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        assert!("a=".parse::<ModelArg>().is_err());
        std::fs::remove_dir_all(folder).expect("the test's own folder");
    }

    #[test]
    fn several_models_have_names_of_their_own() {
        let names = |models: &[&str]| -> Result<Vec<Option<String>>, String> {
            let each = args(models).each().map_err(|error| error.to_string())?;
            Ok(each.into_iter().map(|(name, _)| name).collect())
        };
        assert_eq!(names(&[]), Ok(vec![None]));
        assert_eq!(names(&["x"]), Ok(vec![None]));
        assert_eq!(names(&["a=x", "b=x"]), Ok(vec![Some("a".into()), Some("b".into())]));
        assert!(names(&["a=x", "y"]).unwrap_err().contains("--model y: each of several models"));
        assert!(names(&["a=x", "a=y"]).unwrap_err().contains("'a' is given twice"));
        let several = args(&["a=x", "b=y"]);
        assert!(several.one().unwrap_err().to_string().contains("given 2 times"));
        let each = several.each().expect("two");
        assert_eq!(each[1].1.one().expect("one").expect("named").path, Path::new("y"));
        assert_eq!(args(&[]).one(), Ok(None));
    }
}
