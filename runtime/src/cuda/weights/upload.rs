//! The pool of threads that upload chunks to the device: from the file into pinned memory, by the
//! copy engine to the device, and there into place.
//!
//! Each thread has its own stream and two buffers, so that no thread waits for another: while
//! the copy engine empties one buffer the thread fills the other, and the copies and shuffles of
//! all threads mix on the device.

use super::chunks::{Arrangement, Chunk, Part};
use crate::backend::Progress;
use crate::cuda::device::Device;
use crate::cuda::error::CudaError;
use crate::cuda::error::driver_error;
use crate::cuda::launch::{self, Sources};
use crate::cuda::memory::{DeviceBuffer, PinnedBuffer, Priority};
use crate::cuda::queue::{Queue, has_run};
use crate::model::Dtype;
use cudarc::driver::CudaEvent;
use half::bf16;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

/// Values that are widened at a time: a multiple of every type's block.
const WIDENED: usize = 256;

/// Buffers of a thread: one fills, one empties.
const BUFFERS: usize = 2;

/// Size of the pool of upload threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UploadPool {
    /// Most threads; no more are started than there are chunks for.
    pub threads: usize,
    /// Bytes of a buffer; as many as 128 rows of the widest matrix take, if that is more.
    pub buffer_bytes: usize,
}

impl Default for UploadPool {
    /// Eight threads read pages faster than a link carries them (about 8 GB/s each against 55); a
    /// copy of 8 MiB costs its start twenty times over.
    fn default() -> Self {
        let threads = trail_platform::available_threads();
        UploadPool { threads: threads.min(8), buffer_bytes: 8 << 20 }
    }
}

/// Stream and staging buffers of one thread.
struct UploadWorker {
    queue: Queue,
    buffers: Vec<StagingBuffer>,
}

/// A chunk on its way.
struct StagingBuffer {
    pinned: PinnedBuffer,
    /// Where shuffles read from.
    staging: DeviceBuffer,
    /// The last use of both has ended.
    free: CudaEvent,
}

/// State that the threads share.
struct Load<'a> {
    device: &'a Device,
    chunks: &'a [Chunk<'a>],
    /// The next chunk to be uploaded.
    next: AtomicUsize,
    /// Something failed: the others need not go on.
    is_over: AtomicBool,
}

/// Carries all `chunks`; they are in place when it returns.
pub(super) fn upload(
    device: &Arc<Device>,
    chunks: &[Chunk<'_>],
    pool: UploadPool,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), CudaError> {
    let buffer_bytes = chunks.iter().map(|chunk| chunk.staged_bytes).max().unwrap_or(0);
    let total: usize = chunks.iter().map(Chunk::source_bytes).sum();
    let threads = pool.threads.clamp(1, total.div_ceil(buffer_bytes.max(1)).max(1));
    // Freed when all threads have ended: to free one's buffers would wait for the others' work.
    let mut workers: Vec<UploadWorker> =
        (0..threads).map(|_| UploadWorker::new(device, buffer_bytes)).collect::<Result<_, _>>()?;
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let load = Load { device, chunks, next, is_over };
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        let start = |worker| {
            let (load, sender) = (&load, sender.clone());
            scope.spawn(move || load.work(worker, sender))
        };
        let working: Vec<_> = workers.iter_mut().map(start).collect();
        drop(sender);
        let mut done = 0;
        for bytes in receiver {
            done += bytes as u64;
            progress(Progress { what: "weights", done, total: total as u64 });
        }
        let ends = working
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        ends.fold(Ok(()), Result::and)
    })
}

impl UploadWorker {
    fn new(device: &Arc<Device>, buffer_bytes: usize) -> Result<UploadWorker, CudaError> {
        let buffer = |_| {
            Ok(StagingBuffer {
                pinned: device.alloc_pinned(buffer_bytes, "a buffer of the weights' way")?,
                staging: device.alloc(buffer_bytes, "staging of the weights")?,
                free: device.event()?,
            })
        };
        let buffers = (0..BUFFERS).map(buffer).collect::<Result<_, CudaError>>()?;
        Ok(UploadWorker { queue: queue(device)?, buffers })
    }
}

