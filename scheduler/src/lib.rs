//! Iteration-level scheduling of language-model requests by predicted remaining length.
//!
//! Pure: no clock, no I/O, no threads of its own. Time comes in as an argument.
