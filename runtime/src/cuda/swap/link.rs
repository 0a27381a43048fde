//! Measured bandwidth of the link between host and device.

use crate::cuda::device::Device;
use crate::cuda::error::{CudaError, driver_error};
use crate::cuda::queue::has_run;
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUevent_flags;

/// Most blocks that are copied to measure one.
pub(super) const MEASURED: u32 = 16;

/// Seconds that what `queue` puts on `stream` of `device` takes there; waits for it, within the
/// device's timeout.
pub fn seconds(
    device: &Device,
    stream: &CudaStream,
    queue: impl FnOnce() -> Result<(), CudaError>,
) -> Result<f64, CudaError> {
    let timed = Some(CUevent_flags::CU_EVENT_DEFAULT);
    let event = || stream.record_event(timed).map_err(driver_error("recording an event"));
    let begin = event()?;
    queue()?;
    let end = event()?;
    device.shared().wait("timing copies", || has_run(&end))?;
    let ms = begin.elapsed_ms(&end).map_err(driver_error("timing copies"))?;
    Ok(f64::from(ms) / 1e3)
}
