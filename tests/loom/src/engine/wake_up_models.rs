//! The engine's thread sleeps while it has nothing to do: no submission, cancellation or stop may
//! find it asleep and leave it so.

use loom::sync::Arc;
use loom::thread;

use super::active::ActiveRequest;
use super::queue_permit::{QueueLimits, QueuePermit};
use super::request_status::RequestStatus;
use super::submit_queue::{EngineInbox, SubmitQueue};
use crate::explore;

/// The loop of `serve.rs`: drains the queues, and parks where they were empty. Returns the numbers
/// of submissions and cancellations.
fn serve(queue: &SubmitQueue, mut inbox: EngineInbox) -> (u32, u32) {
    let (mut submitted, mut cancelled) = (0, 0);
    while !queue.is_stopping() {
        let before = submitted + cancelled;
        // The request's permit is released when it is dropped.
        while inbox.next_submission().is_some() {
            submitted += 1;
        }
        while inbox.next_cancel().is_some() {
            cancelled += 1;
        }
        if submitted + cancelled == before {
            thread::park();
        }
    }
    (submitted, cancelled)
}

/// Starts the engine's thread and names it, as `Engine::new` does before it returns.
fn start(requests: u32) -> (Arc<SubmitQueue>, thread::JoinHandle<(u32, u32)>) {
    let (queue, inbox) = SubmitQueue::new(limits(requests));
    let served = queue.clone();
    let engine = thread::spawn(move || serve(&served, inbox));
    queue.set_thread(engine.thread().clone());
    (queue, engine)
}

/// Limits of `requests` requests of 8 bytes.
fn limits(requests: u32) -> QueueLimits {
    QueueLimits { requests, bytes: 8 * u64::from(requests) }
}

/// Submits a request of 8 bytes; returns true if there was room.
fn submit(queue: &Arc<SubmitQueue>) -> bool {
    let permit = QueuePermit::acquire(queue.usage(), 8);
    permit.and_then(|permit| queue.submit(Box::new(ActiveRequest { permit }))).is_ok()
}

/// Waits until the engine has taken every request; a deadlock if it sleeps on one.
fn wait_until_taken(queue: &SubmitQueue) {
    while queue.live() > 0 {
        thread::yield_now();
    }
}

#[test]
fn a_submission_wakes_the_engine() {
    explore(3, || {
        let (queue, engine) = start(2);
        assert!(submit(&queue));
        wait_until_taken(&queue);
        queue.stop();
        assert_eq!(engine.join().unwrap(), (1, 0));
    });
}

#[test]
fn two_callers_wake_the_engine_and_no_request_is_lost() {
    explore(2, || {
        let (queue, engine) = start(2);
        let other = queue.clone();
        let caller = thread::spawn(move || {
            assert!(submit(&other));
        });
        assert!(submit(&queue));
        caller.join().unwrap();
        wait_until_taken(&queue);
        queue.stop();
        assert_eq!(engine.join().unwrap(), (2, 0));
    });
}

#[test]
fn a_cancellation_and_a_stop_wake_the_engine() {
    explore(3, || {
        let (queue, engine) = start(2);
        queue.cancel(Arc::new(RequestStatus));
        queue.stop();
        let (submitted, cancelled) = engine.join().unwrap();
        assert_eq!(submitted, 0);
        assert!(cancelled <= 1);
    });
}

#[test]
fn a_full_engine_refuses_and_counts_no_more_than_its_limit() {
    explore(2, || {
        let (queue, mut inbox) = SubmitQueue::new(limits(1));
        let other = queue.clone();
        let caller = thread::spawn(move || submit(&other));
        let here = submit(&queue);
        let there = caller.join().unwrap();
        assert!(here != there, "one of two fits");
        assert_eq!(queue.live(), 1);
        // A request holds its permit.
        assert!(inbox.next_submission().is_some());
        assert_eq!(queue.live(), 0);
    });
}
