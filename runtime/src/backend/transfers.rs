//! Swapping: KV blocks copied to a host pool and back.

use trail_scheduler::Copies;

use super::Fault;

/// Copies KV blocks to the host pool and back, asynchronously and without delaying steps.
pub trait Transfers {
    /// Starts to copy the KV of `request` to the host, after all steps launched so far. Both sides
    /// of `copies` stay as they are until [`Transfers::finished`] names the request. Host blocks
    /// are numbers below [`Transfers::host_blocks`].
    fn swap_out(&mut self, request: u32, copies: Copies<'_>) -> Result<(), Fault>;

    /// Starts to copy the KV of `request` back from the host, after all steps launched so far. No
    /// step may use the device's blocks, and no transfer may write the host ones, before
    /// [`Transfers::finished`] names the request.
    fn swap_in(&mut self, request: u32, copies: Copies<'_>) -> Result<(), Fault>;

    /// Appends the requests whose transfer completed since the last call. Does not wait.
    fn finished(&mut self, requests: &mut Vec<u32>) -> Result<(), Fault>;

    /// Size of the host pool, blocks.
    fn host_blocks(&self) -> u32;

    /// Size of one block, bytes: keys and values of all layers, and what else moves with them.
    fn block_bytes(&self) -> u64;

    /// Time to copy one block one way, seconds, measured at start.
    fn block_s(&self) -> f64;

    /// Time to compute one prompt token, seconds, measured at start. Weighed against
    /// [`Transfers::block_s`] when a victim is swapped or recomputed.
    fn token_s(&self) -> f64;
}
