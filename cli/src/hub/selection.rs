//! Choice of a repository's files that make a model.

use super::reference::{HubReference, is_file};

/// Files beside the weights, fetched where the repository has them.
const COMPANIONS: [&str; 7] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "probe.safetensors",
    "predictor.safetensors",
];

/// Most names that an error lists.
const MAX_LISTED: usize = 20;

/// Files of a model, by their names in the repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selection {
    /// Small files beside the weights.
    pub(super) companions: Vec<String>,
    /// The weights; of a sharded safetensors model the index, which names the shards.
    pub(super) weights: Vec<String>,
}

impl Selection {
    /// Chooses from the `files` of a repository. Errors are one line.
    pub(super) fn of(model: &HubReference, files: &[String]) -> Result<Selection, String> {
        let files: Vec<&str> =
            files.iter().map(String::as_str).filter(|file| is_file(file)).collect();
        match &model.file {
            Some(file) => named(model, file, &files),
            None => default(model, &files),
        }
    }

    /// The index of a sharded safetensors model.
    pub(super) fn index(&self) -> Option<&str> {
        let first = self.weights.first()?;
        first.ends_with(".safetensors.index.json").then_some(first)
    }

    /// The file that names the model.
    pub(super) fn opened(&self) -> Option<&str> {
        self.weights.first().map(String::as_str)
    }

    /// True if the weights are safetensors.
    pub(super) fn is_safetensors(&self) -> bool {
        self.opened().is_some_and(|file| file.contains(".safetensors"))
    }

    /// True if a companion `name` was chosen.
    pub(super) fn has(&self, name: &str) -> bool {
        self.companions.iter().any(|file| file.rsplit('/').next() == Some(name))
    }
}

/// The files of the model that `file` is part of.
fn named(model: &HubReference, file: &str, files: &[&str]) -> Result<Selection, String> {
    if !files.contains(&file) {
        let is_model = |file: &&str| is_weights(file) && !is_companion(file);
        let models: Vec<&str> = files.iter().copied().filter(is_model).collect();
        let repository = &model.repository;
        return Err(format!("{repository} has no file {file}: name one of {}", list(&models)));
    }
    let weights = match shards(file) {
        Some(shards) => shards,
        None => vec![file.to_owned()],
    };
    if let Some(missing) = weights.iter().find(|shard| !files.contains(&shard.as_str())) {
        let repository = &model.repository;
        return Err(format!("{repository} has no file {missing}, which belongs to {file}"));
    }
    let companions = if is_weights(file) { companions(file, files) } else { Vec::new() };
    Ok(Selection { companions, weights })
}

/// The files of the only model of a repository.
fn default(model: &HubReference, files: &[&str]) -> Result<Selection, String> {
    for file in ["model.safetensors", "model.safetensors.index.json"] {
        if files.contains(&file) {
            return named(model, file, files);
        }
    }
    let first_of_shards = |file: &&str| shards(file).is_none_or(|shards| shards[0] == **file);
    let of_kind = |end: &str| -> Vec<&str> {
        let found = files.iter().copied().filter(|file| file.ends_with(end) && !is_companion(file));
        found.filter(first_of_shards).collect()
    };
    let (safetensors, gguf) = (of_kind(".safetensors"), of_kind(".gguf"));
    let repository = &model.repository;
    match (&safetensors[..], &gguf[..]) {
        ([], []) => Err(format!(
            "{repository} has neither safetensors nor .gguf files: choose a repository with one of \
             the two"
        )),
        ([file], []) | ([], [file]) => named(model, file, files),
        _ => {
            let all = [safetensors, gguf].concat();
            Err(format!(
                "{repository} has several models: name one, {repository}:FILE, of {}",
                list(&all)
            ))
        }
    }
}

fn is_weights(file: &str) -> bool {
    [".safetensors", ".safetensors.index.json", ".gguf"].iter().any(|end| file.ends_with(end))
}

/// True for a file beside weights of another name.
fn is_companion(file: &str) -> bool {
    file.rsplit('/').next().is_some_and(|name| COMPANIONS.contains(&name))
}

