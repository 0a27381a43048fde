//! The threads that carry pieces to the device: from the file into pinned memory, by the copy engine to the device, and there into place.
//!
//! Each thread has a stream and two slots of its own, so that nobody waits for another: while the copy engine empties one slot the
//! thread fills the other, and the copies and shuffles of all threads mix on the device.

use super::pieces::{Making, Part, Piece};
use crate::cuda::error::doing;
use crate::cuda::launch::{self, Sources};
use crate::cuda::queue::Queue;
use crate::cuda::{CudaError, Device, DeviceBuffer, PinnedBuffer, Priority, Progress};
use crate::model::Dtype;
use cudarc::driver::CudaEvent;
use half::{bf16, f16};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Slots of a thread: one fills, one empties.
const SLOTS: usize = 2;

/// Who carries, in what portions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Team {
    /// Most threads; no more are started than there are pieces for.
    pub threads: usize,
    /// Bytes of a slot; as many as 128 rows of the widest matrix take, if that is more.
    pub slot_bytes: usize,
}

impl Default for Team {
    /// Eight threads read pages faster than a link carries them (about 8 GB/s each against 55); a copy of 8 MiB costs its start twenty times over.
    fn default() -> Self {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        Team { threads: threads.min(8), slot_bytes: 8 << 20 }
    }
}

/// What one thread works with.
struct Carrier {
    queue: Queue,
    slots: Vec<Slot>,
}

/// A piece on its way.
struct Slot {
    pinned: PinnedBuffer,
    /// Where shuffles read from.
    staging: DeviceBuffer,
    /// The last use of both has ended.
    free: CudaEvent,
}

/// What the threads share.
struct Load<'a> {
    device: &'a Device,
    pieces: &'a [Piece<'a>],
    /// The first piece that nobody has taken.
    next: AtomicUsize,
    /// Something failed: the others need not go on.
    is_over: AtomicBool,
}

