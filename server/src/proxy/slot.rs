//! A request's slot of the upstream.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::queue::Queue;

/// A slot that is waited for, then held; given back when dropped.
pub(super) struct Slot {
    queue: Arc<Queue>,
    number: u64,
    admitted: Option<oneshot::Receiver<()>>,
    /// When the request was sent.
    sent: Option<Instant>,
    /// Output tokens of the answer, once they are known.
    tokens: Option<u32>,
}

impl Slot {
    /// Slot `number` of `queue`, which says by `admitted` that the request has it.
    pub(super) fn new(queue: Arc<Queue>, number: u64, admitted: oneshot::Receiver<()>) -> Slot {
        Slot { queue, number, admitted: Some(admitted), sent: None, tokens: None }
    }

    /// Completes when the request has the slot.
    pub(super) async fn admitted(&mut self) {
        if let Some(admitted) = &mut self.admitted {
            // The sender sends before it is dropped: the slot, which ends the request, is here.
            let _ = admitted.await;
            self.admitted = None;
        }
    }

    /// Records that the request is sent now: what came before is no time of its answer.
    pub(super) fn sent(&mut self) {
        self.sent = Some(Instant::now());
    }

    /// Records the output tokens of the whole answer.
    pub(super) fn set_tokens(&mut self, tokens: u32) {
        self.tokens = Some(tokens);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let time = self.sent.map(|sent| sent.elapsed());
        self.queue.end(self.number, time.zip(self.tokens));
    }
}
