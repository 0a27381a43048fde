//! The reasons for which a simulation cannot run.

use std::fmt;

use trail_scheduler::{ConfigError, Refusal};

/// Bound of the number of workers.
pub(crate) const MAX_WORKERS: u32 = 4096;

/// The reason for which a simulation cannot run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SimulationError {
    /// Invalid sizes of the scheduler.
    Config(ConfigError),
    /// The scheduler refused a job.
    Refused {
        /// The job's number.
        id: u64,
        /// The reason.
        refusal: Refusal,
    },
    /// The jobs are not in order of arrival.
    Unsorted {
        /// The number of the first job that arrives before its predecessor.
        id: u64,
    },
    /// Number of workers outside 1..=[`Simulation::MAX_WORKERS`](crate::Simulation::MAX_WORKERS).
    Workers(u32),
    /// The policy runs none of the requests that are left.
    Stalled,
}

impl fmt::Display for SimulationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SimulationError::Config(error) => error.fmt(f),
            SimulationError::Refused { id, refusal } => write!(f, "request {id}: {refusal}"),
            SimulationError::Unsorted { id } => {
                write!(f, "request {id} arrives before the one in front of it: sort the requests")
            }
            SimulationError::Workers(workers) => {
                let max = MAX_WORKERS;
                write!(f, "workers is {workers}: choose a number from 1 to {max}")
            }
            SimulationError::Stalled => f.write_str("the policy runs none of the requests left"),
        }
    }
}

impl std::error::Error for SimulationError {}
