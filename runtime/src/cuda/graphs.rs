//! Steps that were recorded, to be launched by one call.

use super::context::Context;
use super::error::CudaError;
use super::error::driver_error;
use super::queue::Queue;
use super::step::phase::StepPhase;
use cudarc::driver::result;
use cudarc::driver::sys::{self, CUstreamCaptureMode};
use std::ptr;
use std::sync::Arc;

/// Nodes keep the priorities of their streams, which would be one otherwise: the side stream's
/// kernels go before those of the upper layers
/// (`CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY`).
const FLAGS: u64 = 8;

/// A recorded list of launches. Its kernels' parameters, and so all addresses, are fixed.
pub(super) struct Graph {
    executable: sys::CUgraphExec,
    context: Arc<Context>,
}

// SAFETY: a handle; the driver asks only that no two threads use it at once, and it is launched
// through the backend alone.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `issue` launches on `queue`.
    pub(super) fn record(
        queue: &Queue,
        issue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Graph, CudaError> {
        const WHAT: &str = "recording a graph";
        let (device, stream) = (queue.device(), queue.stream());
        device.shared().bind()?;
        // Other threads may meanwhile do what a capture forbids: it concerns this thread alone.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        stream.begin_capture(mode).map_err(driver_error(WHAT))?;
        let issued = issue();
        // Ended in any case: a stream that records runs nothing.
        // SAFETY: the capture was begun above, on this thread.
        let ended = unsafe { result::stream::end_capture(stream.cu_stream()) };
        let (context, mut executable) = (device.shared().clone(), ptr::null_mut());
        let made = match (issued, ended) {
            (Ok(()), Ok(graph)) => {
                // SAFETY: the graph was made by the capture; the executable does not need it.
                unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, FLAGS) }
                    .result()
                    .map_err(driver_error("making a graph ready"))
            }
            // A launch that failed is also why the capture ended badly.
            (Err(error), _) => Err(error),
            (Ok(()), Err(code)) => Err(driver_error(WHAT)(code)),
        };
        if let Ok(graph) = ended {
            // SAFETY: made by the capture, and destroyed here alone.
            context.release("a graph", || unsafe { result::graph::destroy(graph) });
        }
        made?;
        let graph = Graph { executable, context };
        // Takes its memory on the device here, and not at its first launch.
        // SAFETY: the executable was made above, and the stream is alive.
        let uploaded = unsafe { result::graph::upload(graph.executable, stream.cu_stream()) };
        uploaded.map_err(driver_error("uploading a graph"))?;
        queue.synchronize("uploading a graph")?;
        Ok(graph)
    }

    /// Launches it after what `queue` has.
    pub(super) fn launch(&self, queue: &Queue) -> Result<(), CudaError> {
        queue.device().shared().bind()?;
        // SAFETY: the executable lives as long as `self`; what its kernels use lives until the
        // stream was waited for.
        let launched =
            unsafe { result::graph::launch(self.executable, queue.stream().cu_stream()) };
        launched.map_err(driver_error("launching a step's graph"))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `record`, and destroyed here alone.
        self.context.release("a graph", || unsafe { result::graph::exec_destroy(self.executable) });
    }
}

/// Graphs by size, parity and phase.
#[derive(Default)]
pub(super) struct Graphs {
    /// ExecutorConfig that a step is recorded in; 0: nothing is.
    parts: usize,
    /// `[size][parity][phase]`
    graphs: Vec<Option<Graph>>,
    count: usize,
}

impl Graphs {
    pub(super) fn with_parts(parts: usize) -> Graphs {
        Graphs { parts, ..Graphs::default() }
    }

    /// Keeps `graph` for `key` and `phase`.
    pub(super) fn keep(&mut self, key: [usize; 2], phase: StepPhase, graph: Graph) {
        let index = self.index(key, phase);
        if self.graphs.len() <= index {
            self.graphs.resize_with(index + 1, || None);
        }
        self.graphs[index] = Some(graph);
        self.count += 1;
    }

    /// Graphs there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, key: [usize; 2], phase: StepPhase) -> Option<&Graph> {
        self.graphs.get(self.index(key, phase))?.as_ref()
    }

    fn index(&self, [size, parity]: [usize; 2], phase: StepPhase) -> usize {
        (2 * size + parity) * self.parts + usize::from(phase == StepPhase::Upper)
    }
}
