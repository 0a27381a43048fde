//! The live requests of a worker with their expected remaining tokens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use trail_dynamo_proto::LoadReport;
use trail_runtime::engine::{Event, FinishReason};

/// Name of the gauge of predicted work.
const OUTSTANDING: &str = "trail:predicted_tokens_outstanding";

/// One live request.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Predicted tokens at `age`; `None` without a prediction.
    remaining: Option<f32>,
    /// Output tokens so far.
    age: u32,
    running: bool,
}

/// The live requests, and the lengths of answers.
#[derive(Default)]
struct Entries {
    /// Requests that were entered.
    entered: u64,
    live: HashMap<u64, Entry>,
    /// Whole answers, and their tokens.
    answers: u32,
    answer_tokens: f64,
}

impl Entries {
    /// The expected remaining tokens of `entry`. Without a prediction they are the mean answer, as
    /// in the server's gauge, and not `max_tokens`, which is often the whole context.
    fn expected(&self, entry: &Entry) -> f32 {
        let mean = (self.answer_tokens / f64::from(self.answers.max(1))) as f32;
        entry.remaining.map_or(mean, |remaining| remaining.max(1.0))
    }
}

/// The live requests.
#[derive(Default)]
pub struct LoadBook {
    entries: Mutex<Entries>,
    /// A request came or went.
    pub changed: Notify,
}

impl LoadBook {
    /// Enters a request that waits; its entry lasts as long as the guard.
    pub fn enter(self: &Arc<Self>, age: u32, remaining: Option<f32>) -> BookEntry {
        let id = {
            let mut entries = self.lock();
            entries.entered += 1;
            let id = entries.entered;
            entries.live.insert(id, Entry { remaining, age, running: false });
            id
        };
        self.changed.notify_one();
        BookEntry { book: self.clone(), id }
    }

    /// True if no request is live.
    pub fn is_empty(&self) -> bool {
        self.lock().live.is_empty()
    }

    /// The sum of the expected remaining tokens, as an exposition of Prometheus: the gauge of the
    /// server, by which the manifests of `deploy/` scale the workers.
    pub fn exposition(&self) -> String {
        let entries = self.lock();
        let tokens: f32 = entries.live.values().map(|entry| entries.expected(entry)).sum();
        format!(
            "# HELP {OUTSTANDING} Output tokens that are predicted to come, of all requests\n\
             # TYPE {OUTSTANDING} gauge\n{OUTSTANDING} {tokens}\n"
        )
    }

    /// Fills the two lists of a report.
    pub fn fill(&self, report: &mut LoadReport) {
        report.running.clear();
        report.waiting.clear();
        let entries = self.lock();
        for entry in entries.live.values() {
            let list = if entry.running { &mut report.running } else { &mut report.waiting };
            list.push(entries.expected(entry).max(1.0));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One request's entry; dropping it removes it.
pub struct BookEntry {
    book: Arc<LoadBook>,
    id: u64,
}

impl BookEntry {
    /// Records an event of the request.
    pub fn record(&self, event: &Event) {
        let mut entries = self.book.lock();
        let Entries { live, answers, answer_tokens, .. } = &mut *entries;
        let Some(entry) = live.get_mut(&self.id) else { return };
        match *event {
            Event::Token { .. } => {
                entry.running = true;
                entry.age += 1;
                entry.remaining = entry.remaining.map(|remaining| remaining - 1.0);
            }
            Event::Prediction { generated, remaining } => {
                let since = entry.age.saturating_sub(generated) as f32;
                entry.remaining = Some(remaining - since);
            }
            Event::Preempted { .. } => entry.running = false,
            Event::Finished { reason: FinishReason::Stop | FinishReason::Length } => {
                *answers += 1;
                *answer_tokens += f64::from(entry.age);
            }
            Event::PromptToken { .. } | Event::Alternative { .. } | Event::Finished { .. } => {}
        }
    }
}

impl Drop for BookEntry {
    fn drop(&mut self) {
        self.book.lock().live.remove(&self.id);
        self.book.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(book: &LoadBook) -> (Vec<f32>, Vec<f32>) {
        let mut report = LoadReport::default();
        book.fill(&mut report);
        (report.running, report.waiting)
    }

    #[test]
    fn a_request_waits_runs_is_preempted_and_goes() {
        let book = Arc::new(LoadBook::default());
        let entry = book.enter(0, Some(50.0));
        assert_eq!(lists(&book), (vec![], vec![50.0]));
        entry.record(&Event::Token { id: 1, logprob: 0.0 });
        assert_eq!(lists(&book), (vec![49.0], vec![]));
        // From the activation of the prompt: the token above was still to come.
        entry.record(&Event::Prediction { generated: 0, remaining: 30.0 });
        assert_eq!(lists(&book), (vec![29.0], vec![]));
        entry.record(&Event::Preempted { evicted: false, times: 1 });
        assert_eq!(lists(&book), (vec![], vec![29.0]));
        let other = book.enter(3, Some(8.0));
        assert!(book.exposition().ends_with("\ntrail:predicted_tokens_outstanding 37\n"));
        drop(other);
        drop(entry);
        assert_eq!(lists(&book), (vec![], vec![]));
    }

    #[test]
    fn a_running_request_has_at_least_one_token_left() {
        let book = Arc::new(LoadBook::default());
        let entry = book.enter(9, Some(1.0));
        (0..3).for_each(|_| entry.record(&Event::Token { id: 1, logprob: 0.0 }));
        assert_eq!(lists(&book), (vec![1.0], vec![]));
    }
    #[test]
    fn requests_without_a_prediction_count_as_the_mean_answer() {
        let book = Arc::new(LoadBook::default());
        let gauge = || book.exposition().rsplit_once(' ').map(|(_, value)| value.trim().to_owned());
        let end = |tokens: usize, reason| {
            let entry = book.enter(0, None);
            (0..tokens).for_each(|_| entry.record(&Event::Token { id: 1, logprob: 0.0 }));
            entry.record(&Event::Finished { reason });
        };
        let _open = [book.enter(0, None), book.enter(0, None)];
        assert_eq!(gauge().as_deref(), Some("0"), "no answer is known");
        assert_eq!(lists(&book).1, [1.0, 1.0]);
        end(10, FinishReason::Stop);
        end(30, FinishReason::Length);
        end(500, FinishReason::Cancelled);
        let _predicted = book.enter(0, Some(7.0));
        assert_eq!(gauge().as_deref(), Some("47"));
        let mut waiting = lists(&book).1;
        waiting.sort_unstable_by(f32::total_cmp);
        assert_eq!(waiting, [7.0, 20.0, 20.0]);
    }
}
