//! Packs a trace file into the compact form of `src/demo.traces`:
//!
//! ```text
//! trail-rt demo --prompts 400 --policies fcfs --device cpu --traces demo.jsonl
//! cargo run -p trail-scheduler --example compact_traces -- demo.jsonl OUT
//! ```

use std::error::Error;

use trail_simulator::{Trace, TraceSet};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = &arguments[..] else { return Err("give a trace file and the result".into()) };
    let set = TraceSet::new(&Trace::parse(&std::fs::read_to_string(from)?)?)?;
    std::fs::write(to, set.to_bytes())?;
    println!("{} answers", set.recorded().len());
    Ok(())
}
