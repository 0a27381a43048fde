//! Turns by virtual costs, without a clock; and by threads, for their exclusion alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{TurnOrder, Turns};

/// Gives `turns` turns to engines with the given ids and costs, which all have work. Returns the
/// nanoseconds that each got.
fn run(order: &mut TurnOrder, engines: &[(u64, u64)], turns: usize) -> Vec<u64> {
    let mut used = vec![0; engines.len()];
    engines.iter().for_each(|&(id, _)| order.ask(id));
    for _ in 0..turns {
        let begun: Vec<usize> =
            (0..engines.len()).filter(|&at| order.begin(engines[at].0)).collect();
        let [at] = begun[..] else { panic!("{begun:?} have a turn at one time") };
        let (id, cost) = engines[at];
        order.end(id, cost, true);
        used[at] += cost;
    }
    used
}

/// Busy engines get time by their weights, whatever their steps take: to one step each.
#[test]
fn time_is_shared_by_weight() {
    for (weights, costs) in [
        ([1, 1, 1], [10, 10, 10]),
        ([3, 1, 1], [10, 10, 10]),
        ([1, 1, 2], [1, 300, 7]),
        ([5, 2, 1], [100, 3, 40]),
    ] {
        let mut order = TurnOrder::default();
        let engines: Vec<(u64, u64)> =
            weights.iter().zip(costs).map(|(&weight, cost)| (order.join(weight), cost)).collect();
        let used = run(&mut order, &engines, 10_000);
        let total: u64 = used.iter().sum();
        let of_weights: u32 = weights.iter().sum();
        let longest = 300.0 * f64::from(of_weights);
        for (&weight, &used) in weights.iter().zip(&used) {
            let due = total as f64 * f64::from(weight) / f64::from(of_weights);
            assert!((used as f64 - due).abs() <= longest, "{weights:?} {costs:?}: {used} of {due}");
        }
    }
}

/// The one that had no work has neither saved time nor lost its place.
#[test]
fn an_idle_engine_gains_and_loses_nothing() {
    let mut order = TurnOrder::default();
    let (busy, idle) = (order.join(1), order.join(1));
    run(&mut order, &[(busy, 10)], 1000);
    // It waits for one step at the most.
    let used = run(&mut order, &[(busy, 10), (idle, 10)], 2);
    assert_eq!(used, [10, 10]);
    let used = run(&mut order, &[(busy, 10), (idle, 10)], 1000);
    assert_eq!(used, [5000, 5000]);
    // A step without a cost is followed by the other's.
    let mut order = TurnOrder::default();
    let engines = [(order.join(1), 0), (order.join(1), 0)];
    run(&mut order, &engines, 100);
    assert!(order.members.iter().all(|member| member.virtual_ns == 50.0));
}

/// Between two steps of an engine with work, no other takes a turn that is due to it.
#[test]
fn a_turn_is_kept_for_an_engine_that_goes_on() {
    let mut order = TurnOrder::default();
    let (heavy, light) = (order.join(10), order.join(1));
    order.ask(heavy);
    order.ask(light);
    assert!(order.begin(heavy) && !order.begin(light));
    order.end(heavy, 10, true);
    assert!(order.begin(light), "the least virtual time");
    order.end(light, 10, true);
    for _ in 0..9 {
        assert!(!order.begin(light), "the other has not asked yet");
        assert!(order.begin(heavy));
        assert!(!order.begin(light), "it is taken");
        order.end(heavy, 10, true);
    }
    order.leave(heavy);
    assert!(order.begin(light), "the others go on without one that has left");
    order.end(light, 10, false);
    order.leave(light);
    assert!(order.members.is_empty() && !order.is_taken);
}

#[test]
fn one_thread_has_the_turn() {
    let (turns, inside) = (Arc::new(Turns::default()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for weight in 1..=4 {
            let (taker, inside) = (turns.join(weight), &inside);
            scope.spawn(move || {
                for step in 0..200 {
                    let turn = taker.take();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    // One that had no work asks again.
                    turn.end(step % 3 != 0);
                }
            });
        }
    });
    assert!(turns.order().members.is_empty());
    // A turn that a panic ends is over.
    let taker = turns.join(1);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _turn = taker.take();
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(panic.is_err());
    taker.take().end(true);
}
