//! Dynamo's worker selection over the loads.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use dynamo_kv_router::plugins::worker_selection::{
    WorkerInputView, WorkerInputs, WorkerPicker, WorkerSelectionContext, WorkerSelectionPolicy,
    WorkerSelectionPolicyError, WorkerSelectionPolicyFactory,
};
use trail_scheduler::rng::Rng;

use trail_dynamo_router::loads::{Candidate, Job, Loads, Objective};

/// The measure of a choice.
#[derive(Clone, Copy, Debug)]
pub struct Measure {
    /// Quantity that is minimized.
    pub objective: Objective,
    /// The prefill that each worker's prefix cache saves counts.
    pub counts_caches: bool,
    /// Only the better of two workers drawn at random is looked at.
    pub two_choices: bool,
}

/// Picks the worker of least cost and books the job there.
struct Picker {
    loads: Arc<Loads>,
    measure: Measure,
    /// The source of two candidates; `None` looks at all.
    draws: Option<Rng>,
}

/// A policy for each pool of workers, over the same `loads`.
pub fn factory(loads: Arc<Loads>, measure: Measure) -> WorkerSelectionPolicyFactory {
    Arc::new(move |config, worker_type, _partition| {
        // Different in every router: a process id is 1 in each container.
        let seed = RandomState::new().hash_one(0);
        let draws = measure.two_choices.then(|| Rng::new(seed));
        let picker = Picker { loads: loads.clone(), measure, draws };
        WorkerSelectionPolicy::new(
            config.clone(),
            worker_type.as_str(),
            Vec::new(),
            Box::new(picker),
        )
    })
}

impl WorkerPicker for Picker {
    fn required_worker_inputs(&self) -> WorkerInputs {
        match self.measure.counts_caches {
            true => WorkerInputs::LOAD | WorkerInputs::CACHE,
            false => WorkerInputs::LOAD,
        }
    }

    fn pick(
        &mut self,
        context: &WorkerSelectionContext<'_>,
        input: WorkerInputView<'_>,
    ) -> Result<usize, WorkerSelectionPolicyError> {
        let rows = input.candidates();
        let (counts, caches) = (input.load(), input.cache());
        let block_size = f64::from(context.block_size());
        let candidate = |row: usize| {
            let active = counts.and_then(|counts| counts.get(row));
            let cache = caches.and_then(|caches| caches.get(row));
            let cached_tokens =
                cache.map_or(0.0, |cache| cache.device_overlap_blocks()) * block_size;
            Candidate {
                worker: rows[row].worker().worker_id,
                active: active.map_or(0, |load| load.active_requests()),
                cached_tokens: cached_tokens as usize,
            }
        };
        let now = Instant::now();
        let job = Job {
            size: context.expected_output_tokens().map(|tokens| tokens as f32),
            blocks: context.request_blocks() as u32,
            prompt_tokens: context.prompt_tokens(),
        };
        let objective = self.measure.objective;
        let pair = self.draws.as_mut().and_then(|draws| two_of(rows.len(), draws));
        let (row, size) = match pair {
            Some(pair) => {
                let chosen =
                    self.loads.choose(pair.into_iter().map(candidate), job, objective, now);
                let (at, size) = chosen.unwrap_or_default();
                (pair[at], size)
            }
            None => {
                let all = (0..rows.len()).map(candidate);
                self.loads.choose(all, job, objective, now).unwrap_or_default()
            }
        };
        self.loads.book(rows[row].worker().worker_id, size, now);
        Ok(row)
    }
}

/// Two different rows; `None` of fewer than three.
fn two_of(rows: usize, draws: &mut Rng) -> Option<[usize; 2]> {
    let rows = rows as u64;
    if rows < 3 {
        return None;
    }
    let first = draws.below(rows);
    let second = (first + 1 + draws.below(rows - 1)) % rows;
    Some([first as usize, second as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_choices_are_different_and_reach_every_worker() {
        let mut draws = Rng::new(1);
        assert_eq!(two_of(2, &mut draws), None);
        let mut seen = [0; 5];
        for _ in 0..200 {
            let [a, b] = two_of(5, &mut draws).expect("five rows");
            assert_ne!(a, b);
            seen[a] += 1;
            seen[b] += 1;
        }
        assert!(seen.iter().all(|&times| times > 40), "{seen:?}");
    }
}
