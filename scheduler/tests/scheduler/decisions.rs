//! The reasons of a plan's changes, as they print.

use trail_scheduler::policies::Trail;
use trail_scheduler::{NewRequest, RequestId, Scheduler, SchedulerConfig};

/// Prompt tokens and predicted output tokens.
type Sizes = (u32, f32);

/// The decisions of step 1, at whose beginning `newcomer` arrives while `running` have a token.
fn decisions(max_running: u32, num_blocks: u32, running: [Sizes; 2], newcomer: Sizes) -> String {
    let config = SchedulerConfig {
        max_running,
        max_requests: 8,
        token_budget: 64,
        num_blocks,
        max_context: 64,
        watermark: 0.0,
        ..SchedulerConfig::default()
    };
    let policy = Box::new(Trail::paper(1.0).policy());
    let mut scheduler = Scheduler::new(config, policy).unwrap();
    for (id, (prompt_tokens, tokens)) in [running[0], running[1], newcomer].into_iter().enumerate()
    {
        if id == running.len() {
            scheduler.plan(0, 0.0);
            scheduler.advance();
        }
        let request = NewRequest {
            id: RequestId(id as u64),
            prompt_tokens,
            max_tokens: 16,
            initial_prediction: Some(tokens),
            ..NewRequest::default()
        };
        scheduler.submit(request).unwrap();
    }
    let decisions = &scheduler.plan(1, 1.0).decisions;
    decisions.iter().map(|decision| format!("{decision}\n")).collect()
}

#[test]
fn a_request_makes_way_for_a_shorter_one() {
    assert_eq!(
        decisions(2, 12, [(20, 5.0), (32, 15.0)], (16, 6.0)),
        "2 admitted at step 1: 6 predicted\n1 preempted at step 1 by 2: 6 < 14 predicted\n"
    );
}

#[test]
fn a_request_loses_its_blocks_to_a_shorter_one() {
    assert_eq!(
        decisions(3, 4, [(20, 5.0), (32, 15.0)], (16, 6.0)),
        "1 evicted at step 1 by 2: 6 < 14 predicted\n2 admitted at step 1: 6 predicted\n"
    );
}

#[test]
fn a_request_without_a_block_to_grow_names_no_other() {
    // 2 + 2 of 5 blocks; the newcomer takes the last, and a token of the second needs one more.
    assert_eq!(
        decisions(3, 5, [(20, 5.0), (32, 15.0)], (16, 6.0)),
        "2 admitted at step 1: 6 predicted\n1 preempted at step 1: no free block\n"
    );
}
