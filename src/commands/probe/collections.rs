//! Collections that a training takes as one: answers at several temperatures, or of several runs.

use std::collections::HashSet;
use std::path::PathBuf;

use trail_cli::Error;
use trail_training::Shard;

use super::collection::{Collection, Settings};

/// Collections of one model, with the same layers and bound on answers.
pub struct Collections {
    parts: Vec<Collection>,
    settings: Settings,
}

impl Collections {
    /// Opens the folders, one at least.
    pub fn open(folders: &[PathBuf]) -> Result<Collections, Error> {
        let parts: Vec<Collection> =
            folders.iter().map(|folder| Collection::open(folder)).collect::<Result<_, _>>()?;
        let mut settings = parts[0].settings().clone();
        let mut paths = HashSet::new();
        for part in &parts {
            // Answers that count twice would count as twice the evidence.
            if !paths.insert(part.path().canonicalize().unwrap_or_else(|_| part.path().into())) {
                let name = part.path().display();
                return Err(Error::usage(format!("--data {name} is given twice")));
            }
        }
        for part in &parts[1..] {
            let of = part.settings();
            let differs = [
                (of.fingerprint != settings.fingerprint, "model", "--model"),
                (of.layers != settings.layers, "list of layers", "--layers"),
                // An answer that was cut looks like one that has ended, where the cut is another.
                (of.max_tokens != settings.max_tokens, "bound on answers", "--max-tokens"),
            ];
            if let Some((_, what, option)) = differs.into_iter().find(|(differs, ..)| *differs) {
                return Err(Error::usage(format!(
                    "{} has another {what} than {}: collect it with the same {option}",
                    part.path().display(),
                    parts[0].path().display()
                )));
            }
            settings.requests += of.requests;
        }
        Ok(Collections { parts, settings })
    }

    /// The settings of the first one, with the requests of all.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The settings of all, which tell trainings on other data apart.
    pub fn key(&self) -> String {
        let parts: Vec<&Settings> = self.parts.iter().map(Collection::settings).collect();
        format!("{parts:?}")
    }

    /// Reads the shards of all; fails if some are missing.
    pub fn read_all(&self) -> Result<Vec<Shard>, Error> {
        let shards = self.parts.iter().map(Collection::read_all).collect::<Result<Vec<_>, _>>()?;
        Ok(shards.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folders with the settings alone.
    fn folders(of: &[Settings]) -> Vec<PathBuf> {
        let root = std::env::temp_dir().join(format!("trail-collections-{}", std::process::id()));
        let claim = |(at, settings): (usize, &Settings)| {
            let folder = root.join(format!("{at}-{}", settings.temperature));
            Collection::claim(&folder, settings.clone()).expect("a collection");
            folder
        };
        of.iter().enumerate().map(claim).collect()
    }

    #[test]
    fn collections_of_one_model_are_one_and_have_their_key() {
        let warm = Settings {
            model: "m".into(),
            fingerprint: "f".into(),
            layers: vec![3],
            prompts: "p.jsonl".into(),
            first: 0,
            requests: 24,
            rows: 8,
            max_tokens: 64,
            temperature: 1.0,
            seed: 1,
            shard: 8,
        };
        let greedy = Settings { temperature: 0.0, ..warm.clone() };
        let long = Settings { max_tokens: 128, ..warm.clone() };
        let paths = folders(&[warm, greedy, long]);
        let open = |paths: &[PathBuf]| Collections::open(paths).expect("collections");
        let refused =
            |paths: &[PathBuf]| Collections::open(paths).err().expect("refused").to_string();
        assert!(refused(&paths).ends_with("collect it with the same --max-tokens"));
        assert!(refused(&[paths[0].clone(), paths[0].clone()]).ends_with("is given twice"));
        let paths = &paths[..2];
        let both = open(paths);
        assert_eq!(both.settings().requests, 48);
        let keys = [both.key(), open(&paths[..1]).key(), open(&paths[1..]).key()];
        assert!(keys[0] != keys[1] && keys[1] != keys[2], "{keys:?}");
        assert_eq!(keys[0], open(paths).key());
        std::fs::remove_dir_all(paths[0].parent().expect("a folder")).expect("removed");
    }
}
