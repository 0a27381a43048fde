//! KV on its way to the host and back: the scheduler's wishes handed to the backend, and their ends back to the scheduler.

use trail_scheduler::{Slot, Transferred};

use super::backend::{Backend, Fault};
use super::core::Core;

impl Core {
    /// Takes in which transfers have ended, and lets go of copies that nobody needs any more. Whether any has ended.
    pub(super) fn settle(&mut self, backend: &mut dyn Backend) -> Result<bool, Fault> {
        let Some(transfers) = backend.transfers() else { return Ok(false) };
        self.forgotten.drain(..).for_each(|slot| transfers.forget(slot));
        self.arrived.clear();
        transfers.finished(&mut self.arrived)?;
        for &slot in &self.arrived {
            if let Transferred::Finished { forget } = self.scheduler.transferred(Slot(slot)) {
                if forget {
                    transfers.forget(slot);
                }
                self.doors.leave();
            }
        }
        Ok(!self.arrived.is_empty())
    }

    /// Begins the transfers of the last plan.
    pub(super) fn transfer(&mut self, backend: &mut dyn Backend) -> Result<(), Fault> {
        let plan = self.scheduler.last_plan();
        let Some(transfers) = backend.transfers() else { return Ok(()) };
        for &slot in &plan.swap_out {
            transfers.swap_out(slot.0, self.scheduler.blocks(slot))?;
        }
        for &slot in &plan.swap_in {
            transfers.swap_in(slot.0, self.scheduler.blocks(slot))?;
        }
        Ok(())
    }
}
