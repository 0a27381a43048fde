//! Predictions that are published after the next step was planned.

use super::ahead::Breaks;
use super::{MAX_STEPS, config, model, requests, run_until_idle, stepped_ahead};
use crate::engine::{EngineConfig, Event, PolicyKind, StepOutcome};

#[test]
fn the_late_prediction_of_a_preempted_request_reaches_its_rank() {
    let model = model();
    // A block more than the longest needs.
    let config = EngineConfig { kv_blocks: Some(8), ..config(&model, PolicyKind::trail(1.0)) };
    let mut engine = stepped_ahead(&model, config, Some(Breaks::DelaysTap));
    let _handles: Vec<_> =
        requests().chain(requests()).map(|r| engine.submit(r).expect("fits")).collect();
    let (mut preempted, mut checked, mut steps) = (Vec::new(), 0, 0);
    while engine.step().expect("no breakdown") != StepOutcome::Idle {
        steps += 1;
        assert!(steps < MAX_STEPS, "{} requests are left", engine.live());
        let step_loop = &mut engine.step_loop;
        let (scheduler, lifecycle) = (&step_loop.scheduler, &mut step_loop.lifecycle);
        let plan = scheduler.last_plan();
        for (idx, id, step) in std::mem::take(&mut preempted) {
            let Some(active) = lifecycle.get_mut(idx, id) else { continue };
            if plan.rows.iter().all(|row| row.idx != idx) {
                // Two steps later, and it has not run since.
                assert_eq!(active.predicted_step, step, "the request at index {}", idx.0);
                let known = scheduler.state(idx).prediction.expect("it was predicted");
                assert_eq!(known.step, step, "the scheduler's, at index {}", idx.0);
                checked += 1;
            }
        }
        for &idx in &plan.preempted {
            // One that was cancelled or complete since the plan is gone.
            let Some(active) = lifecycle.preempted_mut(idx) else { continue };
            if active.tapped_step == step_loop.step - 1 {
                assert!(active.predicted_step < active.tapped_step, "every prediction is late");
                preempted.push((idx, active.id, active.tapped_step));
            }
        }
    }
    assert!(checked > 5, "{checked} predictions of preempted requests");
}

#[test]
fn a_prediction_is_sent_once() {
    let model = model();
    let config = EngineConfig { kv_blocks: Some(8), ..config(&model, PolicyKind::trail(1.0)) };
    let mut engine = stepped_ahead(&model, config, Some(Breaks::SkipsTaps));
    let handles: Vec<_> =
        requests().chain(requests()).map(|r| engine.submit(r).expect("fits")).collect();
    run_until_idle(&mut engine);
    let stats = engine.stats();
    assert!(stats.preemptions > 5, "{} preemptions", stats.preemptions);
    let mut sent = 0;
    for handle in handles {
        let predicted: Vec<u32> = std::iter::from_fn(|| handle.try_recv())
            .filter_map(|event| match event {
                Event::Prediction { generated, .. } => Some(generated),
                _ => None,
            })
            .collect();
        assert!(predicted.is_sorted_by(|a, b| a < b), "a prediction twice: {predicted:?}");
        sent += predicted.len();
    }
    assert!(sent > 100, "{sent} predictions");
}