impl Load<'_> {
    /// One thread's work: chunks until there are none. Its buffers are at rest when it returns.
    fn work(&self, worker: &mut UploadWorker, sender: Sender<usize>) -> Result<(), CudaError> {
        let carried = self.upload_chunks(worker, &sender);
        if carried.is_err() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        let rested = worker.queue.synchronize("waiting for the weights");
        carried.and(rested)
    }

    fn upload_chunks(
        &self,
        worker: &mut UploadWorker,
        sender: &Sender<usize>,
    ) -> Result<(), CudaError> {
        self.device.shared().bind()?;
        for turn in 0.. {
            let chunk = self.chunks.get(self.next.fetch_add(1, Ordering::Relaxed));
            let Some(chunk) = chunk.filter(|_| !self.is_over.load(Ordering::Relaxed)) else {
                break;
            };
            let buffer = &mut worker.buffers[turn % BUFFERS];
            // After this nothing on the device uses the buffer any more.
            let is_free = || has_run(&buffer.free);
            self.device.shared().wait("waiting for a buffer of the weights", is_free)?;
            self.send(chunk, buffer, &worker.queue)?;
            buffer
                .free
                .record(worker.queue.stream())
                .map_err(driver_error("recording an event"))?;
            // The receiver is gone only if another thread has failed.
            let _ = sender.send(chunk.source_bytes());
        }
        Ok(())
    }

    /// Fills the buffer with `chunk` and queues what brings it into place. Nothing on the device
    /// uses the buffer, and nothing may until the queue has run.
    fn send(
        &self,
        chunk: &Chunk<'_>,
        buffer: &mut StagingBuffer,
        queue: &Queue,
    ) -> Result<(), CudaError> {
        for part in &chunk.parts {
            stage(part, chunk.staged, &mut buffer.pinned.bytes_mut()[part.offset..]);
        }
        let copy = |to, bytes| {
            let copied = queue.copy_to_device(to, &buffer.pinned, 0..bytes);
            copied.map_err(driver_error("copying weights to the device"))
        };
        match chunk.arrangement {
            Arrangement::Rows => copy(chunk.to, bf16_bytes(&chunk.parts[0])),
            Arrangement::Fragments { order, width } => {
                copy(buffer.staging.device_ptr(), chunk.staged_bytes)?;
                let staging = buffer.staging.device_ptr();
                let source = |part: &Part| (staging.add(part.offset), part.rows);
                let sources: Sources = chunk.parts.each_ref().map(source);
                // The copy above brings the sources, in the same stream; the destination has the
                // rows, padded, and no other chunk writes there.
                queue.launch(&launch::shuffle(chunk.staged, sources, width, order, chunk.to))
            }
        }
    }
}

/// A queue for copies and shuffles of weights.
pub(super) fn queue(device: &Arc<Device>) -> Result<Queue, CudaError> {
    let stream = device.stream(Priority::Low)?;
    // SAFETY: this module and its parent put on it copies from a buffer and shuffles into the
    // weights' allocation, within the bounds of `Layout` and of the buffer. Both wait for the
    // stream before they return, so that buffers and weights live as long; no two chunks have the
    // same destination, and a buffer is filled again only after its event.
    Ok(unsafe { Queue::new(device.clone(), stream) })
}

/// Bytes of `part` as bf16.
fn bf16_bytes(part: &Part<'_>) -> usize {
    part.dtype.map_or(0, |dtype| Dtype::Bf16.bytes_of(values_of(dtype, part.bytes)))
}

/// Number of values of `dtype` in `bytes`.
fn values_of(dtype: Dtype, bytes: &[u8]) -> usize {
    bytes.len() / dtype.block_bytes() * dtype.block_values()
}

/// Writes `part` as `staged` to the beginning of `to`: as it is, or rounded to bf16.
fn stage(part: &Part<'_>, staged: Dtype, to: &mut [u8]) {
    let Some(dtype) = part.dtype else { return };
    // The chunks say bf16 wherever a source is not staged as it is.
    let put = |from: &[u8], to: &mut [u8]| match dtype == staged {
        true => to[..from.len()].copy_from_slice(from),
        false => narrow(dtype, from, to),
    };
    if part.adjacent_pairs.is_none() || part.rows == 0 {
        return put(part.bytes, to);
    }
    let row_len = part.bytes.len() / part.rows;
    let staged_len = staged.bytes_of(values_of(dtype, &part.bytes[..row_len]));
    for (row, bytes) in part.bytes.chunks_exact(row_len).enumerate() {
        put(bytes, &mut to[part.staged_row(row) * staged_len..]);
    }
}

/// Rounds the values of `dtype` in `bytes` to bf16, one after the other from the beginning of `to`
/// on.
fn narrow(dtype: Dtype, bytes: &[u8], to: &mut [u8]) {
    let mut wide = [0.0; WIDENED];
    let pieces = bytes.chunks(dtype.bytes_of(WIDENED));
    for (piece, to) in pieces.zip(to.chunks_mut(Dtype::Bf16.bytes_of(WIDENED))) {
        let wide = &mut wide[..values_of(dtype, piece)];
        dtype.widen(piece, wide);
        for (place, &value) in to.as_chunks_mut().0.iter_mut().zip(&*wide) {
            *place = bf16::from_f32(value).to_le_bytes();
        }
    }
}
