//! Simulator, theory and decision logs through their public interfaces.

mod decision_log;
mod theory;
mod theory_limits;
mod theory_refined;
mod trace;
