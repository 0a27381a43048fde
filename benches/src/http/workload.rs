//! The requests of `bench http`, and the runs that send them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant as Alarm, sleep_until};
use trail_cli::{Error, read_json_lines};
use trail_scheduler::rng::{Rng, mix};
use trail_simulator::Trace;
use trail_simulator::arrivals::Arrivals;

use super::client::{Answer, Client};
use super::{HttpArgs, Process};

/// Words of synthetic prompts.
const WORDS: [&str; 16] = [
    "river", "stone", "winter", "signal", "garden", "number", "paper", "window", "engine",
    "copper", "letter", "market", "valley", "doctor", "island", "orange",
];

/// Prompts of the requests, and their most output tokens; both over and over.
pub(super) struct Workload {
    prompts: Vec<Arc<str>>,
    max_tokens: Vec<usize>,
    /// Arrivals of a trace, seconds from the first; empty without one.
    arrivals: Vec<f64>,
    requests: usize,
    seed: u64,
}

impl Workload {
    pub(super) fn new(args: &HttpArgs) -> Result<Workload, Error> {
        let HttpArgs { requests, max_tokens, seed, prompt_words, .. } = *args;
        let synthetic = |words: &[usize]| -> Vec<Arc<str>> {
            (0..).zip(words).map(|(at, &words)| synthetic(seed, at, words)).collect()
        };
        if let Some(path) = &args.trace {
            let traces = read(path, |text| Trace::parse(text).map_err(|why| why.to_string()))?;
            let traces = &traces[..requests.min(traces.len())];
            let words: Vec<usize> = traces.iter().map(|of| of.prompt_tokens as usize).collect();
            return Ok(Workload {
                prompts: synthetic(&words),
                max_tokens: traces
                    .iter()
                    .map(|of| max_tokens.min(of.output_tokens as usize).max(1))
                    .collect(),
                arrivals: traces.iter().map(|of| of.arrival_s - traces[0].arrival_s).collect(),
                requests: traces.len(),
                seed,
            });
        }
        if args.arrivals == Process::Trace {
            return Err(Error::usage("--arrivals trace needs the file of one: give --trace FILE"));
        }
        let prompts = match &args.prompts {
            Some(path) => read(path, prompts)?,
            None => synthetic(&vec![prompt_words; requests]),
        };
        let (max_tokens, arrivals) = (vec![max_tokens], Vec::new());
        Ok(Workload { prompts, max_tokens, arrivals, requests, seed })
    }

    /// Times of the requests at `rate` (`None`: all at once); round `round` has others, but those
    /// of a trace are the same.
    pub(super) fn times(&self, process: Process, rate: Option<f64>, round: usize) -> Vec<f64> {
        let mut rng = Rng::new(mix(self.seed ^ mix(round as u64)));
        let arrivals = match (process, rate) {
            (Process::Burst, _) | (_, None) => Arrivals::Burst,
            (Process::Poisson, Some(rate)) => Arrivals::Poisson { rate },
            (Process::Gamma, Some(rate)) => Arrivals::gamma_at(rate),
            (Process::Trace, Some(rate)) => {
                let last = self.arrivals.last().copied().unwrap_or(0.0);
                let scale = self.requests as f64 / rate / last.max(1e-9);
                return self.arrivals.iter().map(|at| at * scale).collect();
            }
        };
        arrivals.seconds(self.requests, &mut rng)
    }

    /// Requests of a run.
    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    /// Sends one short request, which must be answered.
    pub(super) async fn send_one(&self, client: &Client) -> Result<(), Error> {
        let answer = client.ask(&self.prompts[0], (8, self.seed), Instant::now()).await;
        answer.error.map_or(Ok(()), |why| Err(Error::failed(why)))
    }

