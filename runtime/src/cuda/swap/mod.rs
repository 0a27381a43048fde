//! KV blocks to pinned memory of the host and back, by the copy engines, beside the steps.
//!
//! Out and in have a stream each. A transfer waits for the steps launched before it, by an event;
//! nothing on the compute stream ever waits for a transfer: the host has seen the end of every
//! transfer that [`Transfers::finished`] names. A run of blocks that are adjacent on both sides is
//! one copy.

mod block_range;
mod link;

use super::device::Device;
use super::error::CudaError;
use super::error::driver_error;
use super::kv::KvPool;
use super::memory::{PinnedBuffer, Priority};
use super::queue::{Queue, has_run};
use crate::backend::{Fault, Transfers};
use block_range::{BlockRange, each_range};
use cudarc::driver::{CudaEvent, CudaStream};
use std::collections::VecDeque;
use std::slice;
use std::sync::Arc;
use std::time::Instant;
use trail_ptx::DevicePtr;
use trail_scheduler::Copies;

pub use link::seconds;

/// Seed and factor of the checksum; any odd factor with bits everywhere does.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Configuration of a [`Swap`].
#[derive(Clone, Copy, Debug)]
pub struct SwapOptions {
    /// Blocks of the host pool, at least 1.
    pub host_blocks: u32,
    /// Request indices that may be named: all are below this.
    pub max_requests: usize,
    /// Compute each block's checksum when it arrives and compare it when it leaves.
    pub checksums: bool,
}

/// Moves the blocks of one KV pool. Drop it before the pool.
pub struct Swap {
    device: Arc<Device>,
    /// The stream that steps run on.
    compute: Arc<CudaStream>,
    pool: PoolView,
    memory: PinnedBuffer,
    /// Blocks of `memory`.
    host_blocks: u32,
    out: Lane,
    back: Lane,
    /// Marks the end of the steps launched so far.
    steps: CudaEvent,
    /// Events that no transfer uses.
    events: Vec<CudaEvent>,
    /// Sums of the host blocks, where they are wanted: `[host blocks]`.
    sums: Option<Vec<u64>>,
    block_s: f64,
    token_s: f64,
}

/// The device's side of a copy.
#[derive(Clone, Copy)]
struct PoolView {
    first: DevicePtr<u8>,
    block_bytes: usize,
}

/// One direction.
struct Lane {
    queue: Queue,
    /// Transfers in flight, in the order of the stream.
    in_flight: VecDeque<InFlight>,
}

struct InFlight {
    request: u32,
    /// Its host blocks, where they have checksums.
    blocks: Vec<u32>,
    begin: Instant,
    end: CudaEvent,
}

impl Swap {
    /// A host pool for `pool`, whose blocks steps on `compute` read and write. Measures what a copy
    /// costs, with the pool's blocks as they are; the cost of a token is set by
    /// [`Swap::set_token_s`].
    pub fn new(
        device: &Arc<Device>,
        compute: &Arc<CudaStream>,
        pool: &KvPool,
        options: SwapOptions,
    ) -> Result<Swap, CudaError> {
        let SwapOptions { host_blocks, max_requests, checksums } = options;
        let view = PoolView { first: pool.device_ptr().cast(), block_bytes: pool.block_bytes() };
        let bytes = host_blocks.max(1) as usize * view.block_bytes;
        let memory = device.alloc_pinned(bytes, "host KV blocks")?;
        let lane = || {
            let in_flight = VecDeque::with_capacity(max_requests);
            let stream = device.stream(Priority::Low)?;
            // SAFETY: copies run between the pool and host memory, which both outlive this
            // (`Drop` waits for the queues). They wait for all steps that use the blocks, and no
            // step is launched with them, nor another copy that writes one, until the request is
            // named as finished.
            let queue = unsafe { Queue::new(device.clone(), stream) };
            Ok::<_, CudaError>(Lane { queue, in_flight })
        };
        let events = (0..max_requests).map(|_| device.event()).collect::<Result<_, _>>()?;
        let mut swap = Swap {
            device: device.clone(),
            compute: compute.clone(),
            pool: view,
            memory,
            host_blocks: host_blocks.max(1),
            out: lane()?,
            back: lane()?,
            steps: device.event()?,
            events,
            sums: checksums.then(|| vec![0; host_blocks.max(1) as usize]),
            block_s: 0.0,
            token_s: 0.0,
        };
        swap.block_s = swap.measure(pool.blocks().min(host_blocks))?;
        Ok(swap)
    }

