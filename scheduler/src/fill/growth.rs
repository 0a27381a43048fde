//! Predicted growth of the batch, which [`Reserve`] keeps blocks free for.

use crate::reserve::Reserve;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Blocks of the predicted growth of the running requests and of those that are swapped in.
    pub(super) fn predicted_growth(&self) -> u32 {
        let reserve = self.config.reserve;
        if reserve == Reserve::None {
            return 0;
        }
        let running = self.running.iter().map(|ranked| ranked.idx);
        let entering = self.swap_state.swapping_in().iter().copied();
        let requests = running.chain(entering).map(|idx| &self.requests[idx]);
        requests.filter(|request| !request.ended).map(|request| reserve.growth(request)).sum()
    }
}