    /// Requests per second where all arrive at once: those of the middle half by the time of their
    /// ends, as the batch is not full at the beginning and at the end.
    pub(super) async fn capacity(&self, client: &Client) -> Result<f64, Error> {
        let answers = self.send(client, vec![0.0; self.requests]).await;
        super::check(&answers)?;
        let whole = answers.iter().filter(|answer| answer.error.is_none());
        let mut ends: Vec<f64> = whole.map(|answer| answer.latency_s).collect();
        ends.sort_by(f64::total_cmp);
        let [low, high] = [ends.len() / 4, (3 * ends.len() / 4).min(ends.len() - 1)];
        match ends[high] > ends[low] {
            true => Ok((high - low) as f64 / (ends[high] - ends[low])),
            false => Ok(ends.len() as f64 / ends[high].max(1e-3)),
        }
    }

    /// Sends all requests at `times`, seconds.
    pub(super) async fn send(&self, client: &Client, times: Vec<f64>) -> Vec<Answer> {
        let bar = bar(self.requests as u64);
        let (begin, done) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        // Dropped, it ends the requests of an interrupted run.
        let mut tasks = JoinSet::new();
        for (at, second) in times.into_iter().enumerate() {
            let (client, bar, done) = (client.clone(), bar.clone(), done.clone());
            let prompt = self.prompts[at % self.prompts.len()].clone();
            let max_tokens = self.max_tokens[at % self.max_tokens.len()];
            let limits = (max_tokens, mix(self.seed ^ at as u64));
            let due = begin + Duration::from_secs_f64(second);
            tasks.spawn(async move {
                sleep_until(Alarm::from_std(due)).await;
                let answer = client.ask(&prompt, limits, due).await;
                bar.set_position(done.fetch_add(1, Ordering::Relaxed) as u64 + 1);
                Answer { due_s: second, ..answer }
            });
        }
        let mut answers = Vec::with_capacity(tasks.len());
        while let Some(task) = tasks.join_next().await {
            let failed =
                |why: JoinError| Answer { error: Some(why.to_string()), ..Answer::default() };
            answers.push(task.unwrap_or_else(failed));
        }
        answers.sort_by(|a, b| a.due_s.total_cmp(&b.due_s));
        bar.finish_and_clear();
        answers
    }
}

fn bar(total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("[{bar:32}] {pos} of {len} answers, {elapsed}");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// The prompts of a file.
fn prompts(text: &str) -> Result<Vec<Arc<str>>, String> {
    let mut prompts = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let object: Value = serde_json::from_str(line).unwrap_or_default();
        let prompt = object["prompt"].as_str();
        let expected = || format!("line {}: expected an object with a \"prompt\"", at + 1);
        prompts.push(prompt.ok_or_else(expected)?.into());
    }
    match prompts.is_empty() {
        true => Err("it has no prompts".into()),
        false => Ok(prompts),
    }
}

/// Reads a file by `parse`, whose error the message names with the file.
fn read<T>(path: &Path, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, Error> {
    let failed = |why: String| Error::usage(format!("{}: {why}", path.display()));
    let text = read_json_lines(path).map_err(|error| failed(error.to_string()))?;
    parse(&text).map_err(failed)
}

/// Prompt `at`, of random words, so that none is found in a cache.
fn synthetic(seed: u64, at: u64, words: usize) -> Arc<str> {
    let mut rng = Rng::new(mix(seed) ^ mix(at));
    let word = |_| WORDS[rng.below(WORDS.len() as u64) as usize];
    let words: Vec<&str> = (0..words).map(word).collect();
    format!("Write about these words: {}", words.join(" ")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_read_a_line_each() {
        let read = prompts("{\"prompt\":\"a\"}\n\n{\"prompt\":\"b\",\"seed\":1}\n").expect("sound");
        assert_eq!(read.iter().map(|of| &**of).collect::<Vec<_>>(), ["a", "b"]);
        assert!(prompts("{\"prompt\":1}").is_err_and(|why| why.starts_with("line 1")));
        assert!(prompts("\n").is_err());
    }
}
