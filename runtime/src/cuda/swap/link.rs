//! Measured bandwidth of the link between host and device.

use crate::cuda::error::CudaError;
use crate::cuda::error::driver_error;
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUevent_flags;

/// Most blocks that are copied to measure one.
pub(super) const MEASURED: u32 = 16;

/// Seconds that what `queue` puts on `stream` takes there; waits for it.
pub fn seconds(
    stream: &CudaStream,
    queue: impl FnOnce() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let event = || stream.record_event(timed).map_err(driver_error("recording an event"));
    let begin = event()?;
    queue()?;
    let end = event()?;
    let ms = begin.elapsed_ms(&end).map_err(driver_error("timing copies"))?;
    Ok(f64::from(ms) / 1e3)
}
