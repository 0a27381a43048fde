//! A counted resource whose waiters are served shortest first.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::error::ApiError;

/// A resource of a fixed amount. Without an order, one large body would hold up all that come
/// after it.
pub(crate) struct Lane {
    state: Mutex<State>,
    wait_limit: Duration,
}

struct State {
    free: usize,
    /// By rank, then by arrival.
    waiting: BTreeMap<(usize, u64), Waiter>,
    arrivals: u64,
    /// Number of waiters above which those that have left are removed.
    sweep_above: usize,
}

/// Least number of waiters at which those that have left are looked for behind the first.
const SWEEP_ABOVE: usize = 64;

struct Waiter {
    amount: usize,
    share: oneshot::Sender<Share>,
}

/// A part of the resource; free again when dropped.
pub(crate) struct Share {
    lane: Arc<Lane>,
    amount: usize,
}

impl Lane {
    /// A lane of `amount`; no waiter waits longer than `wait_limit`.
    pub(crate) fn new(amount: usize, wait_limit: Duration) -> Arc<Self> {
        let waiting = BTreeMap::new();
        let state = State { free: amount, waiting, arrivals: 0, sweep_above: SWEEP_ABOVE };
        Arc::new(Lane { state: Mutex::new(state), wait_limit })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `amount`, before all that have a greater `rank`. An error after the
    /// lane's limit.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        rank: usize,
        amount: usize,
    ) -> Result<Share, ApiError> {
        let (share, granted) = oneshot::channel();
        self.enter(rank, Waiter { amount, share });
        match timeout(self.wait_limit, granted).await {
            Ok(Ok(share)) => Ok(share),
            _ => Err(ApiError::too_many(
                "the server has too many large requests to read: try again later",
            )),
        }
    }

    fn enter(self: &Arc<Self>, rank: usize, waiter: Waiter) {
        let mut state = self.lock();
        state.arrivals += 1;
        let key = (rank, state.arrivals);
        state.waiting.insert(key, waiter);
        if state.waiting.len() > state.sweep_above {
            state.waiting.retain(|_, waiter| !waiter.share.is_closed());
            state.sweep_above = SWEEP_ABOVE.max(2 * state.waiting.len());
        }
        self.serve(state);
    }

    /// Gives the first waiters their shares. Those that have left are passed over.
    fn serve(self: &Arc<Self>, mut state: MutexGuard<'_, State>) {
        while let Some(first) = state.waiting.first_entry() {
            let amount = first.get().amount;
            if first.get().share.is_closed() {
                first.remove();
                continue;
            }
            if amount > state.free {
                return;
            }
            let Some((_, waiter)) = state.waiting.pop_first() else { return };
            if let Err(mut unsent) = waiter.share.send(Share { lane: self.clone(), amount }) {
                // Its drop must not lock the state again.
                unsent.amount = 0;
            } else {
                state.free -= amount;
            }
        }
    }

    /// The amount that no share holds.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.lock().free
    }
}

impl Share {
    /// Adds `more` of the same lane.
    pub(crate) fn merge(&mut self, mut more: Share) {
        self.amount += std::mem::take(&mut more.amount);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.amount > 0 {
            let mut state = self.lane.lock();
            state.free += self.amount;
            self.lane.serve(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    #[tokio::test]
    async fn the_shortest_is_served_first_and_who_left_not_at_all() {
        let lane = Lane::new(10, Duration::from_secs(60));
        let all = lane.acquire(9, 10).await.expect("free");
        let mut waiting: Vec<_> =
            [5, 3, 4, 3].map(|rank| Box::pin(lane.acquire(rank, 5))).into_iter().collect();
        assert!(waiting.iter_mut().all(|wait| wait.now_or_never().is_none()));
        let left = waiting.remove(1);
        drop((left, all));
        let [long, middle, short] = &mut waiting[..] else { panic!("three wait") };
        let short = short.now_or_never().expect("the shortest").expect("a share");
        let middle = middle.now_or_never().expect("the next").expect("a share");
        assert!(long.now_or_never().is_none());
        drop(short);
        drop((long.now_or_never().expect("the last").expect("a share"), middle));
        assert_eq!(lane.free(), 10);
    }

    #[tokio::test]
    async fn a_wait_has_an_end() {
        let lane = Lane::new(1, Duration::from_millis(10));
        let held = lane.acquire(0, 1).await;
        let refused = lane.acquire(0, 1).await.err().expect("no share");
        assert_eq!(refused.status(), 429);
        drop(held);
        assert_eq!(lane.acquire(0, 1).await.map(drop), Ok(()));
    }
}
