//! The remaining-length probe of TRAIL: bins, MLP head, Bayesian smoothing, and the
//! lock-free cell through which its predictions reach the scheduler.
