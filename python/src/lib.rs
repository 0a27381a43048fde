//! The engine, the scheduler, the simulator and the probe of trail-rt for Python: the module
//! `trail_rt._native`, below the classes of the package `trail_rt`.

mod arrays;
mod engine;
mod error;
mod forecasts;
mod length_predictor;
mod params;
mod probe;
mod process_model;
mod ranks;
mod scheduler;
mod signals;
mod simulator;
mod stream;
mod tracker;
mod waker;

use pyo3::prelude::*;

/// Engine, scheduler, simulator and probe.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::engine::{Engine, check_option};
    #[pymodule_export]
    use crate::error::{EngineError, ModelError, RequestError, TrailError};
    #[pymodule_export]
    use crate::length_predictor::LengthPredictor;
    #[pymodule_export]
    use crate::probe::Probe;
    #[pymodule_export]
    use crate::ranks::Ranks;
    #[pymodule_export]
    use crate::scheduler::{Plan, Row, Scheduler};
    #[pymodule_export]
    use crate::simulator::{lower_bound, read_trace, simulate};
    #[pymodule_export]
    use crate::stream::{Part, Stream};
    #[pymodule_export]
    use crate::tracker::{Estimate, Tracker};
    #[pymodule_export]
    use crate::waker::Waker;
}
