//! Golden runs: what transformers computed, and the check of a forward pass against it.

use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Largest difference of a log probability from the golden one.
pub const MAX_LOGPROB_ERROR: f64 = 1e-3;
/// Below this gap between the two largest logits either token counts as correct.
pub const MIN_GAP: f64 = 2e-3;

/// The content of `golden.json`, written by `runtime/tests/golden/make/make.py`.
#[derive(Deserialize)]
pub struct Golden {
    /// Folder of the model's files.
    #[serde(skip)]
    pub folder: PathBuf,
    /// Prompt tokens.
    pub prompt: Vec<u32>,
    /// Greedy continuation.
    pub greedy: Vec<u32>,
    /// Log probability of each greedy token.
    pub logprobs: Vec<f64>,
    /// Largest logit minus second largest, at each greedy token.
    pub gaps: Vec<f64>,
    /// Complete logits at some steps.
    pub rows: Vec<Row>,
    /// The residual stream after each layer at the prompt's last token: `[layers][d]`.
    pub hidden: Vec<Vec<f32>>,
}

/// Logits from which one greedy token was chosen.
#[derive(Deserialize)]
pub struct Row {
    /// Index into [`Golden::greedy`].
    pub step: usize,
    /// `[vocab]`
    pub logits: Vec<f32>,
}

impl Golden {
    /// Reads the golden run in `folder`.
    pub fn load(folder: &Path) -> Golden {
        let file = folder.join("golden.json");
        let bytes = std::fs::read(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let golden: Golden = serde_json::from_slice(&bytes).expect("golden.json");
        Golden { folder: folder.to_path_buf(), ..golden }
    }

    /// All golden runs below `folder`, by name.
    pub fn all(folder: &Path) -> Vec<Golden> {
        let entries = std::fs::read_dir(folder).expect("folder of golden runs");
        let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("entry").path()).collect();
        folders.sort();
        // The scripts that write the runs are beside them.
        let is_run = |folder: &&PathBuf| folder.is_dir() && !folder.ends_with("make");
        folders.iter().filter(is_run).map(|folder| Golden::load(folder)).collect()
    }

    /// Name of the folder: variant and dtype.
    pub fn name(&self) -> String {
        self.folder.file_name().expect("name").to_string_lossy().into_owned()
    }
}

/// Compares a forward pass with `golden`; returns the largest difference of a log probability.
///
/// `logits_of` computes the logits after the last of the given tokens: `[vocab]`. It is fed the
/// golden tokens, so that one near tie does not change all later positions.
pub fn check(golden: &Golden, mut logits_of: impl FnMut(&[u32]) -> Vec<f32>) -> f64 {
    let mut tokens = golden.prompt.clone();
    let mut largest = 0.0f64;
    for (step, &expected) in golden.greedy.iter().enumerate() {
        let at = format!("{}, step {step}", golden.name());
        let logits = logits_of(&tokens);
        let error = (log_softmax(&logits, expected) - golden.logprobs[step]).abs();
        assert!(error <= MAX_LOGPROB_ERROR, "{at}: log probability off by {error:.2e}");
        largest = largest.max(error);
        if golden.gaps[step] >= MIN_GAP {
            assert_eq!(argmax(&logits), expected, "{at}: another token");
        }
        for row in golden.rows.iter().filter(|row| row.step == step) {
            assert_eq!(logits.len(), row.logits.len(), "{at}: vocabulary");
            for token in 0..logits.len() as u32 {
                let error = (log_softmax(&logits, token) - log_softmax(&row.logits, token)).abs();
                assert!(error <= MAX_LOGPROB_ERROR, "{at}, token {token}: off by {error:.2e}");
            }
        }
        tokens.push(expected);
    }
    largest
}

/// The log probability of `token`.
pub fn log_softmax(logits: &[f32], token: u32) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    f64::from(logits[token as usize]) - max - sum.ln()
}

/// The most likely token.
pub fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("a vocabulary").0 as u32
}
