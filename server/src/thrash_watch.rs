//! Warning where the engine recomputes more than it generates.

use std::sync::Arc;
use std::time::Duration;

use trail_cli::notice;
use trail_runtime::engine::Stats;

use crate::state::ServerState;

/// Time between two looks at the counters.
const PERIOD: Duration = Duration::from_secs(60);

/// The counters at the last look.
#[derive(Default)]
struct ThrashWatch {
    recomputed: u64,
    generated: u64,
    /// True if the last period was one of thrashing: a warning was written.
    warned: bool,
}

impl ThrashWatch {
    /// Returns the warning for the period since the last look, if it is the first of a row that
    /// needs one.
    fn look(&mut self, stats: &Stats) -> Option<String> {
        let recomputed = stats.recomputed_tokens - self.recomputed;
        let generated = stats.generated_tokens - self.generated;
        (self.recomputed, self.generated) = (stats.recomputed_tokens, stats.generated_tokens);
        let thrashes = recomputed > generated;
        let is_new = thrashes && !self.warned;
        self.warned = thrashes;
        is_new.then(|| {
            format!(
                "warning: {recomputed} tokens were recomputed after evictions in a minute, and \
                 {generated} generated: the KV cache is short for this policy and load; give more \
                 --kv-blocks, fewer --max-running, or --policy trail or fcfs"
            )
        })
    }
}

/// Looks at the engines' counters once a minute.
pub(crate) async fn run(state: Arc<ServerState>) {
    let models = state.models.all();
    let mut watches: Vec<ThrashWatch> = models.iter().map(|_| ThrashWatch::default()).collect();
    loop {
        tokio::time::sleep(PERIOD).await;
        for (entry, watch) in models.iter().zip(&mut watches) {
            if let Some(line) = watch.look(&entry.stats()) {
                match models.len() {
                    1 => notice(line),
                    _ => notice(format_args!("{line} (model '{}')", entry.name())),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warns_once_per_row_of_periods_with_more_recomputed_than_generated() {
        let mut watch = ThrashWatch::default();
        let warns = [(10, 10), (21, 20), (50, 21), (50, 90), (60, 99)].map(
            |(recomputed_tokens, generated_tokens)| {
                let stats = Stats { recomputed_tokens, generated_tokens, ..Stats::default() };
                watch.look(&stats)
            },
        );
        assert_eq!(warns.each_ref().map(Option::is_some), [false, true, false, false, true]);
        assert!(warns[4].as_ref().unwrap().contains("10 tokens were recomputed"), "{warns:?}");
    }
}
