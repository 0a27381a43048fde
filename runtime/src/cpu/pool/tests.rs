//! The pool's tests.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::*;

/// Waits until two items have begun, so that each of two threads gets one.
fn await_two(begun: &AtomicUsize) {
    let begin = Instant::now();
    while begun.load(Ordering::Relaxed) < 2 {
        assert!(begin.elapsed() < Duration::from_secs(60), "the other thread has no item");
        std::thread::yield_now();
    }
}

#[test]
fn every_item_is_done_once() {
    for workers in [1, 2, 5] {
        let mut pool = Pool::new(workers).unwrap();
        for round in 0..if cfg!(miri) { 20 } else { 2000 } {
            let items = round % 37;
            let done: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            pool.for_each(
                items,
                || false,
                |worker, item| {
                    assert!(worker < workers);
                    done[item].fetch_add(1, Ordering::Relaxed);
                },
            );
            assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
            if round % 400 == 0 {
                // Long enough for the workers to fall asleep.
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

#[test]
fn workers_share_the_items() {
    let mut pool = Pool::new(2).unwrap();
    let workers = Mutex::new(std::collections::BTreeSet::new());
    pool.for_each(
        100,
        || false,
        |worker, _| {
            workers.lock().unwrap().insert(worker);
            std::thread::sleep(Duration::from_millis(1));
        },
    );
    assert_eq!(workers.into_inner().unwrap().len(), 2);
}

/// The worker's item takes longer than the caller spins.
#[test]
fn a_caller_that_fell_asleep_is_woken_by_the_last_worker() {
    let mut pool = Pool::new(2).unwrap();
    for _ in 0..20 {
        let begun = AtomicUsize::new(0);
        let work = |worker: usize, _: usize| {
            begun.fetch_add(1, Ordering::Relaxed);
            await_two(&begun);
            std::thread::sleep(Duration::from_millis(5 * worker as u64));
        };
        pool.for_each(2, || false, work);
        assert_eq!(begun.into_inner(), 2);
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_survives() {
    let mut pool = Pool::new(3).unwrap();
    for culprit in 0..if cfg!(miri) { 2 } else { 20 } {
        let result = catch_unwind(AssertUnwindSafe(|| {
            pool.for_each(20, || false, |_, item| assert!(item != culprit, "item {culprit}"));
        }));
        let panic = result.unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("item {culprit}"));
        let done = AtomicUsize::new(0);
        pool.for_each(
            20,
            || false,
            |_, _| {
                done.fetch_add(1, Ordering::Relaxed);
            },
        );
        assert_eq!(done.into_inner(), 20);
    }
}

#[test]
fn a_panic_of_a_worker_alone_reaches_the_caller() {
    let mut pool = Pool::new(2).unwrap();
    let begun = AtomicUsize::new(0);
    let work = |worker: usize, _: usize| {
        begun.fetch_add(1, Ordering::Relaxed);
        await_two(&begun);
        assert!(worker == 0, "the worker");
    };
    let result = catch_unwind(AssertUnwindSafe(|| pool.for_each(2, || false, work)));
    assert!(result.is_err());
}

#[test]
fn assist_is_called_only_while_others_work() {
    let mut pool = Pool::new(2).unwrap();
    let at_work = AtomicBool::new(false);
    let assisted = AtomicUsize::new(0);
    let assist = || {
        assisted.fetch_add(1, Ordering::Relaxed);
        true
    };
    // Two items; the first one takes long: `for_each` must still end.
    pool.for_each(2, assist, |_, _| {
        if !at_work.swap(true, Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    pool.for_each(0, assist, |_, _| unreachable!());
    let total = assisted.load(Ordering::Relaxed);
    std::thread::sleep(Duration::from_millis(1));
    assert_eq!(assisted.load(Ordering::Relaxed), total);
}

/// Pinned workers, the caller among them until the pool ends, do what others do.
#[test]
#[cfg(target_os = "linux")]
fn pinned_workers_share_the_items() {
    // A separate thread, as the caller is pinned.
    let run = || {
        let cpu = affinity::placement(1).unwrap()[0].id;
        let cpus = [0, 1, 0].map(|node| Cpu { id: cpu, core: cpu, node });
        let mut pool = Pool::start(3, cpus.to_vec()).unwrap();
        assert_eq!((pool.nodes(), pool.cpus().len()), (2, 3));
        for items in 0..20 {
            let done: Vec<_> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            pool.for_each(
                items,
                || false,
                |_, item| {
                    done[item].fetch_add(1, Ordering::Relaxed);
                },
            );
            assert!(done.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
        assert_eq!(pool.regions(), 19);
        let pinned = trail_platform::available_threads();
        drop(pool);
        (pinned, trail_platform::available_threads())
    };
    let all = trail_platform::available_threads();
    assert_eq!(std::thread::spawn(run).join().unwrap(), (1, all));
    let refusal = Pool::pinned(1 << 20).err().unwrap();
    let start = "--cpu-strict 1: 1048576 threads, but of the affinity mask";
    assert!(refusal.starts_with(start), "{refusal}");
}
