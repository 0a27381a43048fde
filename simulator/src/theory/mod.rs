//! Queueing theory: SPRPT with limited preemption in M/G/1.
//!
//! The model of TRAIL's Lemma 1 (arXiv 2410.01035): one server, Poisson arrivals of rate lambda,
//! exponential sizes with mean 1, a predicted size r, and the rank r - age while age < c r, then
//! minus infinity. [`Queue`] has the mean response time by the corrected lemma and as printed, the
//! time-average memory and the preemptions of a job; [`simulation`] the same quantities from
//! events alone. [`figure8`] has the points of the paper's Figure 8, [`refined_response`] is its
//! Appendix E for the demo probe. docs/theory.md derives the formulae.

mod bessel;
mod chain;
mod exponential;
mod figure8;
mod perfect;
mod predictor;
mod quadrature;
mod queue;
mod ratio;
mod refined;
pub mod simulation;

pub use chain::PredictionChain;
pub use figure8::{Figure8Row, Panel, figure8};
pub use predictor::Predictor;
pub use queue::{InvalidQueue, Queue};
pub use ratio::{Estimate, Ratio};
pub use refined::{RefinedResponse, refined_response};