/// The files beside `weights` that are in `files`.
fn companions(weights: &str, files: &[&str]) -> Vec<String> {
    let folder = weights.rfind('/').map_or("", |end| &weights[..=end]);
    let beside = COMPANIONS.iter().map(|name| format!("{folder}{name}"));
    beside.filter(|file| files.contains(&file.as_str()) && file != weights).collect()
}

/// The files of the model with `file`, `NAME-00001-of-00003.gguf`, the first one first.
fn shards(file: &str) -> Option<Vec<String>> {
    let (rest, count) = file.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let count = [number, count].iter().all(|digits| digits.len() == 5).then_some(count)?;
    let count: u32 = count.parse().ok().filter(|count| (1..=1000).contains(count))?;
    number.parse::<u32>().ok()?;
    Some((1..=count).map(|shard| format!("{name}-{shard:05}-of-{count:05}.gguf")).collect())
}

fn list(files: &[&str]) -> String {
    let shown = files[..files.len().min(MAX_LISTED)].join(", ");
    match files.len() {
        0 => "none: it has no model".into(),
        1..=MAX_LISTED => shown,
        all => format!("{shown} and {} others", all - MAX_LISTED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, files: &[&str]) -> Result<Selection, String> {
        let files: Vec<String> = files.iter().map(|&file| file.into()).collect();
        Selection::of(&name.parse().expect("a name"), &files)
    }

    fn selection(companions: &[&str], weights: &[&str]) -> Result<Selection, String> {
        let owned = |files: &[&str]| files.iter().map(|&file| file.into()).collect();
        Ok(Selection { companions: owned(companions), weights: owned(weights) })
    }

    #[test]
    fn safetensors_come_with_the_files_beside_them() {
        let files = [
            ".gitattributes",
            "README.md",
            "config.json",
            "model.safetensors",
            "probe.safetensors",
            "tokenizer.json",
            "onnx/model.onnx",
            "x.gguf",
            "../config.json",
        ];
        let companions = ["config.json", "tokenizer.json", "probe.safetensors"];
        let expected = selection(&companions, &["model.safetensors"]);
        assert_eq!(of("a/b", &files), expected);
        assert_eq!(of("a/b:model.safetensors", &files), expected);
        assert_eq!(of("a/b:x.gguf", &files), selection(&companions, &["x.gguf"]));
        assert_eq!(of("a/b:README.md", &files), selection(&[], &["README.md"]));
        let sharded =
            of("a/b", &["model.safetensors.index.json", "model-00001-of-00002.safetensors"]);
        assert_eq!(
            sharded.as_ref().map(Selection::index),
            Ok(Some("model.safetensors.index.json"))
        );
        let nested =
            of("a/b:c/d.safetensors", &["config.json", "c/config.json", "c/d.safetensors"]);
        assert_eq!(nested, selection(&["c/config.json"], &["c/d.safetensors"]));
    }

    #[test]
    fn of_several_models_one_must_be_named() {
        assert_eq!(of("a/b", &["q4.gguf"]), selection(&[], &["q4.gguf"]));
        let shards = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        assert_eq!(of("a/b", &shards), selection(&[], &shards));
        assert_eq!(of("a/b:m-00002-of-00002.gguf", &shards), selection(&[], &shards));
        for (name, files, says) in [
            ("a/b", &["q4.gguf", "q8.gguf"][..], "name one, a/b:FILE, of q4.gguf, q8.gguf"),
            ("a/b", &["README.md"], "neither safetensors nor .gguf"),
            ("a/b", &["probe.safetensors"], "neither safetensors nor .gguf"),
            (
                "a/b:c.gguf",
                &["probe.safetensors", "q4.gguf"],
                "has no file c.gguf: name one of q4.gguf",
            ),
            ("a/b:c.gguf", &[], "none: it has no model"),
            ("a/b", &shards[..1], "has no file m-00002-of-00002.gguf"),
        ] {
            let error = of(name, files).expect_err("refused");
            assert!(error.contains(says), "{error}");
        }
        let many: Vec<String> = (0..30).map(|n| format!("{n}.gguf")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(of("a/b", &many).expect_err("several").ends_with(", 19.gguf and 10 others"));
    }
}
