//! The choice of the worker, apart from Dynamo: loads of workers and the time until a job can run.

#![forbid(unsafe_code)]

pub mod backlog;
pub mod loads;