    /// The same with as many of the host blocks as the system pins, by halves; `None` if not one: a
    /// container may have less memory than is asked for.
    pub fn that_fits(
        device: &Arc<Device>,
        compute: &Arc<CudaStream>,
        pool: &KvPool,
        mut options: SwapOptions,
    ) -> Result<Option<Swap>, CudaError> {
        while options.host_blocks > 0 {
            match Swap::new(device, compute, pool, options) {
                Err(CudaError::OutOfMemory(full)) if full.free.is_none() => {
                    options.host_blocks /= 2;
                }
                made => return made.map(Some),
            }
        }
        Ok(None)
    }

    /// Waits for the copies in flight, within the device's timeout.
    pub(in crate::cuda) fn drain(&self) {
        self.out.queue.drain();
        self.back.queue.drain();
    }

    /// Sets the measured cost of recomputing one prompt token, seconds.
    pub fn set_token_s(&mut self, token_s: f64) {
        self.token_s = token_s;
    }

    /// The host blocks, one after the other, for tests that plant what a checksum must find.
    pub fn host_memory(&self) -> *mut u8 {
        self.memory.as_ptr()
    }

    /// Seconds of a block's copy: the mean of both directions, over `blocks` single copies.
    fn measure(&self, blocks: u32) -> Result<f64, CudaError> {
        let blocks = blocks.clamp(1, link::MEASURED);
        let copy_all = |queue: &Queue, is_out| {
            let copies = || (0..blocks).map(|i| BlockRange { device: i, host: i, blocks: 1 });
            // Once to warm up.
            for range in copies() {
                self.copy(queue, range, is_out)?;
            }
            let copy_each = || copies().try_for_each(|range| self.copy(queue, range, is_out));
            link::seconds(&self.device, queue.stream(), copy_each)
        };
        let both = copy_all(&self.out.queue, true)? + copy_all(&self.back.queue, false)?;
        Ok((both / f64::from(2 * blocks)).max(f64::MIN_POSITIVE))
    }

    /// Queues the copy of a run.
    fn copy(&self, queue: &Queue, range: BlockRange, is_out: bool) -> Result<(), CudaError> {
        let PoolView { first, block_bytes } = self.pool;
        let bytes = range.blocks as usize * block_bytes;
        let device = first.add(range.device as usize * block_bytes);
        let host = range.host as usize * block_bytes;
        let copied = match is_out {
            true => queue.copy_to_host(&self.memory, host..host + bytes, device),
            false => queue.copy_to_device(device, &self.memory, host..host + bytes),
        };
        copied.map_err(|code| {
            let direction = if is_out { "out" } else { "in" };
            let BlockRange { device, blocks, .. } = range;
            driver_error(format!("swapping {blocks} KV blocks {direction}, from block {device} on"))(code)
        })
    }

    /// Queues the transfer of `request`'s blocks.
    fn begin(&mut self, request: u32, copies: Copies<'_>, is_out: bool) -> Result<(), CudaError> {
        self.check(request, copies)?;
        self.device.shared().bind()?;
        let lane = if is_out { &self.out } else { &self.back };
        let recorded = self.steps.record(&self.compute);
        let ordered = recorded.and_then(|()| lane.queue.stream().wait(&self.steps));
        ordered.map_err(driver_error("ordering a swap behind the steps"))?;
        let Copies { device, host } = copies;
        let places = device.iter().copied().zip(host.iter().copied());
        each_range(places, |range| self.copy(&lane.queue, range, is_out))?;
        let end = self.events.pop().ok_or_else(|| CudaError::Contract {
            what: format!("request {request} is swapped while its last swap is in flight"),
        })?;
        let lane = if is_out { &mut self.out } else { &mut self.back };
        let recorded =
            end.record(lane.queue.stream()).map_err(driver_error("recording the end of a swap"));
        let blocks = self.sums.as_ref().map_or(Vec::new(), |_| host.to_vec());
        lane.in_flight.push_back(InFlight { request, blocks, begin: Instant::now(), end });
        recorded
    }

