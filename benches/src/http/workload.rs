//! The requests of `bench http`, and the runs that send them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;
use tokio::time::{Instant as Alarm, sleep_until};
use trail_cli::{Error, read_json_lines};
use trail_scheduler::rng::{Rng, mix};
use trail_simulator::arrivals::Arrivals;

use super::HttpArgs;
use super::client::{Answer, Client};

/// Words of synthetic prompts.
const WORDS: [&str; 16] = [
    "river", "stone", "winter", "signal", "garden", "number", "paper", "window", "engine",
    "copper", "letter", "market", "valley", "doctor", "island", "orange",
];

/// Prompts of the requests.
pub(super) struct Workload {
    prompts: Vec<Arc<str>>,
    requests: usize,
    max_tokens: usize,
    seed: u64,
}

impl Workload {
    pub(super) fn new(args: &HttpArgs) -> Result<Workload, Error> {
        let prompts = match &args.prompts {
            Some(path) => {
                let failed = |why: String| Error::usage(format!("{}: {why}", path.display()));
                let text = read_json_lines(path).map_err(|error| failed(error.to_string()))?;
                prompts(&text).map_err(failed)?
            }
            None => synthetic(args),
        };
        let HttpArgs { requests, max_tokens, seed, .. } = *args;
        Ok(Workload { prompts, requests, max_tokens, seed })
    }

    /// Sends one short request, which must be answered.
    pub(super) async fn send_one(&self, client: &Client) -> Result<(), Error> {
        let answer = client.ask(&self.prompts[0], (8, self.seed), Instant::now()).await;
        answer.error.map_or(Ok(()), |why| Err(Error::failed(why)))
    }

    /// Requests per second where all arrive at once: those of the middle half by the time of their
    /// ends, as the batch is not full at the beginning and at the end.
    pub(super) async fn capacity(&self, client: &Client) -> Result<f64, Error> {
        let answers = self.send(client, Arrivals::Burst, 0).await;
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

    /// Sends all requests at the times of `arrivals`; round `round` has other times.
    pub(super) async fn send(
        &self,
        client: &Client,
        arrivals: Arrivals,
        round: usize,
    ) -> Vec<Answer> {
        let mut rng = Rng::new(mix(self.seed ^ mix(round as u64)));
        let times = arrivals.seconds(self.requests, &mut rng);
        let bar = bar(self.requests as u64);
        let (begin, done) = (Instant::now(), Arc::new(AtomicUsize::new(0)));
        let tasks = times.into_iter().enumerate().map(|(at, second)| {
            let (client, bar, done) = (client.clone(), bar.clone(), done.clone());
            let prompt = self.prompts[at % self.prompts.len()].clone();
            let limits = (self.max_tokens, mix(self.seed ^ at as u64));
            let due = begin + Duration::from_secs_f64(second);
            tokio::spawn(async move {
                sleep_until(Alarm::from_std(due)).await;
                let answer = client.ask(&prompt, limits, due).await;
                bar.set_position(done.fetch_add(1, Ordering::Relaxed) as u64 + 1);
                Answer { due_s: second, ..answer }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        let mut answers = Vec::with_capacity(tasks.len());
        for task in tasks {
            let failed = |why: tokio::task::JoinError| Answer {
                error: Some(why.to_string()),
                ..Answer::default()
            };
            answers.push(task.await.unwrap_or_else(failed));
        }
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

/// Prompts of random words, so that none is found in a cache.
fn synthetic(args: &HttpArgs) -> Vec<Arc<str>> {
    let prompt = |at: usize| {
        let mut rng = Rng::new(mix(args.seed) ^ mix(at as u64));
        let word = |_| WORDS[rng.below(WORDS.len() as u64) as usize];
        let words: Vec<&str> = (0..args.prompt_words).map(word).collect();
        format!("Write about these words: {}", words.join(" ")).into()
    };
    (0..args.requests).map(prompt).collect()
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