/// Carries all `pieces`; they are in place when it returns.
pub(super) fn carry(
    device: &Arc<Device>,
    pieces: &[Piece<'_>],
    team: Team,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), CudaError> {
    let slot_bytes = pieces.iter().map(|piece| piece.staged_bytes).max().unwrap_or(0);
    let total: usize = pieces.iter().map(Piece::source_bytes).sum();
    let threads = team.threads.clamp(1, total.div_ceil(slot_bytes.max(1)).max(1));
    let carriers: Vec<Carrier> =
        (0..threads).map(|_| Carrier::new(device, slot_bytes)).collect::<Result<_, _>>()?;
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let load = Load { device, pieces, next, is_over };
    let (tell, told) = channel();
    thread::scope(|scope| {
        let start = |carrier| {
            let (load, tell) = (&load, tell.clone());
            scope.spawn(move || load.work(carrier, tell))
        };
        let working: Vec<_> = carriers.into_iter().map(start).collect();
        drop(tell);
        let mut done = 0;
        for bytes in told {
            done += bytes as u64;
            progress(Progress { what: "weights", done, total: total as u64 });
        }
        let ends = working
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ends.fold(Ok(()), Result::and)
    })
}

impl Carrier {
    fn new(device: &Arc<Device>, slot_bytes: usize) -> Result<Carrier, CudaError> {
        let slot = |_| {
            Ok(Slot {
                pinned: device.alloc_pinned(slot_bytes, "a slot of the weights' way")?,
                staging: device.alloc(slot_bytes, "staging of the weights")?,
                free: device.event()?,
            })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<_, CudaError>>()?;
        Ok(Carrier { queue: queue(device)?, slots })
    }
}

impl Load<'_> {
    /// One thread's work: pieces until there are none. Its slots are at rest when it returns, and freed then.
    fn work(&self, mut carrier: Carrier, tell: Sender<usize>) -> Result<(), CudaError> {
        let carried = self.carry_pieces(&mut carrier, &tell);
        if carried.is_err() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        let rested = carrier.queue.synchronize("waiting for the weights");
        carried.and(rested)
    }

    fn carry_pieces(&self, carrier: &mut Carrier, tell: &Sender<usize>) -> Result<(), CudaError> {
        self.device.shared().bind()?;
        for turn in 0.. {
            let piece = self.pieces.get(self.next.fetch_add(1, Ordering::Relaxed));
            let Some(piece) = piece.filter(|_| !self.is_over.load(Ordering::Relaxed)) else {
                break;
            };
            let slot = &mut carrier.slots[turn % SLOTS];
            // After this nothing on the device uses the slot any more.
            slot.free.synchronize().map_err(doing("waiting for a slot of the weights"))?;
            self.send(piece, slot, &carrier.queue)?;
            slot.free.record(carrier.queue.stream()).map_err(doing("recording an event"))?;
            // Nobody listens only while another's error is on its way.
            let _ = tell.send(piece.source_bytes());
        }
        Ok(())
    }

    /// Fills the slot with `piece` and queues what brings it into place. Nothing on the device uses
    /// the slot, and nothing may until the queue has run.
    fn send(&self, piece: &Piece<'_>, slot: &mut Slot, queue: &Queue) -> Result<(), CudaError> {
        for part in &piece.parts {
            stage(part, piece.staged, &mut slot.pinned.bytes_mut()[part.offset..]);
        }
        let copy = |to, bytes| {
            let copied = queue.copy_to_device(to, &slot.pinned, 0..bytes);
            copied.map_err(doing("copying weights to the device"))
        };
        match piece.making {
            Making::Rows => copy(piece.to, bf16_bytes(&piece.parts[0])),
            Making::Fragments { order, width } => {
                copy(slot.staging.at(), piece.staged_bytes)?;
                let source = |part: &Part| (slot.staging.at() + part.offset as u64, part.rows);
                let sources: Sources = piece.parts.each_ref().map(source);
                // The copy above brings the sources, in the same stream; the destination has the
                // rows, padded, and no other piece writes there.
                queue.launch(&launch::shuffle(piece.staged, sources, width, order, piece.to))
            }
        }
    }
}

/// A queue for copies and shuffles of weights.
pub(super) fn queue(device: &Arc<Device>) -> Result<Queue, CudaError> {
    let stream = device.stream(Priority::Low)?;
    // SAFETY: this module and its parent put on it copies from a slot and shuffles into the weights'
    // allocation, within the bounds of `Layout` and of the slot. Both wait for the stream before
    // they return, so that slots and weights live as long; no two pieces have the same destination,
    // and a slot is filled again only after its event.
    Ok(unsafe { Queue::new(device.clone(), stream) })
}

/// Bytes of `part` as bf16.
fn bf16_bytes(part: &Part<'_>) -> usize {
    let from = part.dtype.map_or(1, Dtype::bytes);
    part.bytes.len() / from * size_of::<bf16>()
}

/// Writes `part` as `staged` to the beginning of `to`: as it is, or rounded to bf16.
fn stage(part: &Part<'_>, staged: Dtype, to: &mut [u8]) {
    match part.dtype {
        None => {}
        Some(dtype) if dtype == staged => to[..part.bytes.len()].copy_from_slice(part.bytes),
        // The pieces say bf16 wherever a source is not staged as it is.
        Some(Dtype::Bf16) => unreachable!("bf16 is never widened"),
        Some(Dtype::F16) => {
            let halves = part.bytes.as_chunks().0.iter();
            narrow(halves.map(|&bytes| f16::from_le_bytes(bytes).to_f32()), to);
        }
        Some(Dtype::F32) => {
            let floats = part.bytes.as_chunks().0.iter();
            narrow(floats.map(|&bytes| f32::from_le_bytes(bytes)), to);
        }
    }
}

/// Rounds `values` to bf16, one after the other from the beginning of `to` on.
fn narrow(values: impl ExactSizeIterator<Item = f32>, to: &mut [u8]) {
    let places = &mut to.as_chunks_mut::<2>().0[..values.len()];
    for (place, value) in places.iter_mut().zip(values) {
        *place = bf16::from_f32(value).to_le_bytes();
    }
}