    /// Refuses a transfer that is none.
    fn check(&self, request: u32, Copies { device, host }: Copies<'_>) -> Result<(), CudaError> {
        let pool = self.host_blocks;
        let what = match host.iter().find(|&&block| block >= pool) {
            Some(block) => format!("host block {block} of request {request} is none of {pool}"),
            None if device.len() != host.len() => {
                let (from, to) = (device.len(), host.len());
                format!("{from} KV blocks of request {request} for {to} blocks of the host")
            }
            None => return Ok(()),
        };
        Err(CudaError::Contract { what })
    }

    /// The next transfer of a lane that has ended.
    fn next_ended(&mut self, is_out: bool) -> Result<Option<(u32, Vec<u32>)>, CudaError> {
        let lane = if is_out { &mut self.out } else { &mut self.back };
        let Some(next) = lane.in_flight.front() else { return Ok(None) };
        const WHAT: &str = "swapping KV blocks";
        if !has_run(&next.end).map_err(driver_error(WHAT))? {
            self.device.shared().check_time(next.begin, WHAT)?;
            return Ok(None);
        }
        let Some(InFlight { request, blocks, end, .. }) = lane.in_flight.pop_front() else {
            return Ok(None);
        };
        self.events.push(end);
        Ok(Some((request, blocks)))
    }

    /// Sums host blocks, which have arrived.
    fn note_sums(&mut self, blocks: &[u32]) {
        let Some(mut sums) = self.sums.take() else { return };
        for &block in blocks {
            sums[block as usize] = self.sum(block);
        }
        self.sums = Some(sums);
    }

    /// Refuses host blocks of `request` that are no longer what arrived.
    fn check_sums(&self, request: u32, blocks: &[u32]) -> Result<(), CudaError> {
        let Some(sums) = &self.sums else { return Ok(()) };
        let wrong = |&(_, block): &(usize, u32)| sums[block as usize] != self.sum(block);
        match blocks.iter().copied().enumerate().find(wrong) {
            None => Ok(()),
            Some((index, block)) => Err(CudaError::Contract {
                what: format!(
                    "block {index} of the KV of request {request} changed while it was on the host (there in block {block})"
                ),
            }),
        }
    }

    /// The checksum of a host block, on which no copy is in flight.
    fn sum(&self, block: u32) -> u64 {
        let bytes = self.pool.block_bytes;
        let first = block as usize * bytes;
        let at = self.memory.byte_at(&(first..first + bytes));
        // SAFETY: the block lies within the pinned memory (`byte_at` checks it); a copy has written
        // all of it and has ended, and none runs now.
        let block = unsafe { slice::from_raw_parts(at, bytes) };
        checksum(block)
    }
}

/// A sum that a changed, moved or missing word changes.
fn checksum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mix = |sum: u64, word: u64| (sum.rotate_left(23) ^ word).wrapping_mul(FACTOR);
    let sum = words.iter().fold(FACTOR, |sum, &word| mix(sum, u64::from_le_bytes(word)));
    rest.iter().fold(sum, |sum, &byte| mix(sum, u64::from(byte)))
}

impl Transfers for Swap {
    fn swap_out(&mut self, request: u32, copies: Copies<'_>) -> Result<(), Fault> {
        Ok(self.begin(request, copies, true)?)
    }

    fn swap_in(&mut self, request: u32, copies: Copies<'_>) -> Result<(), Fault> {
        Ok(self.begin(request, copies, false)?)
    }

    fn finished(&mut self, requests: &mut Vec<u32>) -> Result<(), Fault> {
        if self.out.in_flight.is_empty() && self.back.in_flight.is_empty() {
            return Ok(());
        }
        self.device.shared().bind()?;
        while let Some((request, blocks)) = self.next_ended(true)? {
            self.note_sums(&blocks);
            requests.push(request);
        }
        while let Some((request, blocks)) = self.next_ended(false)? {
            self.check_sums(request, &blocks)?;
            requests.push(request);
        }
        Ok(())
    }

    fn host_blocks(&self) -> u32 {
        self.host_blocks
    }

    fn block_bytes(&self) -> u64 {
        self.pool.block_bytes as u64
    }

    fn block_s(&self) -> f64 {
        self.block_s
    }

    fn token_s(&self) -> f64 {
        self.token_s
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        // The copies' memory goes with it.
        self.drain();
        self.device.shared().synchronize_regardless();
    }
}
