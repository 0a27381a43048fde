//! Times kernels: launches are captured in a graph, which is replayed between two events.

use std::error::Error;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::{
    CUevent_flags, CUgraphInstantiate_flags_enum as Instantiate, CUstreamCaptureMode,
};
use trail_platform::stats::Sorted;

/// Most launches in one graph.
const MAX_LAUNCHES: usize = 2000;
/// Launches of the first measurement, which estimates the length of one.
const FIRST_LAUNCHES: usize = 4;

/// Times kernels on one stream.
pub struct Timer<'a> {
    stream: &'a Arc<CudaStream>,
    repeats: u32,
    window_ms: f64,
}

/// Time of one launch.
pub struct Timing {
    /// Median of all measurements, microseconds.
    pub median_us: f64,
    /// Shortest measurement, microseconds.
    pub best_us: f64,
}

impl<'a> Timer<'a> {
    /// A timer that makes `repeats` measurements of about `window_ms` each.
    pub fn new(stream: &'a Arc<CudaStream>, repeats: u32, window_ms: f64) -> Timer<'a> {
        Timer { stream, repeats, window_ms }
    }

    /// Times `launch(i)`, which enqueues launch number i on the stream; i selects among copies of
    /// the inputs, so that they do not stay in L2.
    pub fn time(
        &self,
        mut launch: impl FnMut(usize) -> Result<(), Box<dyn Error>>,
    ) -> Result<Timing, Box<dyn Error>> {
        // The first launch loads the kernel, which a capture does not allow.
        launch(0)?;
        self.stream.synchronize()?;
        let guess_us = self.replay(FIRST_LAUNCHES, 2, &mut launch)?.median_us;
        // A clock that is too coarse gives 0.
        let launches = (self.window_ms * 1e3 / guess_us.max(0.1)) as usize;
        self.replay(launches.clamp(FIRST_LAUNCHES, MAX_LAUNCHES), self.repeats, &mut launch)
    }

    fn replay(
        &self,
        launches: usize,
        repeats: u32,
        launch: &mut impl FnMut(usize) -> Result<(), Box<dyn Error>>,
    ) -> Result<Timing, Box<dyn Error>> {
        self.stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)?;
        let launched = (0..launches).try_for_each(launch);
        let flags = Instantiate::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
        let graph = self.stream.end_capture(flags)?;
        launched?;
        let graph = graph.ok_or("the capture is empty")?;
        graph.launch()?;
        let mut times = Vec::new();
        for _ in 0..repeats {
            let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
            let begin = self.stream.record_event(timed)?;
            graph.launch()?;
            let end = self.stream.record_event(timed)?;
            times.push(f64::from(begin.elapsed_ms(&end)?) * 1e3 / launches as f64);
        }
        let times = Sorted::of(times);
        Ok(Timing { median_us: times.median(), best_us: times.values()[0] })
    }
}
