//! The live requests of a worker with their expected remaining tokens.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use trail_dynamo_proto::LoadReport;
use trail_runtime::engine::Event;

/// Name of the gauge of predicted work.
const OUTSTANDING: &str = "trail:predicted_tokens_outstanding";

/// One live request.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Expected tokens at `age`.
    remaining: f32,
    /// Output tokens so far.
    age: u32,
    running: bool,
}

/// The live requests.
#[derive(Default)]
pub struct LoadBook {
    entries: Mutex<(u64, HashMap<u64, Entry>)>,
    /// A request came or went.
    pub changed: Notify,
}

impl LoadBook {
    /// Enters a request that waits; its entry lasts as long as the guard.
    pub fn enter(self: &Arc<Self>, age: u32, remaining: f32) -> BookEntry {
        let id = {
            let mut entries = self.lock();
            entries.0 += 1;
            let id = entries.0;
            entries.1.insert(id, Entry { remaining, age, running: false });
            id
        };
        self.changed.notify_one();
        BookEntry { book: self.clone(), id }
    }

    /// True if no request is live.
    pub fn is_empty(&self) -> bool {
        self.lock().1.is_empty()
    }

    /// The sum of the expected remaining tokens, as an exposition of Prometheus: the gauge of the
    /// server, by which the manifests of `deploy/` scale the workers.
    pub fn exposition(&self) -> String {
        let tokens: f32 = self.lock().1.values().map(|entry| entry.remaining.max(1.0)).sum();
        format!(
            "# HELP {OUTSTANDING} Output tokens that are predicted to come, of all requests\n\
             # TYPE {OUTSTANDING} gauge\n{OUTSTANDING} {tokens}\n"
        )
    }

    /// Fills the two lists of a report.
    pub fn fill(&self, report: &mut LoadReport) {
        report.running.clear();
        report.waiting.clear();
        for entry in self.lock().1.values() {
            let list = if entry.running { &mut report.running } else { &mut report.waiting };
            list.push(entry.remaining.max(1.0));
        }
    }

    fn lock(&self) -> MutexGuard<'_, (u64, HashMap<u64, Entry>)> {
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
        let Some(entry) = entries.1.get_mut(&self.id) else { return };
        match *event {
            Event::Token { .. } => {
                entry.running = true;
                entry.age += 1;
                entry.remaining -= 1.0;
            }
            Event::Prediction { generated, remaining } => {
                entry.remaining = remaining - entry.age.saturating_sub(generated) as f32;
            }
            Event::Preempted { .. } => entry.running = false,
            Event::Alternative { .. } | Event::Finished { .. } => {}
        }
    }
}

impl Drop for BookEntry {
    fn drop(&mut self) {
        self.book.lock().1.remove(&self.id);
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
        let entry = book.enter(0, 50.0);
        assert_eq!(lists(&book), (vec![], vec![50.0]));
        entry.record(&Event::Token { id: 1, logprob: 0.0 });
        assert_eq!(lists(&book), (vec![49.0], vec![]));
        // From the activation of the prompt: the token above was still to come.
        entry.record(&Event::Prediction { generated: 0, remaining: 30.0 });
        assert_eq!(lists(&book), (vec![29.0], vec![]));
        entry.record(&Event::Preempted { evicted: false, times: 1 });
        assert_eq!(lists(&book), (vec![], vec![29.0]));
        let other = book.enter(3, 8.0);
        assert!(book.exposition().ends_with("\ntrail:predicted_tokens_outstanding 37\n"));
        drop(other);
        drop(entry);
        assert_eq!(lists(&book), (vec![], vec![]));
    }

    #[test]
    fn a_running_request_has_at_least_one_token_left() {
        let book = Arc::new(LoadBook::default());
        let entry = book.enter(9, 1.0);
        (0..3).for_each(|_| entry.record(&Event::Token { id: 1, logprob: 0.0 }));
        assert_eq!(lists(&book), (vec![1.0], vec![]));
    }
}
