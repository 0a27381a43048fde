//! When a step's parts ran, as the device's own clock has it: timing events on the compute and the
//! side stream. For pictures of a step; steps that are traced are launched kernel by kernel, and
//! are slower for it.

use super::device::Device;
use super::error::CudaError;
use super::error::driver_error;
use super::queue::{Queue, has_run};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaEvent, CudaStream};
use std::time::{Duration, Instant};

/// Pairs of readings of both clocks; the quickest pair counts.
const LOOKS: usize = 16;
/// Steps whose events are kept.
const STEPS: usize = 2;
const POINTS: usize = 7;

/// Points of a step at which a timing event is recorded. The first four are on the compute stream,
/// the others on the side stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TracePoint {
    /// Before the first kernel.
    Begin,
    /// After the tapped layer.
    Tapped,
    /// After the logits.
    Logits,
    /// After the last kernel.
    End,
    /// The side stream begins.
    Forked,
    /// The probe has run, where it runs on the device.
    Probed,
    /// The rows, or the probe's outputs, have been copied to the host.
    Copied,
}

/// The device clock against the host clock: an event that was recorded between two
/// readings of the host clock.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    /// The device's time 0, give or take [`Anchor::error`].
    pub at: Instant,
    /// How far off it can be.
    pub error: Duration,
}

/// When the parts of a step began and ended: seconds from the [`Anchor`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepTimes {
    /// The first kernel begins.
    pub begin_s: f64,
    /// The tapped rows.
    pub tap: Option<TapTimes>,
    /// The logits are there, and sampling begins.
    pub logits_s: f64,
    /// The last kernel has ended.
    pub end_s: f64,
}

/// Times of a step's tapped rows: seconds from the [`Anchor`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TapTimes {
    /// The layers up to the tapped one have ended.
    pub tapped_s: f64,
    /// The side stream begins.
    pub forked_s: f64,
    /// True if the probe runs on the device.
    pub has_probe: bool,
    /// The probe has run, where it runs on the device, and copying begins.
    pub probed_s: f64,
    /// All is with the host.
    pub copied_s: f64,
}

/// The events of the steps in flight.
pub(super) struct Trace {
    zero: CudaEvent,
    /// By parity, and by [`TracePoint`].
    events: [[CudaEvent; POINTS]; STEPS],
    /// True if the step tapped rows.
    tapped: [bool; STEPS],
    /// True if the probe runs on the device.
    has_probe: bool,
}

impl Trace {
    /// Events for two steps, and the offset of `stream`'s clock to the host clock. Waits for what
    /// is on `stream`.
    pub(super) fn new(
        device: &Device,
        stream: &CudaStream,
        has_probe: bool,
    ) -> Result<(Trace, Anchor), CudaError> {
        let (zero, anchor) = anchor(device, stream)?;
        let timed = || timing_event(device);
        let step = || -> Result<[CudaEvent; POINTS], CudaError> {
            Ok([timed()?, timed()?, timed()?, timed()?, timed()?, timed()?, timed()?])
        };
        let (events, tapped) = ([step()?, step()?], [false; STEPS]);
        Ok((Trace { zero, events, tapped, has_probe }, anchor))
    }

    fn begin(&mut self, parity: usize, tapped: bool) {
        self.tapped[parity] = tapped;
    }

    fn record(
        &self,
        parity: usize,
        point: TracePoint,
        stream: &CudaStream,
    ) -> Result<(), CudaError> {
        let event = &self.events[parity][point as usize];
        event.record(stream).map_err(driver_error("recording a timing event"))
    }

    /// Times of the last step of `parity`; waits for its end, within the device's timeout.
    fn times(&self, device: &Device, parity: usize) -> Result<StepTimes, CudaError> {
        for point in [TracePoint::End, TracePoint::Copied] {
            if point == TracePoint::End || self.tapped[parity] {
                let event = &self.events[parity][point as usize];
                device.shared().wait("reading a step's times", || has_run(event))?;
            }
        }
        let at = |point: TracePoint| {
            let ms = self.zero.elapsed_ms(&self.events[parity][point as usize]);
            Ok::<_, CudaError>(f64::from(ms.map_err(driver_error("reading a timing event"))?) / 1e3)
        };
        let tap = match self.tapped[parity] {
            false => None,
            true => Some(TapTimes {
                tapped_s: at(TracePoint::Tapped)?,
                forked_s: at(TracePoint::Forked)?,
                has_probe: self.has_probe,
                probed_s: at(TracePoint::Probed)?,
                copied_s: at(TracePoint::Copied)?,
            }),
        };
        let (begin_s, logits_s, end_s) =
            (at(TracePoint::Begin)?, at(TracePoint::Logits)?, at(TracePoint::End)?);
        Ok(StepTimes { begin_s, tap, logits_s, end_s })
    }
}

/// Records timing events while steps are traced, and nothing otherwise.
#[derive(Default)]
pub(super) struct Tracer(Option<Box<Trace>>);

impl Tracer {
    pub(super) fn start(&mut self, trace: Trace) {
        self.0 = Some(Box::new(trace));
    }

    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A step of `parity` is about to be launched.
    pub(super) fn begin(&mut self, parity: usize, tapped: bool) {
        if let Some(trace) = &mut self.0 {
            trace.begin(parity, tapped);
        }
    }

    /// Records the event of `point` on `queue`.
    pub(super) fn record(
        &self,
        parity: usize,
        point: TracePoint,
        queue: &Queue,
    ) -> Result<(), CudaError> {
        self.0.as_ref().map_or(Ok(()), |trace| trace.record(parity, point, queue.stream()))
    }

    /// Times of the last step of `parity`, where steps are traced.
    pub(super) fn times(
        &self,
        device: &Device,
        parity: usize,
    ) -> Result<Option<StepTimes>, CudaError> {
        self.0.as_ref().map(|trace| trace.times(device, parity)).transpose()
    }
}

/// An event on an idle stream, and when the host saw it: the narrowest of a few looks.
fn anchor(device: &Device, stream: &CudaStream) -> Result<(CudaEvent, Anchor), CudaError> {
    const WHAT: &str = "reading the device's clock";
    let mut best: Option<(CudaEvent, Anchor)> = None;
    for _ in 0..LOOKS {
        let event = timing_event(device)?;
        // Earlier work of the stream is over at the second look at the latest.
        let before = Instant::now();
        event.record(stream).map_err(driver_error(WHAT))?;
        device.shared().wait(WHAT, || has_run(&event))?;
        let error = before.elapsed() / 2;
        if best.as_ref().is_none_or(|(_, best)| error < best.error) {
            best = Some((event, Anchor { at: before + error, error }));
        }
    }
    Ok(best.expect("looked at least once"))
}

fn timing_event(device: &Device) -> Result<CudaEvent, CudaError> {
    device.shared().bind()?;
    let event = device.context().new_event(Some(CUevent_flags::CU_EVENT_DEFAULT));
    event.map_err(driver_error("making a timing event"))
}
